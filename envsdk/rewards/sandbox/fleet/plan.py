"""What is leased, refused, started and ended now: functions over the fleet's state."""

from __future__ import annotations

import math
from collections.abc import Iterator

from envsdk.rewards.sandbox.fleet import parts
from envsdk.rewards.sandbox.fleet.parts import Command, Host, Kind, SandboxState
from envsdk.rewards.sandbox.fleet.state import FleetState


def settle(state: FleetState) -> Iterator[Command]:
    """Until all is as it should be: leases first, then starts for those that wait, then the warm pool."""
    for kind in state.kinds.values():
        yield from _lease(state, kind)
        yield from _refuse_unfit(state, kind)
    asked = sorted((kind for kind in state.kinds.values() if kind.waiting), key=_oldest)
    for kind in asked:
        yield from _try_out(state, kind)
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


def _try_out(state: FleetState, kind: Kind) -> Iterator[Command]:
    """Start one more than is needed on each host whose quarantine is over."""
    for host in state.hosts.values():
        if len(state.starting) >= state.config.starts_at_once:
            return
        if host.awaits_trial(state.now_s) and host.has_room(state.now_s) and host.name not in kind.unfit:
            yield state.start(host, kind, is_trial=True)


def _fill(state: FleetState, kind: Kind, missing: int) -> Iterator[Command]:
    """Start so many sandboxes, as far as there is room."""
    for _ in range(missing):
        usable = [host for host in _hosts_for(state, kind) if host.has_room(state.now_s)]
        if not usable or len(state.starting) >= state.config.starts_at_once:
            return
        yield state.start(min(usable, key=lambda host: _order(state, host)), kind)


def _hosts_for(state: FleetState, kind: Kind) -> list[Host]:
    return [host for host in state.hosts.values() if host.is_open and host.name not in kind.unfit]


def _order(state: FleetState, host: Host) -> tuple[bool, int]:
    """Lower is preferred: hosts that did not fail just now, then those with more free places."""
    has_failed = state.now_s - host.failed_at_s < state.config.first_backoff_s
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
