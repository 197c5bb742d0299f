"""What a function returned, out of the JSON that its process wrote; pure.

The program may have written the text itself. Reading it takes time and memory in proportion to its size,
whatever it says.
"""

from __future__ import annotations

import json
from typing import Any

MOST_BYTES = 16 << 20
"""Size of the text of one value."""
_MOST_DIGITS = 4000
"""Digits of an integer; Python itself does not print those with more than 4300."""


class Unreadable(ValueError):
    """The text is no value that can be compared; the message completes "returned"."""


def read(text: bytes) -> Any:
    """The value. Raises Unreadable."""
    if len(text) > MOST_BYTES:
        raise Unreadable(f"a value of more than {MOST_BYTES >> 20} MB")
    try:
        return json.loads(text, parse_int=_integer)
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("a value of too many levels") from None
    except ValueError as error:
        raise Unreadable(f"what is no value: {type(error).__name__}") from error


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise Unreadable(f"an integer of more than {_MOST_DIGITS} digits")
    return int(digits)
