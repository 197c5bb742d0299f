"""What the fleet's core knows: hosts, kinds and sandboxes, and the moves of a sandbox between its states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from envsdk.rewards.sandbox.fleet import parts
from envsdk.rewards.sandbox.fleet.parts import UP, Host, Kind, Sandbox, SandboxState
from envsdk.rewards.sandbox.fleet.settings import FleetLimits


@dataclass(slots=True)
class FleetState:
    """Counts of hosts and kinds follow their sandboxes here, and nowhere else."""

    config: FleetLimits
    hosts: dict[str, Host]
    kinds: dict[Hashable, Kind] = field(default_factory=dict)
    sandboxes: dict[int, Sandbox] = field(default_factory=dict)
    starting: dict[int, Sandbox] = field(default_factory=dict)
    """In the order of their starts, without those given up."""
    now_s: float = 0.0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def warm_targets(self) -> dict[Hashable, int]:
        """How many sandboxes of each kind are kept warm."""
        wanted = {key: kind.wanted(self.now_s, self.config.demand_s) for key, kind in self.kinds.items()}
        total = sum(wanted.values())
        share = min(1.0, self.config.max_warm / total) if total else 0.0
        return {key: math.floor(share * number) for key, number in wanted.items()}

    def living_on(self, host: Host) -> list[Sandbox]:
        """Those that start or are up."""
        living = {SandboxState.STARTING, *UP}
        return [one for one in self.sandboxes.values() if one.host is host and one.state in living]

    def forget_kinds(self) -> None:
        """Those that nobody has asked for lately."""
        old_s = self.now_s - self.config.demand_s
        for key, kind in list(self.kinds.items()):
            if not kind.waiting and not kind.num_sandboxes and kind.asked_at_s < old_s:
                del self.kinds[key]

    def start(self, host: Host, kind: Kind, *, is_trial: bool = False) -> parts.Start:
        one = self.add(host, kind, SandboxState.STARTING)
        one.is_trial, one.is_start = is_trial, True
        self.starting[one.number] = one
        host.num_starting += 1
        kind.num_starting += not is_trial
        if is_trial:
            host.trial = one.number
        return parts.Start(one.number, host.name, kind.key)

    def add(self, host: Host, kind: Kind, state: SandboxState) -> Sandbox:
        one = Sandbox(next(self.numbers), host, kind, state, self.now_s)
        self.sandboxes[one.number] = one
        host.num_held += 1
        kind.num_sandboxes += 1
        return one

    def started(self, one: Sandbox) -> None:
        self._leave_start(one)
        one.is_start = False
        one.host.num_starting -= 1
        one.kind.took(self.now_s - one.since_s)
        one.kind.warm.append(one)
        self._become(one, SandboxState.WARM)

    def lease(self, one: Sandbox) -> None:
        one.kind.warm.remove(one)
        self._become(one, SandboxState.LEASED)

    def lose(self, one: Sandbox, why: str) -> parts.End | parts.Lost:
        """It is gone, and nobody ended it."""
        if one.state is not SandboxState.LEASED:
            return self.end(one)
        self._become(one, SandboxState.LOST)
        return parts.Lost(one.number, why)

    def end(self, one: Sandbox) -> parts.End:
        if one.state is SandboxState.WARM:
            one.kind.warm.remove(one)
        if one.state is SandboxState.STARTING:
            self._leave_start(one)
        self._become(one, SandboxState.ENDING)
        return parts.End(one.number)

    def remove(self, one: Sandbox) -> None:
        """Nothing of it is left."""
        if one.state is SandboxState.STARTING:
            self._leave_start(one)
        del self.sandboxes[one.number]
        one.host.num_held -= 1
        one.host.num_starting -= one.is_start
        one.kind.num_sandboxes -= 1

    def _leave_start(self, one: Sandbox) -> None:
        del self.starting[one.number]
        one.kind.num_starting -= not one.is_trial

    def _become(self, one: Sandbox, state: SandboxState) -> None:
        one.state, one.since_s = state, self.now_s
