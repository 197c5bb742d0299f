from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from envsdk.base.processes.interrupts import noticing_ctrl_c
from envsdk.contracts.env import EnvSpec, Info, Isolation
from envsdk.contracts.trajectory import Task
from envsdk.managers.env_host import EnvBlueprint, EpisodeFailed, reset_result, step_result
from envsdk.managers.hosts import open_host
from tests.by_day import by_day
from tests.managers.toy_envs import (
    ASYNC_COUNTING,
    ASYNC_TROUBLESOME,
    COUNTING,
    RAISED,
    TROUBLESOME,
    AsyncCountingEnv,
    CountingEnv,
)

EVERYWHERE = list(Isolation)
OUTSIDE = [Isolation.THREAD, Isolation.ASYNC, Isolation.PROCESS]
HERE = [Isolation.INLINE, Isolation.THREAD, Isolation.ASYNC]
CALLS = {
    "start": lambda host: host.reset(0),
    "reset": lambda host: host.reset(0),
    "step": lambda host: host.step("go"),
    "state_hash": lambda host: host.state_hash(),
}


def blueprint(isolation: Isolation, **env_config: object) -> EnvBlueprint:
    if isolation is Isolation.ASYNC:
        spec = ASYNC_TROUBLESOME if env_config else ASYNC_COUNTING
    else:
        spec = TROUBLESOME if env_config else COUNTING
    return EnvBlueprint(
        spec=spec, env_config=env_config, isolation=isolation, reset_timeout_s=20.0, step_timeout_s=0.5
    )


@pytest.mark.parametrize("isolation", EVERYWHERE)
async def test_an_episode_is_the_same_wherever_it_runs(isolation: Isolation) -> None:
    host = open_host(blueprint(isolation))
    try:
        assert await host.reset(7) == ("seed 7 turn 0", {})
        assert await host.oracle() == "go"
        assert list(await host.legal_actions()) == ["go"]
        assert await host.state_hash() == "7/0"
        observation, reward, terminated, truncated, info = await host.step("go")
        assert (observation, reward, terminated, truncated) == ("seed 7 turn 1", 0.0, False, False)
        assert info["metrics"] == {"action_length": 2.0}
    finally:
        host.close()


@pytest.mark.parametrize("isolation", EVERYWHERE)
@pytest.mark.parametrize("where", ["reset", "step", "state_hash"])
async def test_an_exception_is_put_down_to_the_environment(isolation: Isolation, where: str) -> None:
    host = open_host(blueprint(isolation, how="raise", where=where))
    try:
        if where != "reset":
            await host.reset(0)
        with pytest.raises(EpisodeFailed) as caught:
            await CALLS[where](host)
        failure = caught.value.failure
        assert (failure.boundary, failure.kind) == ("environment", f"{where}_raised")
        assert "the lake is closed" in failure.message
    finally:
        host.close()


FAULTS = list(product(EVERYWHERE, ["start", "reset", "step", "state_hash"], ["exit", "run_out", *RAISED]))
FAULTS_BY_DAY = [
    each for each in FAULTS if each[0] is not Isolation.PROCESS or "step" in each or "exit" in each
]
"""In a process each takes one more to be started."""


@pytest.mark.parametrize(("isolation", "where", "how"), by_day(FAULTS_BY_DAY, FAULTS))
async def test_no_kind_of_exception_leaves_the_environment(
    isolation: Isolation, where: str, how: str, signals_are_noticed: None
) -> None:
    host = open_host(blueprint(isolation, how=how, where=where))
    try:
        if where in ("step", "state_hash"):
            await host.reset(0)
        with pytest.raises(EpisodeFailed) as caught:
            await CALLS[where](host)
        failure = caught.value.failure
        assert (failure.boundary, failure.kind) == ("environment", f"{where}_raised")
        assert failure.message.startswith(type(RAISED.get(how, RAISED["raise_mute"])).__name__) or how in (
            "exit",
            "run_out",
        )
        assert len(failure.message) <= 500
        assert failure.message.isprintable()
        host.discard()
        if where != "start":
            with pytest.raises(EpisodeFailed) if where == "reset" else contextlib.nullcontext():
                await host.reset(1)
    finally:
        host.close()


