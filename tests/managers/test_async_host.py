"""Environments that are awaited in the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from envsdk.base.processes.call_watch import CALLS
from envsdk.contracts.env import EnvSpec, Info, Isolation
from envsdk.managers.env_host import EnvBlueprint, EpisodeFailed
from envsdk.managers.hosts import AsyncHost, open_host
from tests.managers.toy_envs import ASYNC_COUNTING, ASYNC_TROUBLESOME, COUNTING, AsyncCountingEnv


def host_of(spec: EnvSpec, step_timeout_s: float = 20.0, **env_config: object) -> AsyncHost:
    host = open_host(
        EnvBlueprint(
            spec=spec, env_config=env_config, isolation=Isolation.ASYNC, step_timeout_s=step_timeout_s
        )
    )
    assert isinstance(host, AsyncHost)
    return host


MADE: list[AsyncCountingEnv] = []


class RememberedEnv(AsyncCountingEnv):
    """Known to the test."""

    def __init__(self) -> None:
        super().__init__()
        MADE.append(self)


REMEMBERED = EnvSpec(id="toy/Remembered-v0", entry_point=RememberedEnv)


async def test_a_discarded_environment_is_closed_before_the_loop_ends() -> None:
    MADE.clear()
    host = host_of(REMEMBERED)
    await host.reset(0)
    host.discard()
    await host.reset(1)
    host.close()
    assert not MADE[-1].is_closed
    await host.closed()
    assert [env.is_closed for env in MADE] == [True, True]


class CountedEnv(AsyncCountingEnv):
    """Waits until all of `num_envs` are in their steps."""

    waiting = 0
    threads: set[int] = set()  # noqa: RUF012
    all_there: asyncio.Event

    def __init__(self, num_envs: int) -> None:
        super().__init__()
        self.num_envs = num_envs

    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        CountedEnv.waiting += 1
        CountedEnv.threads.add(threading.get_ident())
        if CountedEnv.waiting == self.num_envs:
            CountedEnv.all_there.set()
        await CountedEnv.all_there.wait()
        return await super().step(action)


async def test_hundreds_of_steps_wait_at_the_same_time_on_one_thread() -> None:
    CountedEnv.all_there = asyncio.Event()
    hosts = [host_of(EnvSpec(id="toy/Counted-v0", entry_point=CountedEnv), num_envs=200) for _ in range(200)]
    await asyncio.gather(*(host.reset(seed) for seed, host in enumerate(hosts)))
    answers = await asyncio.gather(*(host.step("go") for host in hosts))
    assert [answer[0] for answer in answers] == [f"seed {seed} turn 1" for seed in range(200)]
    assert CountedEnv.threads == {threading.get_ident()}
    for host in hosts:
        host.close()
        await host.closed()


class StubbornEnv(AsyncCountingEnv):
    """Swallows the cancellation of its step."""

    was_cancelled = False

    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        forever = asyncio.get_running_loop().create_future()
        for _ in range(2):
            try:
                await asyncio.shield(forever)
            except asyncio.CancelledError:
                StubbornEnv.was_cancelled = True
        return await super().step(action)


async def test_a_step_that_swallows_its_cancellation_is_abandoned() -> None:
    host = host_of(EnvSpec(id="toy/Stubborn-v0", entry_point=StubbornEnv), step_timeout_s=0.05)
    await host.reset(0)
    with pytest.raises(EpisodeFailed, match=r"step_timeout_s=0\.05"):
        await host.step("go")
    host.discard()
    assert (await host.reset(1))[0] == "seed 1 turn 0"
    host.close()
    await host.closed()
    assert StubbornEnv.was_cancelled


async def test_a_cancelled_caller_cancels_the_step() -> None:
    host = host_of(ASYNC_TROUBLESOME, how="hang")
    await host.reset(0)
    playing = asyncio.create_task(host.step("go"))
    await asyncio.sleep(0)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    host.close()
    await host.closed()
    assert len(asyncio.all_tasks()) == 1


async def test_a_close_that_hangs_is_given_up() -> None:
    host = host_of(ASYNC_TROUBLESOME, step_timeout_s=0.05, how="hang", where="close")
    await host.reset(0)
    host.close()
    await host.closed()


async def test_an_environment_that_is_not_awaited_is_refused() -> None:
    host = host_of(COUNTING)
    with pytest.raises(EpisodeFailed, match=r"no envsdk\.AsyncTextEnv") as caught:
        await host.reset(0)
    assert caught.value.failure.kind == "start_raised"
    host.close()


class LookingEnv(AsyncCountingEnv):
    """Looks whether its calls are watched as code that runs in the event loop."""

    seen: list[bool] = []  # noqa: RUF012
    outside: list[bool] = []  # noqa: RUF012

    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        self.seen.append(CALLS.is_loop_in_a_call)
        asyncio.get_running_loop().call_soon(lambda: self.outside.append(CALLS.is_loop_in_a_call))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.seen.append(CALLS.is_loop_in_a_call)
        return await super().step(action)


async def test_a_call_is_watched_as_one_in_the_event_loop_only_while_its_code_runs() -> None:
    host = host_of(EnvSpec(id="toy/Looking-v0", entry_point=LookingEnv))
    await host.reset(0)
    await host.step("go")
    assert (LookingEnv.seen, LookingEnv.outside) == ([True, True], [False])
    host.close()
    await host.closed()


@pytest.mark.parametrize("isolation", [Isolation.INLINE, Isolation.THREAD, Isolation.PROCESS])
async def test_an_async_environment_runs_with_any_isolation(isolation: Isolation) -> None:
    host = open_host(EnvBlueprint(spec=ASYNC_COUNTING, isolation=isolation))
    answers: list[Any] = [await host.reset(3), await host.step("go"), await host.oracle()]
    assert [answers[0][0], answers[1][0], answers[2]] == ["seed 3 turn 0", "seed 3 turn 1", "go"]
    host.close()
