"""Opens a buffer's database: SQLite or PostgreSQL, by SQLAlchemy."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError

from envsdk.base.settings.extras import require
from envsdk.contracts.failures import ConfigurationError, StorageError

BUSY_S = 5.0


def url_of(path: str) -> sa.URL:
    """The URL that `path` means: one itself, or a SQLite file."""
    if "://" not in path:
        if re.match(r"[a-z+]+(://?|//)", path):
            raise ConfigurationError(f"{path} is neither a file nor a URL, which would have `://`")
        return sa.URL.create("sqlite", database=str(Path(path).expanduser()))
    try:
        url = make_url(path)
    except ArgumentError as error:
        raise ConfigurationError(
            f"{path} is no URL of a database; write postgresql://USER@HOST/NAME, sqlite:///FILE, or a file's "
            "name"
        ) from error
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "sqlite":
        raise ConfigurationError(f"{path}: the buffer is kept in SQLite or PostgreSQL")
    if url.database in (None, "", ":memory:"):
        raise ConfigurationError(f"{path}: name a file; memory is not shared with other programs")
    return url


def open_engine(path: str, *, busy_s: float = BUSY_S) -> Engine:
    """Connections to the database; none is made yet.

    `busy_s` is how long a statement waits for another program's transaction on SQLite.
    ConfigurationError for a URL that cannot be used here.
    """
    require("the buffer", "sqlalchemy")
    url = url_of(path)
    if url.get_backend_name() == "postgresql":
        require("a buffer in PostgreSQL", "psycopg")
        return sa.create_engine(url, pool_pre_ping=True)
    file = Path(url.database or "")
    if file.is_dir():
        raise ConfigurationError(
            f"the buffer {file} is a folder: name a file in it, such as {file / 'job.db'}"
        )
    if not file.parent.is_dir():
        raise ConfigurationError(
            f"the buffer's folder {file.parent} is not there, for {file.name}: make it, or correct the path"
        )
    engine = sa.create_engine(url, connect_args={"timeout": busy_s, "check_same_thread": False})
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def shown_place(path: str) -> str:
    """The file, or the URL without its password."""
    url = url_of(path)
    plain = url.set(drivername=url.get_backend_name())
    return (url.database if plain.drivername == "sqlite" else None) or plain.render_as_string()


def may_pass(error: DBAPIError) -> bool:
    """Whether it may work a moment later: a locked file, a full disk, a server that starts again."""
    if error.connection_invalidated:
        return True
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, OperationalError) and not _is_refusal(error)
    return code & 0xFF in _PASSING


def told(error: DBAPIError, place: str) -> StorageError:
    """What is wrong with the buffer at `place`, and what to do."""
    code, reason = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF, reason_of(error)
    if code == sqlite3.SQLITE_NOTADB:
        return StorageError(f"{place} is no database: name another file, or put the buffer's copy there")
    if code == sqlite3.SQLITE_CORRUPT:
        return StorageError(
            f"{place} is damaged ({reason}): put a copy there, or begin another exp_name with the newest "
            "checkpoint's model as `pretrain`"
        )
    if code == sqlite3.SQLITE_BUSY:
        return StorageError(
            f"{place} is locked: another program has been writing for more than {BUSY_S:g} s. Try again"
        )
    if is_other_schema(error):
        return StorageError(f"{place} is no buffer of this envsdk ({reason}): name another database")
    if _is_refusal(error):
        return StorageError(
            f"{place} refuses this program: {reason}. Correct the user, the database or the password "
            "(PGPASSWORD, ~/.pgpass)"
        )
    if isinstance(error, OperationalError | InterfaceError) and "://" in place:
        return StorageError(f"{place} does not answer: {reason}. Check the address and that the server runs")
    return StorageError(f"{place} cannot be used: {reason}")


def reason_of(error: DBAPIError) -> str:
    """What the database says, on one line."""
    return " ".join(str(error.orig).split())


def is_other_schema(error: DBAPIError) -> bool:
    """Whether tables or columns are missing."""
    missing = re.search(r"no such (table|column)|has no column named", str(error.orig))
    return missing is not None or getattr(error.orig, "sqlstate", "") in ("42P01", "42703")


_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}
_REFUSAL = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|is not permitted to log in"
    r"|(role|database) \".*\" does not exist"
)
"""What a server says of SQLSTATE 28000, 28P01 and 3D000: libpq gives no code while it connects."""


def _is_refusal(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return str(state).startswith("28") or state == "3D000"
    return isinstance(error, OperationalError) and _REFUSAL.search(str(error.orig)) is not None


def _prepare(connection: sqlite3.Connection, record: Any) -> None:
    connection.isolation_level = None  # transactions are begun by `_begin`
    # With FULL, each answer that a program got is on the disk; with less, a batch could be forgotten that a
    # checkpoint has trained.
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    # A transaction that reads first and writes later fails where another writes in between.
    reads_only = connection.get_execution_options().get("reads_only")
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")
