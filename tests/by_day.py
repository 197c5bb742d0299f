"""Cases of which `make test` runs one per class of faults; `make test-slow` runs the others.

@pytest.mark.parametrize("layout", by_day(["TP", "PP"], LAYOUTS))

Examples of properties, of which `make test-properties` draws six times as many as `make test`:

@settings(max_examples=examples(100))
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings

NUM_EXAMPLES = 50
"""By day, of a property that asks for no number."""


def examples(by_day: int) -> int:
    """So many in `make test`, and by night as many more as of other properties."""
    return by_day * settings().max_examples // NUM_EXAMPLES


def by_day(kept: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """All `cases` as parameters of a test; those that are not in `kept` are marked `slow`."""
    cases = list(cases)
    if unknown := [each for each in kept if each not in cases]:
        raise ValueError(f"no such cases: {unknown}")
    return [
        pytest.param(
            *(each if isinstance(each, tuple) else (each,)), marks=() if each in kept else pytest.mark.slow
        )
        for each in cases
    ]
