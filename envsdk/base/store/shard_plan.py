"""Which episodes each file of a collection holds. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envsdk.contracts.trajectory import Task

_MIN_SHARD_SIZE, _MAX_SHARD_SIZE, _USUAL_NUM_SHARDS = 20, 500, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """The episodes of one file: tasks of one tag from `first_index` on, `samples_per_task` of each."""

    number: int
    tag: str
    split: str
    first_index: int
    num_episodes: int
    first_position: int
    """Position of the first episode in the collection; ids of trajectories derive from it."""
    samples_per_task: int = 1

    @property
    def file_name(self) -> str:
        return f"part-{self.number:05d}.parquet"

    def tasks(self) -> Iterator[tuple[int, Task]]:
        """`(position, task)` of each episode."""
        for offset in range(self.num_episodes):
            index = self.first_index + offset // self.samples_per_task
            task = Task(tag=self.tag, split=self.split, index=index)
            yield self.first_position + offset, task


def plan_shards(
    episodes_by_tag: Mapping[str, int], *, split: str, shard_size: int, samples_per_task: int = 1
) -> list[ShardPlan]:
    """Shards of one tag each, the tags taking turns, numbered in the order they are played.

    `shard_size` and the numbers of episodes are multiples of `samples_per_task`.
    """
    rounds = [
        (first, tag, min(shard_size, num_episodes - first))
        for tag, num_episodes in episodes_by_tag.items()
        for first in range(0, num_episodes, shard_size)
    ]
    # Stable: within a round the tags keep their order.
    rounds.sort(key=lambda entry: entry[0])
    plans: list[ShardPlan] = []
    position = 0
    for number, (first, tag, num_episodes) in enumerate(rounds):
        plans.append(
            ShardPlan(
                number=number,
                tag=tag,
                split=split,
                first_index=first // samples_per_task,
                num_episodes=num_episodes,
                first_position=position,
                samples_per_task=samples_per_task,
            )
        )
        position += num_episodes
    return plans


def usual_shard_size(num_episodes: int) -> int:
    """Episodes per file where nobody said: a sixteenth of all, within bounds."""
    return min(_MAX_SHARD_SIZE, max(_MIN_SHARD_SIZE, -(-num_episodes // _USUAL_NUM_SHARDS)))
