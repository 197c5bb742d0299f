"""A group filter as a stranger writes it."""

from __future__ import annotations

from collections.abc import Sequence

from envsdk.contracts.trajectory import Trajectory


def odd_tasks(group: Sequence[Trajectory]) -> str | None:
    index = group[0].task.index
    return f"task {index} is odd" if index % 2 else None
