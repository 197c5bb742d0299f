"""What has one reward and is compared with its group: an episode, one of its segments, or one player's. Pure.

    episode -> in_parts -> its parts: trajectories of one segment, whose `group_id` is that of their likes

A part keeps the episode's `trajectory_id`, so that means over sequences count an episode once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from envsdk.algorithms.advantage_args import AdvantageUnit
from envsdk.contracts.segments import Segment, lines_of
from envsdk.contracts.trajectory import Trajectory


def in_parts(episodes: Sequence[Trajectory], unit: AdvantageUnit | None) -> list[Trajectory]:
    """The episodes as units of advantage, in their order; None as `advantage_unit` describes it.

    A part has the rewards of its own turns. Parts without a token of the policy are left out: they are no
    outcome of it.
    """
    found: list[Trajectory] = []
    groups: dict[tuple[int, str], int] = {}
    for episode in episodes:
        unit_here = _unit_of(episode, unit)
        if unit_here == "episode":
            found.append(episode)
            continue
        for part in parts_of(episode, unit):
            label = part.role if unit_here == "role" else ""
            # Below all ids of groups, which count up from 0.
            group = groups.setdefault((episode.group_id, label), -1 - len(groups))
            found.append(replace(episode.part(part), group_id=group))
    return found


def parts_of(episode: Trajectory, unit: AdvantageUnit | None) -> list[Segment]:
    """What of an episode `in_parts` gives, in its order."""
    kind = _unit_of(episode, unit)
    if kind == "episode":
        return [Segment(turns=episode.turns, numbers=range(len(episode.turns)), tokens=episode.tokens)]
    players = episode.own_roles if kind == "role" else ()
    parts = [lines_of(episode.turns, episode.tokens, role) for role in players] or episode.segments()
    return list(filter(episode.learns, parts))


def _unit_of(episode: Trajectory, unit: AdvantageUnit | None) -> AdvantageUnit:
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
            member.part(lines_of(member.turns, member.tokens, role))
            for member in group
            if member.failure is None and any(turn.role == role for turn in member.turns)
        ]
        for role in roles
    ]
