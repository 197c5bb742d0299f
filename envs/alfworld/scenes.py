"""What the engine says after each command; crosses from its process to the environment's."""

from __future__ import annotations

from typing import NamedTuple


class Scene(NamedTuple):
    """One answer of the engine."""

    feedback: str
    """Its text."""
    admissible: tuple[str, ...]
    """Commands that do something now, sorted."""
    won: bool
    stages: tuple[str, ...]
    """Stages on the way to the goal that the state shows; empty unless they were asked for."""
