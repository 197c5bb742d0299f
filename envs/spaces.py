"""Spaces of texts that environments share."""

from __future__ import annotations

import string
from typing import Any

from gymnasium.spaces import Text

PRINTABLE = frozenset(string.ascii_letters + string.digits + string.punctuation + " \n")


class AnyText(Text):
    """Texts of any script. `sample()` draws from `PRINTABLE`."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=PRINTABLE)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length
