"""Locks by a key, of one event loop each, that are there as long as somebody holds them or waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from weakref import WeakKeyDictionary, WeakValueDictionary

_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[Hashable, asyncio.Lock]]
_locks = WeakKeyDictionary()


def lock_of(key: Hashable) -> asyncio.Lock:
    """The lock that all callers with this key on this event loop share."""
    here = _locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return here.setdefault(key, asyncio.Lock())
