"""Episodes of a task list played in this process: what `collect` and `evaluate` run on. No Ray."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from envsdk.managers.traj_env_manager import EpisodeOrder, LeaseSource, TagSetup, TrajEnvManager
from envsdk.policy import Policy
from envsdk.seeds import stable_seed
from envsdk.trajectory import Task, Trajectory

YIELD_EVERY_EPISODES = 16
"""A scripted policy never waits, so the loop is given a turn for progress displays and signals."""


class TaskListLeases(LeaseSource):
    """Hands out each task of a list once, in order per tag; lease ids are positions in the list."""

    def __init__(
        self,
        tasks: Iterable[tuple[int, Task]],
        run_seed: int,
        on_trajectory: Callable[[int, Trajectory], None],
    ) -> None:
        self._run_seed = run_seed
        self._on_trajectory = on_trajectory
        self._waiting: dict[str, deque[tuple[int, Task]]] = {}
        self._num_leased = 0
        for position, task in tasks:
            self._waiting.setdefault(task.tag, deque()).append((position, task))

    async def lease(self, slot_id: str) -> EpisodeOrder | None:
        tag = slot_id.rpartition("/")[0]
        waiting = self._waiting.get(tag)
        if not waiting:
            return None
        position, task = waiting.popleft()
        self._num_leased += 1
        if self._num_leased % YIELD_EVERY_EPISODES == 0:
            await asyncio.sleep(0)
        return EpisodeOrder(
            lease_id=position,
            group_id=position,
            member=0,
            task=task,
            seed=task.seed(self._run_seed),
            policy_seed=policy_seed(self._run_seed, task, member=0, attempt=0),
        )

    def submit(self, slot_id: str, lease_id: int, trajectory: Trajectory) -> None:
        self._on_trajectory(lease_id, trajectory)

    def released(self, slot_id: str, lease_id: int) -> None:
        raise AssertionError("a task list cancels nothing")


def policy_seed(run_seed: int, task: Task, *, member: int, attempt: int) -> int:
    """The seed of a member's sampling: the same in every run, different between members and attempts."""
    return stable_seed("policy", run_seed, task.split, task.tag, task.index, member, attempt)


async def play_tasks(
    tasks: Iterable[tuple[int, Task]],
    *,
    setups: Mapping[str, TagSetup],
    policy: Callable[[TagSetup], Policy],
    run_seed: int,
    num_slots_per_tag: int,
    on_trajectory: Callable[[int, Trajectory], None],
    manager_classes: Mapping[str, type[TrajEnvManager]] | None = None,
) -> None:
    """Play `(position, task)` pairs, `num_slots_per_tag` at a time for each tag.

    `manager_classes` by tag; `TrajEnvManager` where there is none.
    Calls `on_trajectory(position, trajectory)` as episodes end, in no fixed order; an exception of
    its own ends the run.
    """
    leases = TaskListLeases(tasks, run_seed, on_trajectory)
    managers = [
        (manager_classes or {}).get(tag, TrajEnvManager)(
            slot_id=f"{tag}/{number}", setup=setup, policy=policy(setup), leases=leases
        )
        for tag, setup in setups.items()
        for number in range(num_slots_per_tag)
    ]
    async with asyncio.TaskGroup() as group:
        for manager in managers:
            group.create_task(manager.run_rollout_loop())
