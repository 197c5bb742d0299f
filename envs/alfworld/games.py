"""What a game is, before any engine plays it: a PDDL problem, its goal and the goal in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

PICK = "pick_and_place_simple"
LOOK = "look_at_obj_in_light"
CLEAN = "pick_clean_then_place_in_recep"
HEAT = "pick_heat_then_place_in_recep"
COOL = "pick_cool_then_place_in_recep"
TWO = "pick_two_obj_and_place"

TASK_TYPES = (PICK, LOOK, CLEAN, HEAT, COOL, TWO)
"""In the order of ALFWorld's task ids 1 to 6."""

Split = Literal["train", "valid_seen", "valid_unseen"]
SPLITS: tuple[Split, ...] = get_args(Split)


class GameDataError(ValueError):
    """A game cannot be used; the message names its file (or seed) and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is to be done, in the words of ALFRED's `pddl_params`: types such as `ButterKnife`."""

    task_type: str
    object_type: str
    receptacle_type: str = ""
    """Where it goes; empty for `look_at_obj_in_light`."""
    lamp_type: str = ""
    """For `look_at_obj_in_light` alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """Everything that decides a game; picklable."""

    id: str
    """Its path within the data set, or how it was generated."""
    goal: Goal
    description: str
    """The goal in words, as the game's first observation gives it."""
    problem: str
    """PDDL."""
    domain: str | None = None
    """PDDL; None stands for the one that ALFWorld ships."""
    grammar: str | None = None
    """TextWorld grammar with the description in it; None stands for ALFWorld's."""
