"""Tasks of a list, handed out one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import Boundary, Failure, RolloutStalled
from envsdk.contracts.trajectory import Outcome, Task, Trajectory
from envsdk.managers.episode import EpisodeOrder
from envsdk.rollouts.play.local_runner import HOPELESS_EPISODES, TaskListLeases
from tests.trajectories import trajectory_with


def episode(order: EpisodeOrder, boundary: Boundary | None = None) -> Trajectory:
    failure = None if boundary is None else Failure(boundary=boundary, kind="raised", message="no")
    return trajectory_with(
        trajectory_id=str(order.lease_id),
        group_id=order.group_id,
        task=order.task,
        seed=order.seed,
        outcome=Outcome.TERMINATED if failure is None else Outcome.FAILED,
        success=failure is None,
        failure=failure,
        ended_at=0.0,
    )


def task(tag: str, index: int) -> Task:
    return Task(tag=tag, split="train", index=index)


@given(st.lists(st.sampled_from("AB"), max_size=20), st.integers(1, 3), st.randoms(use_true_random=False))
def test_every_task_ends_once_whatever_fails(tags: list[str], max_attempts: int, luck: object) -> None:
    ended: dict[int, Trajectory] = {}
    seeds: dict[int, list[int]] = {}

    def on_trajectory(position: int, trajectory: Trajectory) -> None:
        assert position not in ended
        ended[position] = trajectory

    leases = TaskListLeases(
        [(position, task(tag, position)) for position, tag in enumerate(tags)],
        7,
        on_trajectory,
        max_attempts=max_attempts,
    )

    async def play(slot: str) -> None:
        while (order := await leases.lease(slot, slot[0])) is not None:
            assert order.task.tag == slot[0]
            seeds.setdefault(order.lease_id, []).append(order.policy_seed)
            await asyncio.sleep(0)
            fails = luck.random() < 0.5  # type: ignore[attr-defined]
            leases.submit(slot, order.lease_id, episode(order, Boundary.ENVIRONMENT if fails else None))

    async def main() -> None:
        await asyncio.gather(*(play(slot) for slot in ("A/0", "A/1", "B/0")))

    asyncio.run(main())
    assert sorted(ended) == list(range(len(tags)))
    for position, tried in seeds.items():
        assert len(set(tried)) == len(tried) <= max_attempts
        assert ended[position].failure is None or len(tried) == max_attempts


async def test_a_wrong_configuration_is_not_tried_again() -> None:
    ended: list[int] = []
    leases = TaskListLeases(
        [(0, task("A", 0))], 7, lambda position, trajectory: ended.append(position), max_attempts=5
    )
    order = await leases.lease("A/0", "A")
    assert order is not None
    leases.submit("A/0", 0, episode(order, Boundary.CONFIGURATION))
    assert ended == [0]
    assert await leases.lease("A/0", "A") is None


async def test_the_list_is_read_no_further_than_it_is_asked_for() -> None:
    num_read = 0

    def tasks() -> Iterator[tuple[int, Task]]:
        nonlocal num_read
        for index in range(1_000_000):
            num_read += 1
            yield index, task("A", index)

    leases = TaskListLeases(tasks(), 7, lambda position, trajectory: None)
    for _ in range(3):
        assert await leases.lease("A/0", "A") is not None
    assert num_read == 3


@pytest.mark.parametrize("max_attempts", [1, 2])
async def test_what_did_not_fail_is_not_played_again(max_attempts: int) -> None:
    ended: list[int] = []
    leases = TaskListLeases(
        [(5, task("A", 5))], 7, lambda position, trajectory: ended.append(position), max_attempts=max_attempts
    )
    order = await leases.lease("A/0", "A")
    assert order is not None
    leases.submit("A/0", 5, episode(order))
    assert ended == [5]


async def play_failing(boundaries: list[Boundary | None]) -> int:
    """Episodes that were played before the leases gave up, or all."""
    tasks = [(position, task("A", position)) for position in range(len(boundaries))]
    leases = TaskListLeases(tasks, 7, lambda position, trajectory: None)
    for number, boundary in enumerate(boundaries):
        order = await leases.lease("A/0", "A")
        assert order is not None
        try:
            leases.submit("A/0", order.lease_id, episode(order, boundary))
        except RolloutStalled:
            return number + 1
    return len(boundaries)


async def test_a_policy_that_always_fails_from_the_first_episode_on_is_given_up() -> None:
    always = [Boundary.POLICY] * 50
    assert await play_failing(always) == HOPELESS_EPISODES
    assert await play_failing([None, *always]) == 51
    assert await play_failing([Boundary.POLICY, None, *always]) == 52
    assert await play_failing([Boundary.ENVIRONMENT] * 50) == 50