@pytest.fixture
def signals_are_noticed() -> Iterator[None]:
    with noticing_ctrl_c(lambda: False):
        yield


@pytest.mark.parametrize("verb", ["oracle", "legal_actions", "close"])
@pytest.mark.parametrize("isolation", EVERYWHERE)
async def test_an_interrupt_raised_by_any_method_is_the_environment_s(
    isolation: Isolation, verb: str, signals_are_noticed: None
) -> None:
    kind = "AsyncInterruptingEnv" if isolation is Isolation.ASYNC else "InterruptingEnv"
    spec = EnvSpec(id="toy/Interrupting-v0", entry_point=f"tests.managers.test_env_host:{kind}")
    host = open_host(EnvBlueprint(spec=spec, isolation=isolation))
    await host.reset(0)
    if verb != "close":
        with pytest.raises(EpisodeFailed) as caught:
            await getattr(host, verb)()
        assert caught.value.failure.kind == f"{verb}_raised"
    host.close()
    await host.closed()


class AsyncInterruptingEnv(AsyncCountingEnv):
    """As if the user had pressed Ctrl-C."""

    async def oracle(self) -> str:
        raise KeyboardInterrupt

    async def legal_actions(self) -> list[str]:
        raise KeyboardInterrupt

    async def close(self) -> None:  # type: ignore[override]
        raise KeyboardInterrupt


class InterruptingEnv(CountingEnv):
    """As if the user had pressed Ctrl-C."""

    def oracle(self) -> str:
        raise KeyboardInterrupt

    def legal_actions(self) -> list[str]:
        raise KeyboardInterrupt

    def close(self) -> None:
        raise KeyboardInterrupt


class Vicious(str):
    """Text whose methods raise."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __format__ = split = encode = __len__ = __getitem__ = __str__  # type: ignore[assignment]


class ViciousEnv(CountingEnv):
    """Gives nothing but text with methods of its own."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        return Vicious("start"), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return Vicious("next"), 0.0, False, False, {}

    def oracle(self) -> str:
        return Vicious("go")

    def legal_actions(self) -> list[str]:
        return [Vicious("go")]


@pytest.mark.parametrize("isolation", [Isolation.INLINE, Isolation.THREAD])
async def test_text_leaves_the_environment_without_its_code(isolation: Isolation) -> None:
    host = open_host(
        EnvBlueprint(spec=EnvSpec(id="toy/Vicious-v0", entry_point=ViciousEnv), isolation=isolation)
    )
    try:
        observation, _ = await host.reset(0)
        following, _, _, _, _ = await host.step("go")
        texts = [observation, following, await host.oracle(), *await host.legal_actions()]
        assert {type(text) for text in texts} == {str}
        assert texts == ["start", "next", "go", "go"]
    finally:
        host.close()


@pytest.mark.parametrize("how", ["raise", "exit"])
@pytest.mark.parametrize("isolation", HERE)
async def test_an_environment_that_cannot_be_closed_is_thrown_away(isolation: Isolation, how: str) -> None:
    host = open_host(blueprint(isolation, how=how, where="close"))
    await host.reset(0)
    host.discard()
    assert (await host.reset(1))[0] == "seed 1 turn 0"
    host.close()


@pytest.mark.parametrize("isolation", EVERYWHERE)
async def test_an_error_that_names_a_boundary_is_put_down_to_it(isolation: Isolation) -> None:
    host = open_host(blueprint(isolation, how="break_sandbox", where="step"))
    try:
        await host.reset(0)
        with pytest.raises(EpisodeFailed, match="the lake is dry") as caught:
            await host.step("go")
        assert (caught.value.failure.boundary, caught.value.failure.kind) == ("sandbox", "step_raised")
    finally:
        host.close()


