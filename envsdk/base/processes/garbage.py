"""Garbage collection in a process that keeps very many small objects.

Python searches for unreachable cycles after every 700 new objects. With thousands of episodes in a process
that takes a third of its time and finds next to nothing, since objects here are freed by their reference
counts. `collect_rarely` makes searches rare; `collect_when_grown` adds one whenever memory grows, since the
cycles of an environment may hold large arrays.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

NEW_OBJECTS = 50_000
"""Between two searches. Above this the time that searches take hardly falls."""
CHECK_S = 1.0
MIN_GROWTH_BYTES = 64 * 2**20
MIN_GROWTH = 0.25
"""Share of the memory after the last search."""


@contextmanager
def importing() -> Iterator[None]:
    """Import libraries without searches, and leave their objects out of later ones: none is garbage.

    With PyTorch and transformers, searches take a third of the time. For a process that holds nothing else.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def collect_rarely() -> None:
    """To be called once what the process needs is loaded; later searches leave that out."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)


async def collect_when_grown() -> None:
    """Search for cycles whenever the process has grown, until cancelled."""
    known = resident_bytes()
    while True:
        await asyncio.sleep(CHECK_S)
        if has_grown(known, resident_bytes()):
            gc.collect()
            known = resident_bytes()


def has_grown(known: int, now: int) -> bool:
    """Whether growth from `known` bytes to `now` calls for a search."""
    return now - known > max(MIN_GROWTH_BYTES, MIN_GROWTH * known)


def resident_bytes() -> int:
    """Memory of this process."""
    return int(psutil.Process().memory_info().rss)
