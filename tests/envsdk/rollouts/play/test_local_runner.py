"""Task lists played in this process: groups."""

from __future__ import annotations

import pytest

from envsdk.contracts.failures import Boundary, Failure, RolloutStalled
from envsdk.contracts.trajectory import Outcome, Task, Trajectory
from envsdk.rollouts.play.local_runner import HOPELESS_EPISODES, TaskListLeases
from tests.trajectories import trajectory_with

FAILED = Failure(boundary=Boundary.POLICY, kind="raised", message="ValueError: no")


async def begun(count: int) -> tuple[TaskListLeases, list[Trajectory]]:
    tasks = [Task(tag="lake", split="train", index=index) for index in range(count)]
    leases = TaskListLeases(enumerate(tasks), 42, lambda position, trajectory: None)
    assert all([await leases.lease("slot", "lake") for _ in tasks])
    ended = [
        trajectory_with(
            trajectory_id=f"train-{position}",
            group_id=position,
            task=task,
            outcome=Outcome.FAILED,
            success=False,
            failure=FAILED,
        )
        for position, task in enumerate(tasks)
    ]
    return leases, ended


async def test_failures_that_end_first_do_not_speak_for_episodes_that_began_before() -> None:
    leases, ended = await begun(3 * HOPELESS_EPISODES)
    for position in range(1, len(ended)):
        leases.submit("slot", position, ended[position])
    with pytest.raises(RolloutStalled, match="first 16 episodes: ValueError: no"):
        leases.submit("slot", 0, ended[0])


async def test_members_of_a_group_play_one_task_with_seeds_of_their_own() -> None:
    tasks = [Task(tag="lake", split="train", index=index) for index in (3, 3, 4, 4)]
    leases = TaskListLeases(enumerate(tasks), 42, lambda position, trajectory: None, group_size=2)
    orders = [order for _ in tasks if (order := await leases.lease("slot", "lake"))]
    assert [(order.group_id, order.member, order.task.index) for order in orders] == [
        (0, 0, 3),
        (0, 1, 3),
        (1, 0, 4),
        (1, 1, 4),
    ]
    assert orders[0].seed == orders[1].seed != orders[2].seed
    assert len({order.policy_seed for order in orders}) == 4