@pytest.mark.parametrize("isolation", EVERYWHERE)
async def test_an_environment_that_lists_its_tasks_is_told_which_one_to_play(isolation: Isolation) -> None:
    task = Task(tag="toy", split="val", index=17)
    spec = replace(ASYNC_COUNTING if isolation is Isolation.ASYNC else COUNTING, lists_tasks=True)
    host = open_host(EnvBlueprint(spec=spec, isolation=isolation))
    try:
        options = host.blueprint.reset_options(task)
        assert await host.reset(7, options) == ("seed 7 turn 0", {"task": 17})
    finally:
        host.close()
    assert blueprint(isolation).reset_options(task) is None
    trains = replace(host.blueprint, trains=True)
    assert trains.reset_options(task) == {"task": 17}
    assert trains.reset_options(replace(task, split="train")) == {"task": 17, "training": True}


@pytest.mark.parametrize("isolation", EVERYWHERE)
@pytest.mark.parametrize("where", ["reset", "step", "state_hash"])
async def test_an_answer_that_breaks_the_contract_fails_the_episode_and_is_shown(
    isolation: Isolation, where: str
) -> None:
    host = open_host(blueprint(isolation, how="lie", where=where))
    try:
        if where != "reset":
            await host.reset(0)
        with pytest.raises(EpisodeFailed, match=r"None|7") as caught:
            await CALLS[where](host)
        assert caught.value.failure.kind == f"{where}_invalid"
    finally:
        host.close()


class Unreadable:
    """No number, no truth and no text."""

    def __float__(self) -> float:
        raise RuntimeError("no number")

    __bool__ = __repr__ = __float__  # type: ignore[assignment]


BREACHES: dict[str, dict[str, Any]] = {
    "a reward that is no number": {"reward": "a lot"},
    "a reward that is not finite": {"reward": float("nan")},
    "a reward beyond all floats": {"reward": 10**400},
    "a reward that raises": {"reward": Unreadable()},
    "an end that raises": {"terminated": Unreadable()},
    "several ends": {"truncated": np.array([True, False])},
    "several successes": {"info": {"success": np.array([True, False])}},
    "metrics that are a list": {"info": {"metrics": [1.0]}},
    "a metric that is no number": {"info": {"metrics": {"score": "high"}}},
    "a metric that is not a number": {"info": {"metrics": {"score": float("nan")}}},
    "a metric that is infinite": {"info": {"metrics": {"score": np.float32("inf")}}},
    "a metric that is None": {"info": {"metrics": {"score": None}}},
}


def step_answer(**changes: Any) -> tuple[Any, ...]:
    parts: dict[str, Any] = {
        "observation": "",
        "reward": 1,
        "terminated": False,
        "truncated": False,
        "info": {},
    }
    return tuple((parts | changes).values())


@pytest.mark.parametrize("breach", BREACHES)
def test_what_would_break_a_batch_fails_its_own_episode(breach: str) -> None:
    with pytest.raises(EpisodeFailed) as caught:
        step_result(step_answer(**BREACHES[breach]))
    assert caught.value.failure.kind == "step_invalid"
    assert len(caught.value.failure.message) <= 500


def test_numbers_of_any_kind_become_plain_ones() -> None:
    info = {"success": np.True_, "metrics": {"score": np.float32(0.5), "is_valid": True}}
    answer = step_answer(reward=np.int64(2), terminated=np.True_, info=info)
    _, reward, terminated, truncated, plain = step_result(answer)
    assert [type(part) for part in (reward, terminated, truncated)] == [float, bool, bool]
    assert (reward, terminated, truncated) == (2.0, True, False)
    assert plain["success"] is True
    assert {type(value) for value in plain["metrics"].values()} == {float}
    assert plain["metrics"]["score"] == 0.5


@pytest.mark.parametrize("tools", ["search", 7, [1], {"name": "search"}])
def test_tools_that_are_no_list_of_functions_fail_the_episode(tools: object) -> None:
    with pytest.raises(EpisodeFailed) as caught:
        reset_result(("", {"tools": tools}))
    assert caught.value.failure.kind == "reset_invalid"


