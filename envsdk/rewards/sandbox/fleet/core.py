"""Which host starts which sandbox, and who has it. Pure: events in, commands out.

    request: waiting --a sandbox of its kind is up--> leased
                `---- budget over, or no host takes its kind --> refused
    sandbox: starting --started--> warm --> leased --given back--> ending --ended--> gone
                |  failed: gone      | old, not needed  `-- lost --^  ^
                `-- takes too long --+--------------------------------'
    host:    open --failures in a row, or silence--> quarantined --back-off over--> doubted --starts--> open
                `-- drained: no more starts --> released   ^----- fails: twice as long ------'

A start belongs to a kind of sandbox, not to the request that caused it. The first that is up goes to the
request that has waited longest; one that fails, or takes too long, is made up for on another host.

The warm pool holds as many sandboxes of a kind as requests come while one starts. A doubted host starts one
at a time, where no other has room.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from envsdk.rewards.sandbox.fleet import parts
from envsdk.rewards.sandbox.fleet.parts import UP, Command, Host, Kind, News, Refuse, Sandbox, SandboxState
from envsdk.rewards.sandbox.settings import FleetLimits, HostSettings

_HELD = frozenset({SandboxState.LEASED, SandboxState.LOST})


class FleetCore:
    """Owner: the shell that has the backends. Events of a sandbox that is gone are ignored.

    core = FleetCore([HostSettings(name="a"), HostSettings(name="b")])
    commands = core.request(0, kind)        # [Start(0, "a", kind)]
    commands = core.started(0)              # [Lease(0, 0, False)]
    commands = core.given_back(0)           # [End(0)]
    commands = core.ended(0)                # []
    """

    def __init__(self, hosts: Iterable[HostSettings], config: FleetLimits | None = None) -> None:
        self._config = config or FleetLimits()
        self._state = FleetState(self._config, {host.name: Host(host) for host in hosts})
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Nobody waits, and no sandbox is left."""
        state = self._state
        return not state.sandboxes and not any(kind.waiting for kind in state.kinds.values())

    @property
    def warm(self) -> dict[Hashable, tuple[int, int]]:
        """How many sandboxes of each kind are warm, and how many are to be."""
        targets = self._state.warm_targets()
        return {key: (len(kind.warm), targets[key]) for key, kind in self._state.kinds.items()}

    def up_on(self, host: str) -> list[int]:
        """Sandboxes of a host that are warm or leased."""
        return [
            one.number for one in self._state.sandboxes.values() if one.host.name == host and one.state in UP
        ]

    def request(self, request: int, kind: Hashable, budget_s: float | None = None) -> list[Command]:
        """Somebody wants a sandbox; `Lease` or `Refuse` follows within the budget. Numbers increase."""
        if self._is_closed:
            return [Refuse(request, "the fleet is closed")]
        state = self._state
        budget_s = self._config.start_timeout_s if budget_s is None else budget_s
        wanted = state.kinds.setdefault(kind, Kind(kind))
        wanted.ask(request, state.now_s + budget_s, state.now_s, self._config.demand_s)
        return self._settled()

    def withdraw(self, request: int) -> list[Command]:
        """Nobody waits for the answer any more."""
        for kind in self._state.kinds.values():
            kind.waiting.pop(request, None)
        return self._settled()

    def started(self, sandbox: int) -> list[Command]:
        one = self._get(sandbox, SandboxState.STARTING)
        if one is None:
            return []
        news: list[Command] = list(one.host.started())
        self._state.started(one)
        one.host.heard_at_s = self._state.now_s
        return news + self._settled()

    def failed(self, sandbox: int, why: str) -> list[Command]:
        """It could not be started, and nothing of it is left."""
        one = self._get(sandbox, SandboxState.STARTING)
        return [*(self._failed(one, why) if one is not None else ()), *self.ended(sandbox)]

    def full(self, sandbox: int, why: str) -> list[Command]:
        """Its host has no place for it, which is no fault of the host's."""
        one = self._get(sandbox, SandboxState.STARTING)
        if one is not None:
            one.host.problem, one.host.full_until_s = why, self._state.now_s + parts.FULL_S
        return self.ended(sandbox)

    def unfit(self, sandbox: int, why: str) -> list[Command]:
        """Its host takes no image of its kind; nothing of it is left."""
        one = self._get(sandbox, SandboxState.STARTING)
        if one is not None:
            one.kind.unfit[one.host.name] = why
        return self.ended(sandbox)

    def ended(self, sandbox: int) -> list[Command]:
        """Nothing of it is left."""
        one = self._get(sandbox, SandboxState.STARTING, SandboxState.ENDING)
        if one is not None:
            self._state.remove(one)
        return self._settled()

    def given_back(self, sandbox: int) -> list[Command]:
        """Its holder needs it no more. It is not leased again."""
        one = self._get(sandbox, *_HELD)
        return [] if one is None else [self._state.end(one), *self._settled()]

    def adopted(self, parent: int) -> int | None:
        """A leased sandbox was copied on its host: the number of the leased copy. None: it is gone."""
        if (one := self._get(parent, SandboxState.LEASED)) is None:
            return None
        return self._state.add(one.host, one.kind, SandboxState.LEASED).number

    def worked(self, sandbox: int) -> None:
        """It did what it was asked to."""
        if (one := self._get(sandbox, *UP)) is not None:
            one.host.worked(sandbox, self._state.now_s)

    def lost(self, sandbox: int, why: str) -> list[Command]:
        """It is gone, or did not do what a sandbox does."""
        one = self._get(sandbox, *UP)
        if one is None:
            return []
        return [self._state.lose(one, why), *self._failed(one, why), *self._settled()]

    def heard(self, host: str) -> None:
        """It answers."""
        if host in self._state.hosts:
            self._state.hosts[host].heard_at_s = self._state.now_s

    def drain(self, host: str) -> list[Command]:
        """It starts nothing more; its leases go on. `Release` follows."""
        self._state.hosts[host].is_draining = True
        return self._settled()

    def tick(self, elapsed_s: float) -> list[Command]:
        """So much time passed. Of a pause of the shell's own, in which it heard nothing, little counts."""
        state, config = self._state, self._config
        state.now_s += min(elapsed_s, config.silence_s / 4)
        commands: list[Command] = []
        for one in list(state.starting.values()):
            if state.now_s - one.since_s >= config.attempt_timeout_s:
                why = f"a start took longer than {config.attempt_timeout_s:g} s"
                commands += [state.end(one), *self._failed(one, why)]
        for host in {one.host.name: one.host for one in state.sandboxes.values() if one.state in UP}.values():
            if state.now_s - host.heard_at_s >= config.silence_s:
                commands += self._silent(host)
        for kind in state.kinds.values():
            while kind.warm and state.now_s - kind.warm[0].since_s >= config.warm_s:
                commands.append(state.end(kind.warm[0]))
        commands += [*self._settled(), *refuse_late(state)]
        state.forget_kinds()
        return commands

    def close(self) -> list[Command]:
        """Answer everybody, and end all sandboxes; `is_idle` follows when they have ended."""
        self._is_closed = True
        commands: list[Command] = []
        for kind in self._state.kinds.values():
            commands += [Refuse(request, "the fleet is closed") for request in kind.waiting]
            kind.waiting.clear()
        living = [one for one in self._state.sandboxes.values() if one.state is not SandboxState.ENDING]
        return commands + [self._state.end(one) for one in living]

    def _settled(self) -> list[Command]:
        return [] if self._is_closed else list(settle(self._state))

    def _get(self, sandbox: int, *states: SandboxState) -> Sandbox | None:
        one = self._state.sandboxes.get(sandbox)
        return one if one is not None and one.state in states else None

    def _failed(self, one: Sandbox, why: str) -> list[News]:
        return one.host.failed(one.number, why, self._state.now_s, self._config)

    def _silent(self, host: Host) -> list[Command]:
        """It is taken for dead."""
        state = self._state
        host.problem = f"it did not answer for {state.now_s - host.heard_at_s:.0f} s"
        host.last_failed, host.failed_at_s = next(state.numbers), state.now_s
        lost = [state.lose(one, f"host {host.name}: {host.problem}") for one in state.living_on(host)]
        return [*lost, host.quarantine(state.now_s, self._config)]


