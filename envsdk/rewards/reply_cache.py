"""Replies by a digest of what was asked: bounded, in memory and optionally in a file.

cache = ReplyCache(size=1000, file=Path("judge.sqlite"))
cache.put(key, "YES")
cache.get(key)          # "YES", also in another process that uses the file
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from envsdk.contracts.failures import ConfigurationError

_BUSY_S = 0.2
"""How long another process may hold the file; after that its entry counts as missing."""


class ReplyCache:
    """The newest `size` replies. A file that fails later is as one without the entry."""

    def __init__(self, *, size: int, file: Path | None) -> None:
        """ConfigurationError when the file cannot be used."""
        self._size = size
        self._memory: OrderedDict[str, str] = OrderedDict()
        self._file: sqlite3.Connection | None = None
        if file is not None and size > 0:
            self._file = _open(file)

    def get(self, key: str) -> str | None:
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]
        if self._file is not None:
            with suppress(sqlite3.Error):
                row = self._file.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    self._remember(key, row[0])
                    return str(row[0])
        return None

    def put(self, key: str, reply: str) -> None:
        if self._size == 0:
            return
        self._remember(key, reply)
        if self._file is not None:
            with suppress(sqlite3.Error), self._file:
                self._file.execute("INSERT OR REPLACE INTO replies (key, reply) VALUES (?, ?)", (key, reply))
                # A replaced row gets a number above all others, so that the lowest are the oldest.
                self._file.execute(
                    "DELETE FROM replies WHERE number <= (SELECT MAX(number) FROM replies) - ?", (self._size,)
                )

    def _remember(self, key: str, reply: str) -> None:
        self._memory[key] = reply
        self._memory.move_to_end(key)
        while len(self._memory) > self._size:
            self._memory.popitem(last=False)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _open(file: Path) -> sqlite3.Connection:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(file, timeout=_BUSY_S)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")  # a cache may lose its end
        connection.execute(
            "CREATE TABLE IF NOT EXISTS replies"
            " (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, reply TEXT)"
        )
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"cache_file {file}: {error}") from error
    return connection
