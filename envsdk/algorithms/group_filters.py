"""Group filters: which finished groups are worth learning from.

    group complete -> every filter asked -> kept, or dropped with a reason and another task played instead

A filter is a pure function of the group's trajectories: a reason to drop it, or None to keep it. It is
found under the entry-point group `envsdk.group_filters`, or by `package.module:function`:

    def too_short(group):
        if max(len(trajectory.turns) for trajectory in group) < 2:
            return "no episode has two turns"
        return None
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from envsdk.trajectory import Trajectory

PLUGINS = "envsdk.group_filters"


class GroupFilter(Protocol):
    """Decides about one complete group."""

    def __call__(self, group: Sequence[Trajectory]) -> str | None:
        """Why to drop the group, in one line; None keeps it.

        `group` holds every member that reported, failed ones (`failure` set, no outcome) among them. Pure:
        the same group has the same answer, in any order of its members.
        """
        ...


def zero_variance(group: Sequence[Trajectory]) -> str | None:
    """Drop a group whose members all have the same reward: compared with one another, they teach nothing.

    Failed members are not looked at.
    """
    rewards = {trajectory.total_reward for trajectory in group if trajectory.failure is None}
    if len(rewards) > 1:
        return None
    return f"every reward is {rewards.pop():g}" if rewards else "every member failed"


def uniform_success(group: Sequence[Trajectory]) -> str | None:
    """Drop a group that solved its task always or never, whatever the rewards.

    Failed members are not looked at. Source: the dynamic sampling of DAPO, arXiv:2503.14476, eq. 11.
    """
    successes = {trajectory.success for trajectory in group if trajectory.failure is None}
    if not successes:
        return "every member failed"
    if len(successes) > 1:
        return None
    return "every member succeeded" if successes.pop() else "no member succeeded"
