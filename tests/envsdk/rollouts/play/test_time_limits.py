"""Time limits of a rollout's policy, and progress: what hangs fails its episode and nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk.contracts.failures import Boundary, RolloutStalled
from envsdk.contracts.trajectory import Turn
from envsdk.rollouts.play.time_limits import TimeLimits
from tests.envsdk.rollouts.play.test_rollout import Counter

LIMIT_S = 1.0


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Lets threads that hang end with the test."""
    event = threading.Event()
    yield event
    event.set()


def _context(num_turns: int = 0, seconds: float = 0.0) -> envsdk.TurnContext:
    turn = Turn(
        observation="",
        reply="",
        reward=0.0,
        response_start=0,
        response_end=0,
        generate_s=seconds,
        env_s=seconds,
    )
    return envsdk.TurnContext(
        system="",
        prompt="",
        observation="",
        turn_index=num_turns,
        num_actions_left=1,
        env=None,  # type: ignore[arg-type]
        seed=0,
        log=envsdk.TokenLog(),
        session_id="train-0",
        turns=[turn] * num_turns,
    )


_seconds = st.none() | st.integers(1, 50).map(float)


@given(_seconds, _seconds, _seconds, st.integers(0, 5), st.integers(0, 100))
def test_the_nearest_limit_holds_and_is_named(
    turn_s: float | None, episode_s: float | None, rollout_s: float | None, num_turns: int, passed: int
) -> None:
    now = [0.0]
    limits = TimeLimits(turn_s=turn_s, episode_s=episode_s, rollout_s=rollout_s, clock=lambda: now[0])
    assert bool(limits) is ((turn_s, episode_s, rollout_s) != (None, None, None))
    limits.start()
    now[0] = float(passed)
    assert limits.is_over is (rollout_s is not None and passed >= rollout_s)
    if limits:
        left_s, failure = limits.of(_context(num_turns, seconds=2.0))
        left = {
            f"turn_timeout_s={turn_s or 0:g}": turn_s,
            f"episode_timeout_s={episode_s or 0:g}": None if episode_s is None else episode_s - 4 * num_turns,
            f"timeout_s={rollout_s or 0:g} of the rollout": None if rollout_s is None else rollout_s - passed,
        }
        known = {name: seconds for name, seconds in left.items() if seconds is not None}
        assert left_s == min(known.values())
        assert any(name in failure.message for name, seconds in known.items() if seconds == left_s)


async def _hang(observation: str, context: envsdk.TurnContext) -> str:
    if context.session_id == "train-1":
        await asyncio.Event().wait()
    return "go"


async def _hang_in_spite_of_cancellation(observation: str, context: envsdk.TurnContext) -> str:
    while context.session_id == "train-1":
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if context.turn_index == 0:  # heeds the second one, so that the loop can end
                context = replace(context, turn_index=1)
            else:
                raise
    return "go"


@pytest.mark.parametrize("policy", [_hang, _hang_in_spite_of_cancellation])
def test_a_hanging_coroutine_fails_its_episode(policy: Callable[..., Any]) -> None:
    played = envsdk.rollout_sync(Counter, policy=policy, tasks=4, turn_timeout_s=LIMIT_S)
    assert [str(each.failure) for each in played.failed] == [
        "policy/timeout: no reply within turn_timeout_s=1"
    ]
    assert played[1].failure is not None
    assert played.success_rate == 1.0


def test_threads_that_hang_keep_none_from_the_other_episodes(released: threading.Event) -> None:
    def hang(observation: str, context: envsdk.TurnContext) -> str:
        if context.session_id in ("train-1", "train-2"):
            released.wait()
        return "go"

    played = envsdk.rollout_sync(Counter, policy=hang, tasks=12, concurrency=2, turn_timeout_s=LIMIT_S)
    assert [each.trajectory_id for each in played.failed] == ["train-1", "train-2"]
    assert [len(each.turns) for each in played if each.failure is None] == [3] * 10


def test_a_coroutine_that_blocks_the_loop_is_told_what_to_be() -> None:
    async def block(observation: str) -> str:
        time.sleep(0.02)  # noqa: ASYNC251 - what is tested
        return "go"

    (failed,) = envsdk.rollout_sync(Counter, policy=block, tasks=1, turn_timeout_s=0.01)
    assert failed.failure is not None
    assert "must be a plain function" in failed.failure.message


def test_an_episode_that_takes_too_long_keeps_its_turns() -> None:
    async def play(observation: str, context: envsdk.TurnContext) -> str:
        if context.turn_index == 2:
            await asyncio.Event().wait()
        return "go"

    (failed,) = envsdk.rollout_sync(Counter, policy=play, tasks=1, episode_timeout_s=LIMIT_S)
    assert str(failed.failure) == "policy/timeout: turn 3 had no reply within episode_timeout_s=1"
    assert [turn.reply for turn in failed.turns] == ["go", "go"]


def test_when_its_time_is_over_a_rollout_returns_what_was_begun() -> None:
    with pytest.warns(RuntimeWarning, match=r"timeout_s=1.0 of the rollout was over: 2 episodes had begun"):
        played = envsdk.rollout_sync(
            Counter, policy=_hang, tasks=range(9), concurrency=1, timeout_s=LIMIT_S, retries=3
        )
    assert [each.failure and each.failure.boundary for each in played] == [None, Boundary.SCHEDULER]


def test_late_replies_of_all_first_episodes_end_the_rollout() -> None:
    async def hang(observation: str) -> str:
        await asyncio.Event().wait()
        return "go"

    with pytest.raises(RolloutStalled, match="first 16 episodes: no reply within turn_timeout_s"):
        envsdk.rollout_sync(Counter, policy=hang, tasks=99, turn_timeout_s=LIMIT_S)


@pytest.mark.parametrize("error", [StopIteration, asyncio.CancelledError])
def test_with_a_limit_an_async_function_fails_as_without(error: type[BaseException]) -> None:
    async def play(observation: str) -> str:
        raise error("own words")

    played = [
        envsdk.rollout_sync(Counter, policy=play, tasks=1, turn_timeout_s=limit)[0] for limit in (None, 60.0)
    ]
    kinds = [each.failure and (each.failure.boundary, each.failure.kind) for each in played]
    assert kinds[0] == kinds[1]
    assert kinds[0] is not None


def test_a_program_whose_policy_hangs_on_a_thread_ends() -> None:
    code = """if True:
        import threading, envsdk
        print(envsdk.rollout_sync("FrozenLake", policy=lambda seen: threading.Event().wait(), tasks=1,
                                  turn_timeout_s=0.1)[0].failure)"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "policy/timeout: no reply within turn_timeout_s=0.1\n"


def test_progress_is_lines_on_stderr_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    envsdk.rollout_sync("FrozenLake", policy="oracle", tasks=3, group_size=2, progress=True)
    shown = capsys.readouterr()
    first, last = shown.err.splitlines()
    assert (first, shown.out) == ("rollout: 0/6", "")
    assert last.startswith("rollout: 6/6 ")
    envsdk.rollout_sync("FrozenLake", policy="oracle", tasks=iter(range(2)), progress=True)
    assert capsys.readouterr().err.startswith("rollout: 0/?\nrollout: 2/? ")
