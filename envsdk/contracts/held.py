"""How much of its memory on a device a role holds, where roles take turns on one."""

from __future__ import annotations

from enum import IntEnum


class Held(IntEnum):
    """In this order, each with what the one before has."""

    NOTHING = 0
    """What can move is in main memory, or dropped where it comes again."""
    WEIGHTS = 1
    """A trainer scores and sends its weights; an engine takes new ones."""
    ALL = 2
    """A trainer learns: gradients and optimizer. An engine samples: keys and values."""
