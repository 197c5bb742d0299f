"""What has one reward and is compared with its group: an episode, one of its segments, or one player's. Pure.

    episode -> in_parts -> its parts: trajectories of one segment, whose `group_id` is that of their likes

A part keeps the episode's `trajectory_id`, so that means over sequences count an episode once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from envsdk.algorithms.advantage_args import AdvantageUnit
from envsdk.contracts.trajectory import Trajectory


def in_parts(episodes: Sequence[Trajectory], unit: AdvantageUnit | None) -> list[Trajectory]:
    """The episodes as units of advantage, in their order; None as `advantage_unit` describes it.

    A part has the rewards of its own turns. Parts without a token of the policy are left out: they are no
    outcome of it.
    """
    found: list[Trajectory] = []
    groups: dict[tuple[int, str], int] = {}
    for episode in episodes:
        kind = unit_of(episode, unit)
        if kind == "episode":
            found.append(episode)
            continue
        for segment in filter(episode.learns, episode.segments()):
            label = segment.role if kind == "role" else ""
            # Below all ids of groups, which count up from 0.
            group = groups.setdefault((episode.group_id, label), -1 - len(groups))
            found.append(replace(episode.part(segment), group_id=group))
    return found


def unit_of(episode: Trajectory, unit: AdvantageUnit | None) -> AdvantageUnit:
    """`advantage_unit`, or what stands for it where it is absent."""
    return unit or ("role" if episode.seats else "episode")


def as_roles(group: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """A group as each role lived it that the policy plays; the group itself where there is one player.

    Failed members, which may have no seats, are in none of several roles.
    """
    roles = dict.fromkeys(role for member in group for role in member.own_roles)
    if not roles:
        return [list(group)]
    return [
        [
            member.part(segment)
            for member in group
            for segment in member.segments()
            if member.failure is None and segment.role == role
        ]
        for role in roles
    ]
