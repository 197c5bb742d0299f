"""What training does with tasks whose tests hide little."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from envsdk.base.registry import notes
from envsdk.config import explain, load_config
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe import SPEC
from envsdk.envs.swe.task_list import TaskList, WeakTasks, task_to_train_on
from envsdk.envs.swe.tasks.shipped import shipped_tasks
from envsdk.envs.swe.tasks.task import Task
from envsdk.managers.wiring import VAL_SPLIT, worker_setups
from tests.envs.swe.test_swe_commands import ROW
from tests.envs.swe.toy_tasks import MakeEnv

TASKS = TaskList(shipped_tasks("train"))
WEAK = {task.instance_id for task in TASKS.tasks[::2]}
HARD_TO_GUESS, EASY_TO_GUESS = 20.0, 2.0


async def played(how: WeakTasks, weak: set[str] = WEAK, rounds: int = 50) -> Counter[str]:
    async def bits_of(task: Task) -> float | None:
        return EASY_TO_GUESS if task.instance_id in weak else HARD_TO_GUESS

    numbers = range(rounds * len(TASKS))
    found = [await task_to_train_on(TASKS, number, how, bits_of) for number in numbers]
    again = [await task_to_train_on(TASKS, number, how, bits_of) for number in numbers]
    assert found == again
    return Counter(task.instance_id for task in found)


async def test_weak_tasks_are_refused_and_others_take_their_place_alike() -> None:
    counts = await played("refuse")
    assert not counts.keys() & WEAK
    assert len(counts) == len(TASKS) - len(WEAK)
    assert max(counts.values()) < 2 * min(counts.values())


async def test_weak_tasks_are_played_as_often_as_they_hide_bits() -> None:
    counts = await played("down_weight", rounds=200)
    share = sum(counts[name] for name in WEAK) / (200 * len(WEAK))
    assert 0.2 < share < 0.3


async def test_weak_tasks_may_be_played_as_any_other() -> None:
    assert set((await played("pay")).values()) == {50}


async def test_a_file_of_weak_tasks_alone_is_refused() -> None:
    everything = {task.instance_id for task in TASKS.tasks}
    with pytest.raises(ConfigurationError, match=r"all 16 tasks are weak.*weak_tasks: pay"):
        await played("refuse", everything)
    assert len(await played("down_weight", everything)) == len(TASKS)


async def test_a_task_of_which_nothing_is_known_is_played() -> None:
    async def bits_of(task: Task) -> None:
        return None

    assert await task_to_train_on(TASKS, 3, "refuse", bits_of) is TASKS.at(3)


def rows(folder: Path, *bits: float | None) -> str:
    file = folder / "tasks.jsonl"
    with file.open("w") as out:
        for number, known in enumerate(bits):
            metadata = {} if known is None else {"hidden_bits": known}
            made = {**ROW["envsdk"], "metadata": metadata}  # type: ignore[dict-item]
            out.write(json.dumps({**ROW, "instance_id": f"calc__{number}", "envsdk": made}) + "\n")
    return str(file)


def test_how_many_tasks_are_weak_is_said_before_training(tmp_path: Path) -> None:
    data = rows(tmp_path, 2.0, 20.0, None)
    said = notes(SPEC, {"data": data, "max_steps": 4})
    assert said[0] == f"1 of 3 tasks of {data} are weak and not trained on (weak_tasks: refuse)"
    assert "1 of 3 tasks" in said[1]
    assert "are not validated yet" in said[1]
    assert "paid as any other" in notes(SPEC, {"data": data, "weak_tasks": "pay"})[0]
    with pytest.raises(ConfigurationError, match="there is no such file"):
        notes(SPEC, {"data": str(tmp_path / "nothing.jsonl")})
    assert notes(SPEC, {}) == []


@pytest.mark.parametrize(("options", "played"), [({}, "calc__0"), ({"training": True}, "calc__1")])
def test_only_training_passes_a_weak_task_over(
    make_env: MakeEnv, tmp_path: Path, options: dict[str, bool], played: str
) -> None:
    env = make_env(data=rows(tmp_path, 2.0, 20.0), validate=False)
    assert env.reset(seed=0, options={"task": 0, **options})[1]["instance_id"] == played
    env = make_env(data=rows(tmp_path, 2.0, 20.0), validate=False, weak_tasks="pay")
    assert env.reset(seed=0, options={"task": 0, **options})[1]["instance_id"] == "calc__0"


def test_an_unknown_way_is_refused(make_env: MakeEnv) -> None:
    with pytest.raises(ValueError, match="weak_tasks: must be one of refuse, down_weight, pay, not 'ignore'"):
        make_env(weak_tasks="ignore")


RUN = """\
rollout_batch_size: 16
val_batch_size: 8
sequence_length: 1024
max_steps: 2
custom_envs:
  SWE: {{env_type: envsdk/SWE-v1, env_config: {{data: {data}}}}}
train_env_manager: &manager {{tags: [SWE], num_env_groups: 4, group_size: 4}}
val_env_manager: *manager
actor_infer: {{strategy_args: {{strategy_name: mock}}}}
"""


def test_a_run_explains_how_many_are_weak_and_tells_environments_what_is_trained_on(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN.format(data=rows(tmp_path, 2.0, 20.0)))
    loaded = load_config(tmp_path / "run.yaml")
    assert "SWE: 1 of 2 tasks of" in explain(loaded)
    config = loaded.config
    for split, manager in (("train", config.train_env_manager), (VAL_SPLIT, config.val_env_manager)):
        workers = worker_setups(config, manager, split=split, model=tmp_path, engines={})
        told = {setup.setups["SWE"].blueprint.trains for setup in workers.values()}
        assert told == {split == "train"}
