"""Opens a buffer's database: SQLite or PostgreSQL, by SQLAlchemy."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event, make_url
from sqlalchemy.exc import ArgumentError

from envsdk.failures import ConfigurationError
from envsdk.settings.extras import require
from envsdk.store.atomic import make_folder

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
    assert url.database is not None
    make_folder(Path(url.database).parent)
    engine = sa.create_engine(url, connect_args={"timeout": busy_s, "check_same_thread": False})
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: sqlite3.Connection, record: Any) -> None:
    connection.isolation_level = None  # transactions are begun by `_begin`
    # With FULL, what a program was told is on the disk; with less, a batch could be forgotten that a
    # checkpoint has trained.
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    # A transaction that reads first and writes later fails where another writes in between.
    reads_only = connection.get_execution_options().get("reads_only")
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")
