"""What a game is: a PDDL problem, its goal and the goal in words; and what crosses the pipe to its engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    verb: str
    """A method of `Engine`."""
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    """Sessions that nobody plays any more; ended first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    value: Any = None
    bad_game: str = ""
    """Why the game cannot be played."""
    error: str = ""
    """What the engine raised."""
    resident_mb: int = 0
    """Memory of the engine's process."""


class Scene(NamedTuple):
    """One answer of the engine."""

    feedback: str
    """Its text."""
    admissible: tuple[str, ...]
    """Commands that do something now, sorted."""
    won: bool
    stages: tuple[str, ...]
    """Stages on the way to the goal that the state shows; empty unless they were asked for."""
