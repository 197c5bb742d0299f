"""Several players: who plays which role of an environment, and how it went for each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

POLICY = "policy"
"""The player whose replies are trained."""

Players = Sequence[str] | Mapping[str, str]
"""Names of players: in turn for the roles, from task to task one role on; or by role."""


def player_names(players: Players) -> list[str]:
    """Their names, each once."""
    return list(dict.fromkeys(players.values() if isinstance(players, Mapping) else players))


def seated(players: Players, roles: Sequence[str], task: int) -> dict[str, str]:
    """The player of each role in the episodes of a task, which all members of a group play.

    The last name of a shorter list plays the other roles too.

    >>> seated(["policy", "random"], ["X", "O"], 1)
    {'X': 'random', 'O': 'policy'}

    ValueError where players and roles do not fit.
    """
    if not roles:
        if players:
            raise ValueError("the environment has one player: leave the key out")
        return {}
    if isinstance(players, Mapping):
        if set(players) != set(roles):
            raise ValueError(f"name a player for each of the roles {', '.join(roles)}")
        return {role: players[role] for role in roles}
    if len(players) > len(roles):
        raise ValueError(f"the environment has {len(roles)} roles ({', '.join(roles)}), not {len(players)}")
    listed = list(players or (POLICY,))
    listed += listed[-1:] * (len(roles) - len(listed))
    return {role: listed[(number + task) % len(roles)] for number, role in enumerate(roles)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One role of an episode of several players: who played it, and how it went."""

    player: str
    """`policy`, or the opponent's name."""
    score: float
    """What the rules paid the role in all, without penalties."""


class Result(StrEnum):
    """How an episode went for one role."""

    WIN = "win"
    """Its score alone is the highest."""
    DRAW = "draw"
    """It shares the highest score."""
    LOSS = "loss"
    UNFINISHED = "unfinished"
    """A limit ended the episode while it shared the highest score."""
