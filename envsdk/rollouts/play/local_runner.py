"""Episodes of a task list played in this process: what `collect` and `evaluate` run on. No Ray."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping

from envsdk.contracts.failures import Boundary, Failure, RolloutStalled
from envsdk.contracts.policy import Policy
from envsdk.contracts.trajectory import Task, Trajectory
from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.policies import opponents as opponents_of
from envsdk.managers.traj_env_manager import LeaseSource, TagSetup, TrajEnvManager

_WORTH_REPEATING = frozenset(Boundary) - {Boundary.CONFIGURATION, Boundary.SCHEDULER}
"""Whose failures may not happen again."""
HOPELESS_EPISODES = 16
"""A policy of the user's that failed in as many episodes from the first one on is not tried any further."""
YIELD_EVERY_EPISODES = 16
"""A scripted policy never waits, so the loop is given a turn for progress displays and signals."""


class TaskListLeases(LeaseSource):
    """Hands out each task of a list once, in order per tag; lease ids are positions in the list.

    With a `group_size` of k, each k positions in turn are one group: its members play the same task.

    A task whose episode failed is handed out again, up to `max_attempts` times in all. The list is read as
    far as tasks are asked for; what is read for one tag on the way to another waits here.
    """

    def __init__(
        self,
        tasks: Iterable[tuple[int, Task]],
        run_seed: int,
        on_trajectory: Callable[[int, Trajectory], None],
        *,
        max_attempts: int = 1,
        group_size: int = 1,
        admit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`admit` is awaited before an episode is handed out: the consumer of the results may be slower."""
        self._run_seed = run_seed
        self._admit = admit
        self._group_size = group_size
        self._on_trajectory = on_trajectory
        self._max_attempts = max_attempts
        self._tasks = iter(tasks)
        self._waiting: dict[str, deque[tuple[int, Task, int]]] = {}
        """`(position, task, attempt)` by tag."""
        self._attempts: dict[int, int] = {}
        """Attempts by position of the episodes being played, when they may be played again."""
        self._num_leased = 0
        self._hopeless: dict[int, list[str]] | None = {}
        """Types of what the policy raised in the first episodes to begin, by position; None when
        one ended in another way. Those that end first are no sample: failures are quick."""

    async def lease(self, slot_id: str, tag: str) -> EpisodeOrder | None:
        if self._admit is not None:
            await self._admit()
        entry = self._next_of(tag)
        if entry is None:
            return None
        position, task, attempt = entry
        if self._max_attempts > 1:
            self._attempts[position] = attempt
        self._num_leased += 1
        if self._hopeless is not None and len(self._hopeless) < HOPELESS_EPISODES:
            self._hopeless.setdefault(position, [])
        if self._num_leased % YIELD_EVERY_EPISODES == 0:
            await asyncio.sleep(0)
        group_id, member = divmod(position, self._group_size)
        return EpisodeOrder(
            lease_id=position,
            group_id=group_id,
            member=member,
            task=task,
            seed=task.seed(self._run_seed),
            policy_seed=task.policy_seed(self._run_seed, member=member, attempt=attempt),
        )

    def _next_of(self, tag: str) -> tuple[int, Task, int] | None:
        waiting = self._waiting.setdefault(tag, deque())
        while not waiting:
            entry = next(self._tasks, None)
            if entry is None:
                return None
            position, task = entry
            self._waiting.setdefault(task.tag, deque()).append((position, task, 0))
        return waiting.popleft()

    def submit(self, slot_id: str, lease_id: int, trajectory: Trajectory) -> None:
        """Raises RolloutStalled when the policy fails from the first episode on, always in the same way."""
        self._check_hope(lease_id, trajectory.failure)
        attempt = self._attempts.pop(lease_id, 0) + 1
        failure = trajectory.failure
        if failure is not None and attempt < self._max_attempts and failure.boundary in _WORTH_REPEATING:
            # This slot asks next: no other need be left to take it.
            self._waiting[trajectory.task.tag].appendleft((lease_id, trajectory.task, attempt))
            return
        self._on_trajectory(lease_id, trajectory)

    def _check_hope(self, position: int, failure: Failure | None) -> None:
        if self._hopeless is None:
            return
        if failure is None or failure.boundary is not Boundary.POLICY:
            self._hopeless = None
            return
        if position not in self._hopeless:
            return
        self._hopeless[position].append(failure.message.partition(":")[0])
        kinds = [kind for each in self._hopeless.values() for kind in each]
        if all(self._hopeless.values()) and len(kinds) >= HOPELESS_EPISODES and len(set(kinds)) == 1:
            stalled = RolloutStalled(
                f"the policy failed in each of the first {len(kinds)} episodes: {failure.message}"
            )
            if failure.traceback:
                stalled.add_note(f"The last of these failures:\n{failure.traceback}")
            raise stalled

    def released(self, slot_id: str, lease_id: int, num_tokens: int) -> None:
        raise AssertionError("a task list cancels nothing")


async def play_tasks(
    tasks: Iterable[tuple[int, Task]],
    *,
    setups: Mapping[str, TagSetup],
    policy: Callable[[TagSetup], Policy],
    run_seed: int,
    num_slots_per_tag: int,
    on_trajectory: Callable[[int, Trajectory], None],
    manager_classes: Mapping[str, type[TrajEnvManager]] | None = None,
    max_attempts: int = 1,
    group_size: int = 1,
    admit: Callable[[], Awaitable[None]] | None = None,
    opponents: Callable[[TagSetup], Mapping[str, Policy]] | None = None,
) -> None:
    """Play `(position, task)` pairs, `num_slots_per_tag` at a time for each tag.

    With a `group_size` of k, positions 0 to k-1 are the members of group 0, and so on: they name the same
    task and differ in the seeds that their policies sample with.
    `manager_classes` by tag; `TrajEnvManager` where there is none. A task is played up to `max_attempts`
    times until its episode does not fail.
    Calls `on_trajectory(position, trajectory)` as episodes end, in no fixed order; an exception of
    its own ends the run. `admit` is awaited before each episode starts.
    """
    leases = TaskListLeases(
        tasks, run_seed, on_trajectory, max_attempts=max_attempts, group_size=group_size, admit=admit
    )
    managers = [
        (manager_classes or {}).get(tag, TrajEnvManager)(
            slot_id=f"{tag}/{number}",
            setup=setup,
            policy=policy(setup),
            leases=leases,
            opponents=opponents_of(setup.players, opponents(setup) if opponents else {}),
        )
        for tag, setup in setups.items()
        for number in range(num_slots_per_tag)
    ]
    async with asyncio.TaskGroup() as group:
        for manager in managers:
            group.create_task(manager.run_rollout_loop())
