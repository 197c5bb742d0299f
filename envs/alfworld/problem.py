"""Writes a household and a goal as a PDDL problem in ALFRED's domain. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envsdk.envs.alfworld.furniture import ABLE, FITS, HOLLOW, LAMPS, OPENABLE, ROOMS
from envsdk.envs.alfworld.games import Goal


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """A receptacle or an object."""

    id: str
    """As AI2-THOR writes it: `Cabinet|-01.75|+02.02|-02.56`."""
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Household:
    """Everything in a room, and where it is."""

    receptacles: Sequence[Item]
    objects: Sequence[Item]
    places: Mapping[str, str]
    """Receptacle by object id: the one it is in."""
    locations: Mapping[str, str]
    """Location by receptacle id: where one stands to reach it."""
    start: str
    """Where the player stands at first: at no receptacle."""


_TABLE = tomllib.loads(Path(__file__).with_name("goals.toml").read_text(encoding="utf-8"))
DESCRIPTIONS: Mapping[str, Sequence[str]] = {task_type: goal["words"] for task_type, goal in _TABLE.items()}
"""ALFWorld's templates for the goal in words."""
_DECLARED_OBJECT_TYPES = ("ButterKnife", "Knife")
_DECLARED_RECEPTACLE_TYPES = ("Fridge", "Microwave", "SinkBasin")
"""The domain's actions name these types, so every problem must declare them."""
FIXED = {*LAMPS, *(fixture for room in ROOMS.values() for fixture in room.fixtures)}
"""Objects that cannot be picked up."""
_MANGLED = str.maketrans(
    {"-": "_minus_", "#": "-", "|": "_bar_", "+": "_plus_", ".": "_dot_", ",": "_comma_"}
)


def write_problem(household: Household, goal: Goal) -> str:
    """The problem's text, with ids as ALFWorld spells them (`cabinet_bar__minus_01_dot_75...`)."""
    facts = "\n".join(f"        ({_mangled(fact)})" for fact in _facts(household))
    conditions = _TABLE[goal.task_type]["says"].format(
        obj=goal.object_type, recep=goal.receptacle_type, toggle=goal.lamp_type
    )
    return (
        "\n(define (problem household)\n(:domain alfred)\n(:objects\n"
        + "\n".join(f"        {_mangled(name)} - {type}" for name, type in _declarations(household))
        + f"\n        )\n\n(:init\n{facts}\n        )\n\n(:goal (and\n{conditions}\n))\n)\n"
    )


def _declarations(household: Household) -> Iterator[tuple[str, str]]:
    receptacle_types = {receptacle.type for receptacle in household.receptacles}
    yield "agent1", "agent"
    for type in sorted({thing.type for thing in household.objects} | {*_DECLARED_OBJECT_TYPES}):
        yield f"{type}Type", "otype"
    for type in sorted(receptacle_types | {*_DECLARED_RECEPTACLE_TYPES}):
        yield f"{type}Type", "rtype"
    for thing in household.objects:
        yield thing.id, "object"
    for receptacle in household.receptacles:
        yield receptacle.id, "receptacle"
    for location in sorted({*household.locations.values(), household.start}):
        yield location, "location"


def _facts(household: Household) -> Iterator[str]:
    receptacles, objects = household.receptacles, household.objects
    object_types = {thing.type for thing in objects}
    yield from (f"receptacleType {receptacle.id} {receptacle.type}Type" for receptacle in receptacles)
    yield from (f"objectType {thing.id} {thing.type}Type" for thing in objects)
    for receptacle_type in sorted({receptacle.type for receptacle in receptacles}):
        for object_type in FITS[receptacle_type]:
            if object_type in object_types:
                yield f"canContain {receptacle_type}Type {object_type}Type"
    yield from _each("pickupable", (thing for thing in objects if thing.type not in FIXED))
    yield from _each("isReceptacleObject", (thing for thing in objects if thing.type in HOLLOW))
    yield from _each("openable", (receptacle for receptacle in receptacles if receptacle.type in OPENABLE))
    yield f"atLocation agent1 {household.start}"
    for predicate, types in ABLE.items():
        yield from _each(predicate, (thing for thing in objects if thing.type in types))
    yield from (f"inReceptacle {thing.id} {household.places[thing.id]}" for thing in objects)
    yield from (
        f"receptacleAtLocation {receptacle.id} {household.locations[receptacle.id]}"
        for receptacle in receptacles
    )
    for thing in objects:
        yield f"objectAtLocation {thing.id} {household.locations[household.places[thing.id]]}"


def _each(predicate: str, items: Iterable[Item]) -> Iterator[str]:
    return (f"{predicate} {item.id}" for item in items)


def _mangled(text: str) -> str:
    return text.translate(_MANGLED)
