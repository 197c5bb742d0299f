"""`envsdk.rollout` and `rollout_sync`: environments, tasks, groups, streaming, checks of arguments."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk.config import load_config
from envsdk.contracts.env import Info

LAKE = "envsdk/FrozenLake-v1"


class Counter(envsdk.TextEnv):
    """Three replies and it is over; counts the instances that are open."""

    open_instances = 0

    def __init__(self, turns: int = 3, on_close: Callable[[], None] | None = None) -> None:
        self.turns = turns
        self.on_close = on_close
        type(self).open_instances += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        super().reset(seed=seed, options=options)
        self.played = 0
        return f"seed {seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self.played += 1
        is_over = self.played == self.turns
        return f"after {action}", float(is_over), is_over, False, {"success": is_over}

    def close(self) -> None:
        type(self).open_instances -= 1
        if self.on_close is not None:
            self.on_close()


class AsyncCounter(envsdk.AsyncTextEnv):
    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        await super().reset(seed=seed, options=options)
        return "go", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        await asyncio.sleep(0)
        return "done", 1.0, True, False, {"success": True}


def go(observation: str) -> str:
    return "go"


async def go_async(observation: str) -> str:
    return "go"


@pytest.mark.parametrize(
    ("env", "tag"),
    [
        ("FrozenLake", LAKE),
        (Counter, "local/Counter-v0"),
        (AsyncCounter, "local/AsyncCounter-v0"),
        (lambda: Counter(2), "local/lambda-v0"),
        (lambda: AsyncCounter(), "local/lambda-v0"),
        (envsdk.EnvSpec(id="mine/Counter-v3", entry_point=Counter), "mine/Counter-v3"),
        (
            envsdk.EnvSpec(id="mine/Slow-v0", entry_point=Counter, isolation=envsdk.Isolation.THREAD),
            "mine/Slow-v0",
        ),
    ],
)
def test_an_environment_is_an_id_a_class_a_function_or_a_spec(env: Any, tag: str) -> None:
    played = envsdk.rollout_sync(env, policy=go_async, tasks=3)
    assert [each.failure for each in played] == [None] * 3
    assert {each.task.tag for each in played} == {tag}
    assert tag == LAKE or tag not in {spec.id for spec in envsdk.list_specs()}


def test_a_yaml_and_a_configuration_play_their_tags() -> None:
    config = load_config("agentic_async.yaml", for_training=False).config
    for source in ("agentic_async.yaml", config):
        played = envsdk.rollout_sync(source, policy="oracle", tasks=4)
        assert {each.task.tag for each in played} == {"FrozenLake", "SimpleSokoban"}
        assert played.success_rate == 1
    (one,) = envsdk.rollout_sync(config, policy="oracle", tasks=1, tags=["SimpleSokoban"])
    assert one.task.tag == "SimpleSokoban"
    assert one.to_messages()[0]["role"] == "system"


def test_env_config_holds_objects_of_any_type() -> None:
    closed = threading.Event()
    (played,) = envsdk.rollout_sync(
        Counter, policy=go, tasks=1, env_config={"turns": 2, "on_close": closed.set}
    )
    assert len(played.turns) == 2
    assert closed.is_set()
    (larger,) = envsdk.rollout_sync(LAKE, policy="oracle", tasks=1, env_config={"size": 6})
    assert larger.turns[0].observation.count("\n") == 6


def test_prompts_and_their_reward_are_checked_in_env_config(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1=", "ground_truth": "1"}\n')
    prompts: dict[str, Any] = {"files": [str(rows)], "reward": {"worker_cls": "exact"}}
    (played,) = envsdk.rollout_sync("envsdk/Prompts-v1", policy="oracle", tasks=1, env_config=prompts)
    assert played.success
    for wrong, said in (
        ({"files": [str(tmp_path / "none.jsonl")]}, "env_config.files: .*there is no file of prompts"),
        ({"reward": "exactt"}, "env_config.reward.worker_cls: .*did you mean `exact`"),
    ):
        with pytest.raises(envsdk.ConfigurationError, match=said):
            envsdk.rollout_sync("Prompts", policy="oracle", tasks=1, env_config=prompts | wrong)


def test_members_of_a_group_share_the_task_and_differ_in_their_seed() -> None:
    seeds: dict[str, list[int]] = {}

    def note(observation: str, context: envsdk.TurnContext) -> str:
        seeds.setdefault(observation, []).append(context.seed)
        return "go"

    played = envsdk.rollout_sync(Counter, policy=note, tasks=[5, 9], group_size=4, env_config={"turns": 1})
    assert [each.task.index for each in played] == [5] * 4 + [9] * 4
    assert [each.group_id for each in played] == [0] * 4 + [1] * 4
    assert [len(set(each)) for each in seeds.values()] == [4, 4]
    before = {name: sorted(each) for name, each in seeds.items()}
    seeds.clear()
    envsdk.rollout_sync(Counter, policy=note, tasks=[5, 9], group_size=4, env_config={"turns": 1})
    assert {name: sorted(each) for name, each in seeds.items()} == before


@settings(max_examples=30)
@given(
    tasks=st.one_of(
        st.integers(1, 12),
        st.lists(st.integers(0, 50), min_size=1, max_size=8),
        st.builds(range, st.integers(0, 5), st.integers(6, 12)),
    ),
    group_size=st.integers(1, 3),
    concurrency=st.integers(1, 5),
    as_iterator=st.booleans(),
)
def test_each_task_is_played_as_often_as_its_group_is_large(
    tasks: Any, group_size: int, concurrency: int, as_iterator: bool
) -> None:
    indices = list(range(tasks)) if isinstance(tasks, int) else list(tasks)
    given_tasks = iter(indices) if as_iterator else tasks
    arguments: dict[str, Any] = {"group_size": group_size, "concurrency": concurrency, "split": "mine"}
    played = envsdk.rollout_sync(Counter, policy=go_async, tasks=given_tasks, **arguments)
    assert [each.task.index for each in played] == [index for index in indices for _ in range(group_size)]
    assert [each.group_id for each in played] == [at // group_size for at in range(len(played))]

    async def stream() -> list[envsdk.Trajectory]:
        return [each async for each in envsdk.rollout(Counter, policy=go_async, tasks=indices, **arguments)]

    streamed = asyncio.run(stream())
    assert sorted(each.trajectory_id for each in streamed) == sorted(each.trajectory_id for each in played)
    assert {each.task.split for each in streamed} == {"mine"}


def test_tasks_may_be_task_objects_and_numpy_indices() -> None:
    task = envsdk.Task(tag=LAKE, split="val", index=7)
    assert envsdk.rollout_sync(LAKE, policy="oracle", tasks=[task])[0].task == task
    played = envsdk.rollout_sync(LAKE, policy="oracle", tasks=np.array([3, 1]))
    assert [each.task.index for each in played] == [3, 1]


async def test_a_slow_consumer_holds_play_up() -> None:
    started = 0

    async def note(observation: str) -> str:
        nonlocal started
        started += 1
        return "go"

    stream = envsdk.rollout(
        Counter, policy=note, tasks=itertools.count(), concurrency=4, env_config={"turns": 1}
    )
    async with aclosing(stream):
        for taken in range(1, 30):
            await anext(stream)
            for _ in range(50):
                await asyncio.sleep(0)
            assert started <= taken + 16 + 4
    assert started > 29


async def test_leaving_the_loop_ends_episodes_and_closes_environments() -> None:
    is_waiting = asyncio.Event()
    ended = asyncio.Event()

    async def wait_forever(observation: str, context: envsdk.TurnContext) -> str:
        if observation == "after first":
            is_waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
        return "first" if context.session_id != "train-0" else "go"

    Counter.open_instances = 0
    stream = envsdk.rollout(Counter, policy=wait_forever, tasks=5, concurrency=2)
    async with aclosing(stream):
        await anext(stream)
        await is_waiting.wait()
    assert ended.is_set()
    assert Counter.open_instances == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_break_alone_ends_play_as_well() -> None:
    Counter.open_instances = 0
    async for _ in envsdk.rollout(Counter, policy=go_async, tasks=itertools.count()):
        break
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert Counter.open_instances == 0


async def test_two_rollouts_run_at_once_in_one_loop() -> None:
    met = asyncio.Barrier(2)

    async def meet(observation: str, context: envsdk.TurnContext) -> str:
        if context.turn_index == 0 and context.session_id == "train-0":
            await met.wait()
        return "go"

    async def play() -> int:
        return len([each async for each in envsdk.rollout(Counter, policy=meet, tasks=4)])

    assert await asyncio.gather(play(), play()) == [4, 4]


async def test_rollout_sync_works_where_a_loop_runs() -> None:
    assert envsdk.rollout_sync(LAKE, policy="oracle", tasks=3).success_rate == 1


def test_ctrl_c_ends_rollout_sync() -> None:
    is_cancelled = threading.Event()

    async def press(observation: str) -> str:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()
        return "go"

    Counter.open_instances = 0
    with pytest.raises(KeyboardInterrupt):
        envsdk.rollout_sync(Counter, policy=press, tasks=1)
    assert is_cancelled.is_set()
    assert Counter.open_instances == 0


def test_nothing_is_played_before_the_first_trajectory_is_asked_for() -> None:
    Counter.open_instances = 0
    envsdk.rollout(Counter, policy=go, tasks=4)
    assert Counter.open_instances == 0


class _Uncountable:
    pass


def _one_keyword(*, observation: str) -> str:
    return observation


@pytest.mark.parametrize(
    ("env", "arguments", "said"),
    [
        ("FrozenLak", {}, "did you mean `envsdk/FrozenLake-v1`"),
        (7, {}, "env: expected an id"),
        (dict, {}, "no subclass of envsdk.TextEnv"),
        (Counter(), {}, "is one environment"),
        (lambda: 3, {}, "the function made a int"),
        (lambda: 1 / 0, {}, "cannot be made: ZeroDivisionError"),
        (LAKE, {"policy": "orcle"}, "did you mean `oracle`"),
        (LAKE, {"policy": 3}, "policy: expected a function"),
        (LAKE, {"policy": envsdk.Policy}, "Policy is a class"),
        (LAKE, {"policy": lambda: "x"}, "cannot be called with an observation"),
        (LAKE, {"policy": lambda a, b, c: "x"}, "cannot be called with an observation"),
        (LAKE, {"policy": _one_keyword}, "cannot be called with an observation"),
        (LAKE, {"policy": "model"}, "policy model needs model"),
        (LAKE, {"policy": "scripted"}, "give a function instead"),
        (LAKE, {"policy": "http://127.0.0.1:1/v1"}, "needs the model's name"),
        (LAKE, {"policy": Path("nowhere")}, "model: there is no folder nowhere"),
        (LAKE, {"policy": "runs/nowhere"}, "policy: there is no folder runs/nowhere"),
        (LAKE, {"model": "gpt"}, "model is for a client, a URL"),
        (LAKE, {"sampling": {"temperature": 1}}, "this policy samples no tokens"),
        (
            Counter,
            {"policy": "oracle"},
            "policy oracle: local/Counter-v0 (tag local/Counter-v0) has no `oracle()`",
        ),
        (LAKE, {"tasks": 0}, "tasks: at least one"),
        (LAKE, {"tasks": []}, "tasks: there is none"),
        (LAKE, {"tasks": "ab"}, "tasks: a number"),
        (LAKE, {"tasks": _Uncountable()}, "tasks: a number"),
        (LAKE, {"tasks": [1, -1]}, "tasks: -1 is neither"),
        (LAKE, {"tasks": [1, True]}, "tasks: True is neither"),
        (LAKE, {"tasks": [envsdk.Task(tag="x", split="train", index=0)]}, "tag 'x' is not played"),
        (LAKE, {"group_size": 0}, "group_size: must be a whole number of at least 1"),
        (LAKE, {"concurrency": 1.5}, "concurrency: must be a whole number"),
        (LAKE, {"retries": -1}, "retries: must be"),
        (LAKE, {"seed": -1}, "seed: must be"),
        (LAKE, {"split": ""}, "split: name a split"),
        (LAKE, {"overrides": "size=6"}, "overrides: give a list"),
        (LAKE, {"overrides": ["sise=6"]}, "sise"),
        (LAKE, {"env_config": {"sise": 6}}, "Did you mean 'size'?"),
        (LAKE, {"tags": ["x"]}, "tags: envsdk/FrozenLake-v1 has no tag `x`"),
        ("agentic_async.yaml", {"env_config": {"size": 6}}, "custom_envs.TAG.env_config"),
    ],
)
def test_a_wrong_argument_is_named_at_the_call(env: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(envsdk.ConfigurationError) as raised:
        envsdk.rollout(env, **{"policy": "oracle", **arguments})
    assert said in str(raised.value)


async def test_a_wrong_task_of_an_iterator_ends_the_rollout_where_it_is_reached() -> None:
    async def play() -> list[envsdk.Trajectory]:
        return [each async for each in envsdk.rollout(Counter, policy=go_async, tasks=iter([0, 1, -1]))]

    with pytest.raises(envsdk.ConfigurationError, match="tasks: -1 is neither"):
        await play()


def test_a_rollout_of_which_most_failed_says_so_once() -> None:
    def sometimes(observation: str, context: envsdk.TurnContext) -> str:
        if context.turn_index == 0 and context.seed % 4:
            raise ValueError("no idea")
        return "<answer>Right</answer>"

    with pytest.warns(RuntimeWarning, match=r"\d+ of 64 episodes failed: rates and means are of") as warned:
        found = envsdk.rollout_sync("envsdk/FrozenLake-v1", policy=sometimes, tasks=64)
    assert len(found.failed) > 32
    assert len(warned) == 1
    assert f"of {64 - len(found.failed)}," in repr(found)
