"""The shards that a process has begun to play."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from envsdk.base.store.shard_plan import ShardPlan
from envsdk.contracts.trajectory import Trajectory


class OpenShards:
    """Puts episodes that end in any order into their shards."""

    def __init__(self, plans: Sequence[ShardPlan]) -> None:
        self._plans = plans
        self._first_positions = [plan.first_position for plan in plans]
        self._open: dict[int, dict[int, Trajectory]] = {}

    def plan_of(self, position: int) -> ShardPlan:
        """The shard of this position."""
        return self._plans[bisect_right(self._first_positions, position) - 1]

    def add(self, position: int, episode: Trajectory) -> list[Trajectory]:
        """The episodes of its shard in order, if this completes it; else nothing."""
        plan = self.plan_of(position)
        shard = self._open.setdefault(plan.number, {})
        shard[position] = episode
        if len(shard) < plan.num_episodes:
            return []
        del self._open[plan.number]
        return [shard[each] for each in sorted(shard)]
