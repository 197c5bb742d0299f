"""What is said of a list of tasks before a run plays it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envsdk.envs.terminal.harbor.folder import HarborTask
from envsdk.envs.terminal.harbor.support import remarks
from envsdk.envs.terminal.task_list import task_list


def notes(
    *,
    data: str | None = None,
    split: Any = "auto",
    instance_ids: Sequence[str] | None = None,
    num_tasks: int | None = None,
    skip_refused: bool = False,
    backend_settings: Mapping[str, Any] | None = None,
    **_: Any,
) -> list[str]:
    """What is said before a run trains on tasks of a folder."""
    if data is None:
        return []
    has_network = bool((backend_settings or {}).get("network"))
    ids = tuple(instance_ids) if instance_ids else None
    found = task_list(data, split, ids, num_tasks, skips_refused=skip_refused, has_network=has_network)
    said = [f"{data}: {line}" for line in counted(found.tasks, has_network=has_network)]
    if found.refused:
        said.append(
            f"{data}: {len(found.refused)} tasks are left out (`python -m envsdk.envs.terminal {data}`)"
        )
    if unknown := sum(not task.has_solution for task in found.tasks):
        said.append(
            f"{data}: {unknown} of {len(found.tasks)} tasks have no solution that shows them to be sound"
        )
    return said


def counted(tasks: Iterable[HarborTask], *, has_network: bool) -> list[str]:
    """Remarks on tasks, each once with the number of tasks that it is about."""
    count = Counter(line for task in tasks for line in set(remarks(task, has_network=has_network)))
    return [f"{line} ({number} tasks)" if number > 1 else line for line, number in count.most_common()]
