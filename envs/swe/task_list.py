"""The tasks that an environment plays, in a fixed order."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from envsdk.envs.shell import env as shell
from envsdk.envs.shell.env import SplitName, chosen
from envsdk.envs.swe.tasks import Task
from envsdk.envs.swe.tasks.leaks import leaks
from envsdk.envs.swe.tasks.loaders import load_tasks
from envsdk.envs.swe.tasks.shipped import shipped_tasks

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
