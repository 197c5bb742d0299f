"""Which tasks an environment plays, and in which order."""

from __future__ import annotations

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.task_list import task_list
from envsdk.envs.swe.tasks.shipped import shipped_tasks


def test_splits_divide_the_shipped_tasks_and_share_no_repository() -> None:
    train, held_out, everything = (
        task_list(None, split, None, None) for split in ("train", "held_out", "all")
    )
    names = {task.instance_id for task in everything.tasks}
    assert names == {task.instance_id for task in (*train.tasks, *held_out.tasks)}
    assert len(everything) == len(train) + len(held_out) == len(shipped_tasks())
    assert not {task.repo for task in train.tasks} & {task.repo for task in held_out.tasks}


def test_a_number_is_taken_modulo_the_length_and_goes_before_the_draw() -> None:
    tasks = task_list(None, "all", None, 3)
    assert len(tasks) == 3
    assert [tasks.at(tasks.number(draw, None)) for draw in (0, 4)] == [tasks.tasks[0], tasks.tasks[1]]
    assert tasks.at(tasks.number(1, {"task": 5})) is tasks.tasks[2]
    assert tasks.number(1, {"something else": 5}) == 1
    with pytest.raises(ValueError, match="task: must be the number of a task, not 'first'"):
        tasks.number(0, {"task": "first"})


def test_instances_are_chosen_by_name_in_the_order_given() -> None:
    one, two = (task.instance_id for task in shipped_tasks()[:2])
    assert [task.instance_id for task in task_list(None, "all", (two, one), None).tasks] == [two, one]
    with pytest.raises(ConfigurationError, match=r"has no nobody__1; there are \d+, for example"):
        task_list(None, "all", (one, "nobody__1"), None)
