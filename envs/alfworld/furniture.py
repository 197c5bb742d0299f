"""Which rooms there are, what stands in them and what may lie where, out of `furniture.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsdk.envs.alfworld.games import CLEAN, COOL, HEAT


@dataclass(frozen=True, slots=True)
class Furniture:
    """How often a type of receptacle occurs in a room."""

    probability: float
    fewest: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One kind of room."""

    scenes: tuple[int, int]
    """First and last of ALFRED's scene numbers of this kind."""
    task_types: frozenset[str]
    furniture: Mapping[str, Furniture]
    common: tuple[str, ...]
    """Objects that may be in every such room."""
    rare: tuple[str, ...]
    fixtures: Mapping[str, tuple[str, ...]]
    """Objects that cannot be picked up, and what they stand on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How full a household is."""

    furniture_share: float
    """Share of the numbers in `Room.furniture`."""
    most_alike: int
    """Objects of one type, at most."""
    num_objects: tuple[int, int]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _room(table: dict[str, Any]) -> Room:
    first, last = table["scenes"]
    return Room(
        scenes=(first, last),
        task_types=frozenset(table["task_types"]),
        furniture={name: Furniture(*numbers) for name, numbers in table["furniture"].items()},
        common=_words(table["common"]),
        rare=_words(table["rare"]),
        fixtures={name: _words(places) for name, places in table.get("fixtures", {}).items()},
    )


def _size(table: dict[str, Any]) -> Size:
    fewest, most = table["num_objects"]
    return Size(**{**table, "num_objects": (fewest, most)})


_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

FITS: Mapping[str, tuple[str, ...]] = {
    receptacle: tuple(sorted(_words(things)))
    for receptacles, things in _TABLES["fits"].items()
    for receptacle in _words(receptacles)
}
"""Objects by receptacle type: those that may be put there."""
ABLE: Mapping[str, frozenset[str]] = {
    predicate: frozenset(_words(things)) for predicate, things in _TABLES["able"].items()
}
"""Types by predicate of the domain: those that it holds for."""
OPENABLE, HOLLOW = frozenset(_words(_TABLES["openable"])), frozenset(_words(_TABLES["hollow"]))
LAMPS, LAMP_STANDS = _words(_TABLES["lamps"]), _words(_TABLES["lamp_stands"])
TREATMENT: Mapping[str, tuple[str, str]] = {
    CLEAN: ("cleanable", "SinkBasin"),
    HEAT: ("heatable", "Microwave"),
    COOL: ("coolable", "Fridge"),
}
"""Treatments by task type: what the object must be, and the appliance that does it."""
ROOMS: Mapping[str, Room] = {name: _room(table) for name, table in _TABLES["rooms"].items()}
SIZES: Mapping[str, Size] = {name: _size(table) for name, table in _TABLES["sizes"].items()}
