"""How explorers share the places of a job. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def grant(free: int, asker: str, held: Mapping[str, int], wanted: Mapping[str, int]) -> int:
    """How many of `free` places `asker` gets now, so that holdings come out max-min fair.

    Places are given one at a time to the explorer that holds fewest and still wants one, by name among
    equals; those given to others stay free until these ask.

    Args:
        free: Places that nobody holds.
        asker: One of the explorers.
        held: Places by explorer.
        wanted: Places that each would like besides, when it last asked.

    >>> grant(4, "b", held={"a": 6, "b": 0}, wanted={"a": 4, "b": 8})
    4
    >>> grant(4, "b", held={"a": 2, "b": 2}, wanted={"a": 4, "b": 8})
    2
    """
    hold, want = dict(held), {name: max(0, count) for name, count in wanted.items()}
    given = 0
    for _ in range(free):
        name = min((n for n in want if want[n]), key=lambda n: (hold.get(n, 0), n), default=None)
        if name is None:
            break
        hold[name] = hold.get(name, 0) + 1
        want[name] -= 1
        given += name == asker
    return given
