"""Other packages' use of `random` and `numpy.random`, kept from everybody else in the process."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_NUMPY_SEEDS = 1 << 32
_lock = threading.RLock()


@contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Within the block the global generators are seeded with `seed`; after it they are as before.

    Blocks of several threads take turns.
    """
    with OwnGlobals().in_place(seed):
        yield


class OwnGlobals:
    """The global generators as one environment sees them, from block to block.

        own = OwnGlobals()
        with own.in_place(seed=7):   # seeded
            ...
        with own.in_place():         # continues where the last block ended
            ...

    Blocks of several threads take turns, so code that waits does not belong inside one.
    """

    def __init__(self) -> None:
        self._own: Any = None

    @contextmanager
    def in_place(self, seed: int | None = None) -> Iterator[None]:
        with _lock:
            kept = _states()
            if seed is not None or self._own is None:
                random.seed(seed or 0)
                np.random.seed((seed or 0) % _NUMPY_SEEDS)
            else:
                _set_states(self._own)
            try:
                yield
            finally:
                self._own = _states()
                _set_states(kept)


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set_states(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