def settle(state: FleetState) -> Iterator[Command]:
    """Until all is as it should be: leases first, then starts for those that wait, then the warm pool."""
    for kind in state.kinds.values():
        yield from _lease(state, kind)
        yield from _refuse_unfit(state, kind)
    asked = sorted((kind for kind in state.kinds.values() if kind.waiting), key=_oldest)
    for kind in asked:
        yield from _fill(state, kind, len(kind.waiting) - kind.num_starting)
        yield from _make_room(state, kind)
    for key, target in state.warm_targets().items():
        kind = state.kinds[key]
        while len(kind.warm) > target:
            yield state.end(kind.warm[0])
        yield from _fill(state, kind, len(kind.waiting) + target - kind.num_starting - len(kind.warm))
    for host in [host for host in state.hosts.values() if host.is_draining]:
        yield from _drain(state, host)


def refuse_late(state: FleetState) -> Iterator[Command]:
    """Answer those whose budgets are over, and tell once of those that wait long."""
    for kind in state.kinds.values():
        for request in [one for one, until_s in kind.waiting.items() if until_s <= state.now_s]:
            del kind.waiting[request]
            why = f"no host started a sandbox in time ({_problems(state, kind)})"
            yield parts.Refuse(request, why)
        left_s = min(kind.waiting.values(), default=math.inf) - state.now_s
        if not kind.has_said and left_s <= state.config.start_timeout_s - parts.PATIENCE_S:
            kind.has_said = True
            why = _problems(state, kind)
            yield parts.News(f"a sandbox waits for a place, for at most {left_s:.0f} s more ({why})")


