"""Pure: reading the lists of a session, each of which usually repeats the one before and adds to it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Entry = TypeVar("Entry")


@dataclass(slots=True)
class GrowingList:
    """What the entries of the latest list were read as.

    history = GrowingList()
    history.read(["a", "b"], read)          # reads both
    history.read(["a", "b", "c"], read)     # reads "c"
    history.read(["a", "x"], read)          # reads "x"
    """

    _latest: tuple[Sequence[Any], Sequence[Any]] = ((), ())
    """The entries as they were given, and as they were read."""

    def read(self, given: Sequence[Any], read: Callable[[Any, int], Entry]) -> list[Entry]:
        """Each entry as `read(entry, its position)` gives it: always the same function, whose results stay as
        they are. What it raises leaves the latest list in place.
        """
        before, known = self._latest
        count = len(before)
        if given[:count] != before:
            pairs = zip(given, before, strict=False)
            count = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        found = [*known[:count], *(read(given[at], at) for at in range(count, len(given)))]
        self._latest = given, found
        return found


class Histories(defaultdict[str, GrowingList]):
    """The lists of one session, by what they are."""

    def __init__(self) -> None:
        super().__init__(GrowingList)
