"""Task lists played in this process: groups."""

from __future__ import annotations

from envsdk.play.local_runner import TaskListLeases
from envsdk.trajectory import Task


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