def _lease(state: FleetState, kind: Kind) -> Iterator[Command]:
    while kind.waiting and kind.warm:
        request = next(iter(kind.waiting))
        del kind.waiting[request]
        one = kind.warm[0]
        was_warm = state.now_s > one.since_s
        state.lease(one)
        yield parts.Lease(request, one.number, was_warm)


def _refuse_unfit(state: FleetState, kind: Kind) -> Iterator[Command]:
    staying = [host.name for host in state.hosts.values() if not host.is_draining]
    if kind.waiting and staying and all(name in kind.unfit for name in staying):
        why = "; ".join(dict.fromkeys(kind.unfit[name] for name in staying))
        for request in kind.waiting:
            yield parts.Refuse(request, why, is_unfit=True)
        kind.waiting.clear()
        # Next time the image may be there.
        kind.unfit.clear()


def _fill(state: FleetState, kind: Kind, missing: int) -> Iterator[Command]:
    """Start so many sandboxes, as far as there is room."""
    for _ in range(missing):
        usable = [host for host in _hosts_for(state, kind) if host.has_room(state.now_s)]
        if not usable or len(state.starting) >= state.config.starts_at_once:
            return
        yield state.start(min(usable, key=lambda host: _order(state, host)), kind)


def _hosts_for(state: FleetState, kind: Kind) -> list[Host]:
    return [
        each for each in state.hosts.values() if each.is_open(state.now_s) and each.name not in kind.unfit
    ]


def _order(state: FleetState, host: Host) -> tuple[bool, int]:
    """Lower is preferred: hosts that are not doubted and did not fail just now, then more free places."""
    has_failed = host.is_doubted or state.now_s - host.failed_at_s < state.config.first_backoff_s
    return has_failed, host.num_held - host.config.places


def _make_room(state: FleetState, kind: Kind) -> Iterator[Command]:
    """End warm sandboxes of other kinds that take the last places from those that wait."""
    missing = len(kind.waiting) - kind.num_starting
    full = [host for host in _hosts_for(state, kind) if host.num_held >= host.config.places]
    in_the_way = [one for one in state.sandboxes.values() if one.host in full]
    coming = sum(one.state is SandboxState.ENDING for one in in_the_way)
    warm = [one for one in in_the_way if one.state is SandboxState.WARM and one.kind is not kind]
    for one in warm[: max(0, missing - coming)]:
        yield state.end(one)


def _drain(state: FleetState, host: Host) -> Iterator[Command]:
    for one in state.living_on(host):
        if one.state is SandboxState.WARM:
            yield state.end(one)
    if not host.num_held:
        del state.hosts[host.name]
        yield parts.Release(host.name)


def _oldest(kind: Kind) -> int:
    return next(iter(kind.waiting))


def _problems(state: FleetState, kind: Kind) -> str:
    """Why a request was not answered yet, host by host."""
    said = [
        f"{host.name}: {kind.unfit.get(host.name) or host.problem or _load(host)}"
        for host in state.hosts.values()
    ]
    return "; ".join(said) or "there is none"


def _load(host: Host) -> str:
    drained = ", drained" if host.is_draining else ""
    return f"{host.num_held} of {host.config.places} places taken, {host.num_starting} starting{drained}"


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

    def start(self, host: Host, kind: Kind) -> parts.Start:
        one = self.add(host, kind, SandboxState.STARTING)
        one.is_start = True
        self.starting[one.number] = one
        host.num_starting += 1
        kind.num_starting += 1
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
        one.kind.num_starting -= 1

    def _become(self, one: Sandbox, state: SandboxState) -> None:
        one.state, one.since_s = state, self.now_s
