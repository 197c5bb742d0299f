"""An asynchronous environment shares its event loop with the other episodes of a worker."""

from __future__ import annotations

import asyncio
from typing import Any

from envsdk.base.processes.as_sync import SyncEnv
from envsdk.base.processes.stretches import LONGEST_STRETCH_S, Timed
from envsdk.contracts.env import Isolation
from envsdk.contracts.failures import describe_error
from envsdk.testing.checks import NotApplicable, check
from envsdk.testing.courses import Script, play_from, short
from envsdk.testing.subject import Subject
from envsdk.testing.time_limits import call

_TRIES = 3
"""A busy machine may hold up a call; one that blocks does so each time."""
_SCRIPT: Script = (0, 1, "", 2, 3, 5)


@check("The isolation of an asynchronous environment is `async`: inline, its waits would stop the worker.")
def asynchronous_ones_are_awaited(subject: Subject) -> None:
    if subject.spec is None or not subject.is_registered:
        raise NotApplicable("it is not registered")
    is_awaited = subject.spec.isolation is Isolation.ASYNC
    if isinstance(subject.make(), SyncEnv):
        fits = is_awaited or subject.spec.isolation in (Isolation.THREAD, Isolation.PROCESS)
        assert fits, f"it is an AsyncTextEnv, and its isolation is `{subject.spec.isolation}`"
    else:
        assert not is_awaited, "its isolation is `async`, and it is no AsyncTextEnv"


@check("The event loop runs on while a call waits, at least twice a second: other episodes share it.")
def calls_do_not_block_the_event_loop(subject: Subject) -> None:
    _asynchronous(subject)
    if _played_on_a_loop(subject)[1][0] <= LONGEST_STRETCH_S:
        return
    stretches = [_played_on_a_loop(subject)[1] for _ in range(_TRIES)]
    if min(stretch for stretch, _ in stretches) > LONGEST_STRETCH_S:
        stretch, method = min(stretches)
        raise AssertionError(
            f"{method}() kept the event loop for {stretch:.1f} s without an await: let code that blocks run"
            " in asyncio.to_thread"
        )


@check("Instances play on one event loop after another: what belongs to a loop is made anew on each.")
def event_loops_may_change(subject: Subject) -> None:
    _asynchronous(subject)
    expected = [turn.observation for turn in play_from(subject.make(), 0, _SCRIPT)]
    for number in ("first", "second"):
        try:
            observations, _ = _played_on_a_loop(subject)
        except Exception as error:
            raise AssertionError(
                f"on the {number} loop of its own it raised {describe_error(error)}"
            ) from error
        assert observations == expected, (
            f"on the {number} loop of its own it shows {short(observations)}, before {short(expected)}"
        )


def _asynchronous(subject: Subject) -> None:
    if not isinstance(subject.make(), SyncEnv):
        raise NotApplicable("it is no AsyncTextEnv")


def _played_on_a_loop(subject: Subject) -> tuple[list[Any], tuple[float, str]]:
    """The observations of a course on an event loop of its own, and its longest stretch without an await in
    seconds, with the method."""
    sync = subject.make()
    assert isinstance(sync, SyncEnv)
    env = sync.asynchronous
    longest = (0.0, "")

    async def asked(method: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal longest
        timed = Timed(getattr(env, method)(*args, **kwargs))
        answer = await timed
        longest = max(longest, (timed.longest_s, method))
        return answer

    async def course() -> list[Any]:
        try:
            observations = [(await asked("reset", seed=0))[0]]
            for item in _SCRIPT:
                reply = item if isinstance(item, str) else str(item)
                if not isinstance(item, str) and "legal_actions" in env.abilities():
                    legal = await asked("legal_actions")
                    reply = legal[item % len(legal)]
                observation, _, terminated, truncated, _ = await asked("step", reply)
                observations.append(observation)
                if terminated or truncated:
                    break
            return observations
        finally:
            await asked("close")

    with call("step", lambda: "a course on an event loop of its own"):
        return asyncio.run(course()), longest