@pytest.mark.parametrize("history", ["hi", [1], [{"role": "user"}], [{"role": "user", "content": 7}]])
def test_a_history_of_no_messages_fails_the_episode(history: object) -> None:
    with pytest.raises(EpisodeFailed) as caught:
        reset_result(("", {"history": history}))
    assert caught.value.failure.kind == "reset_invalid"


def test_details_become_json_text() -> None:
    *_, info = step_result(step_answer(info={"details": {"verdict": "7 is not 12", "parts": {"right": 0.0}}}))
    assert json.loads(info["details"]) == {"verdict": "7 is not 12", "parts": {"right": 0.0}}


class WrongAbilitiesEnv(CountingEnv):
    """Its abilities answer what they are told to."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def oracle(self) -> str:
        return self.answer  # type: ignore[no-any-return]

    def legal_actions(self) -> list[str]:
        return self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize("isolation", [Isolation.INLINE, Isolation.THREAD])
@pytest.mark.parametrize("answer", [None, [], "go", ["go", None], 7])
async def test_abilities_that_break_the_contract_fail_the_episode(isolation: Isolation, answer: Any) -> None:
    spec = EnvSpec(id="toy/WrongAbilities-v0", entry_point=WrongAbilitiesEnv)
    host = open_host(EnvBlueprint(spec=spec, env_config={"answer": answer}, isolation=isolation))
    try:
        await host.reset(0)
        with pytest.raises(EpisodeFailed) as caught:
            await host.legal_actions()
        assert caught.value.failure.kind == "legal_actions_invalid"
        if answer == "go":
            assert await host.oracle() == "go"
        else:
            with pytest.raises(EpisodeFailed) as caught:
                await host.oracle()
            assert caught.value.failure.kind == "oracle_invalid"
    finally:
        host.close()


class Unpicklable(Exception):
    """Like many an exception: it can be pickled, and not be read back."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)


class TellingEnv(CountingEnv):
    """Puts an exception into `info`."""

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "error": Unpicklable(3, "slipped")}


async def test_what_cannot_cross_a_process_boundary_fails_the_episode() -> None:
    spec = EnvSpec(id="toy/Telling-v0", entry_point="tests.managers.test_env_host:TellingEnv")
    host = open_host(EnvBlueprint(spec=spec, isolation=Isolation.PROCESS))
    try:
        await host.reset(0)
        with pytest.raises(EpisodeFailed, match="Unpicklable") as caught:
            await host.step("go")
        assert (caught.value.failure.boundary, caught.value.failure.kind) == (
            "environment",
            "step_unreadable",
        )
    finally:
        host.close()


@pytest.mark.parametrize("isolation", OUTSIDE)
async def test_a_hung_step_ends_at_its_deadline_and_stalls_nobody(isolation: Isolation) -> None:
    hung, well = open_host(blueprint(isolation, how="hang")), open_host(blueprint(Isolation.INLINE))
    try:
        await hung.reset(0)
        hanging = asyncio.ensure_future(hung.step("go"))
        await well.reset(1)
        for _ in range(3):
            await well.step("go")
        assert not hanging.done()
        with pytest.raises(EpisodeFailed, match=r"step_timeout_s=0\.5") as caught:
            await hanging
        assert caught.value.failure.kind == "step_timeout"
    finally:
        hung.close()


async def test_a_process_that_dies_is_a_failed_episode_and_the_next_reset_works() -> None:
    host = open_host(blueprint(Isolation.PROCESS, how="die", share=0.5))
    try:
        await host.reset(10)
        with pytest.raises(EpisodeFailed) as caught:
            await host.step("go")
        assert caught.value.failure.kind == "process_died"
        host.discard()
        assert (await host.reset(77))[0] == "seed 77 turn 0"
        assert (await host.step("go"))[0] == "seed 77 turn 1"
    finally:
        host.close()
