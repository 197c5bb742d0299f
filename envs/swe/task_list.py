"""The tasks that an environment plays, in a fixed order, and which of them are trained on."""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.shell import env as shell
from envsdk.envs.shell.env import SplitName, chosen
from envsdk.envs.swe.evaluator.sealing.strength import ENOUGH_BITS
from envsdk.envs.swe.evaluator.validation import known_hidden_bits
from envsdk.envs.swe.tasks.leaks import leaks
from envsdk.envs.swe.tasks.loaders import load_tasks
from envsdk.envs.swe.tasks.shipped import shipped_tasks
from envsdk.envs.swe.tasks.task import Task

_LISTS_KEPT = 16


@dataclass(frozen=True, slots=True)
class TaskList(shell.TaskList[Task]):
    """Tasks by number and by name."""

    _by_id: Mapping[str, Task] = field(init=False, repr=False)
    _copies: dict[Sequence[Path], Mapping[str, list[str]]] = field(default_factory=dict, repr=False)
    _searching: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {task.instance_id: task for task in self.tasks})

    def named(self, instance_id: str) -> Task:
        return self._by_id[instance_id]

    def copies_in(self, folders: Sequence[Path], task: Task) -> list[str]:
        """Files of `folders` with a piece of the task's solution. They are read once, for all tasks."""
        with self._searching:
            if folders not in self._copies:
                patches = {name: each.gold_patch for name, each in self._by_id.items()}
                self._copies[folders] = leaks(patches, folders, indexed=True)
        return self._copies[folders][task.instance_id]


@lru_cache(maxsize=_LISTS_KEPT)
def task_list(
    data: str | None,
    split: SplitName = "auto",
    instance_ids: tuple[str, ...] | None = None,
    num_tasks: int | None = None,
    repositories: str | None = None,
) -> TaskList:
    """The tasks that an environment with these arguments plays.

    Raises ConfigurationError when there are none, or `instance_ids` names one that is not there.
    """
    tasks = _shipped(split) if data is None else _loaded(data, split, repositories)
    source = "the shipped tasks" if data is None else data
    listed = {task.instance_id: task for task in tasks}
    return TaskList(chosen(listed, instance_ids, f"{source} (split {split})")[:num_tasks])


def _loaded(data: str, split: SplitName, repositories: str | None) -> tuple[Task, ...]:
    return load_tasks(
        Path(data).expanduser(),
        repositories=None if repositories is None else Path(repositories).expanduser(),
        split=None if split in ("auto", "all") else split,
    )


def _shipped(split: SplitName) -> tuple[Task, ...]:
    wanted = "train" if split == "auto" else split
    return shipped_tasks(None if wanted == "all" else wanted)


WeakTasks = Literal["refuse", "down_weight", "pay"]
BitsOf = Callable[[Task], Awaitable[float | None]]
"""How many bits a task hides; None where nobody knows."""


async def task_to_train_on(tasks: TaskList, number: int, how: WeakTasks, bits_of: BitsOf) -> Task:
    """The task of a training episode: number `number`, unless that is weak and passed over.

    Raises ConfigurationError: all tasks are weak, and none of them is to be played.

        refuse        a weak task is not played; another one takes its place
        down_weight   it is played as often as it hides bits, of those that are enough
        pay           it is played and paid as any other

    The number of an episode's task alone decides, so that the members of a group play the same one.
    """
    wanted = tasks.at(number)
    chance = random.Random(number)
    if how == "pay" or _is_played(await bits_of(wanted), how, chance):
        return wanted
    for place in chance.sample(range(len(tasks)), len(tasks)):
        other = tasks.at(place)
        bits = await bits_of(other)
        if bits is None or bits >= ENOUGH_BITS:
            return other
    if how == "down_weight":
        return wanted
    raise ConfigurationError(
        f"all {len(tasks)} tasks are weak: each hides fewer than {ENOUGH_BITS:g} bits of what its tests "
        "expect, so a patch that solves nothing may be paid; add other tasks, or train on these with "
        "weak_tasks: pay"
    )


def _is_played(bits: float | None, how: WeakTasks, chance: random.Random) -> bool:
    if bits is None or bits >= ENOUGH_BITS:
        return True
    return how == "down_weight" and chance.random() < bits / ENOUGH_BITS


def notes(
    *,
    data: str | None = None,
    split: Any = "auto",
    instance_ids: Sequence[str] | None = None,
    num_tasks: int | None = None,
    repositories: str | None = None,
    weak_tasks: str = "refuse",
    **_: Any,
) -> list[str]:
    """What is said before a run trains on tasks of a file."""
    if data is None:
        return []
    ids = tuple(instance_ids) if instance_ids else None
    tasks = task_list(data, split, ids, num_tasks, repositories).tasks
    bits = [known_hidden_bits(task) for task in tasks]
    weak = sum(known is not None and known < ENOUGH_BITS for known in bits)
    becomes = {
        "refuse": "not trained on",
        "down_weight": "trained on less often, the fewer bits they hide",
        "pay": "trained on and paid as any other, so a guess may be rewarded",
    }[weak_tasks]
    said = [f"{weak} of {len(tasks)} tasks of {data} are weak and {becomes} (weak_tasks: {weak_tasks})"]
    if unknown := bits.count(None):
        said.append(
            f"{unknown} of {len(tasks)} tasks of {data} are not validated yet; each is before it is first "
            f"played. To do so now: python -m envsdk.envs.swe.tasks {data}"
        )
    return said
