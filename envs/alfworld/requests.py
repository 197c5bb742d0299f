"""What crosses the pipe between an environment's process and an engine's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
