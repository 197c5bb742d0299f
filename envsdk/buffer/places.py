"""Finds and opens a buffer that is there already: by a job's folder, a SQLite file or a database's URL."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
import yaml
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from envsdk.base.settings.extras import require
from envsdk.buffer import tables
from envsdk.buffer.connecting import BUSY_S, is_other_schema, open_engine, shown_place, told, url_of
from envsdk.buffer.contract import BUFFER_FILE
from envsdk.contracts.failures import ConfigurationError, StorageError

_CONFIG_FILES = ("config.yaml", "explorers/*/config.yaml")


def buffer_of_job(folder: Path) -> str | None:
    """The buffer of the job in `folder`: its URL or file; None when the folder is of no such job."""
    for path in (path for name in _CONFIG_FILES for path in sorted(folder.glob(name))):
        named = _named_in(path)
        if named is not None:
            return named
    own = folder / BUFFER_FILE
    return str(own) if own.is_file() else None


def find_buffer(path: str) -> str:
    """The URL or file that `path` means. ConfigurationError when nothing is there."""
    if "://" in path:
        url = url_of(path)
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
            raise ConfigurationError(f"there is no file {url.database}")
        return path
    place = Path(path).expanduser()
    if place.is_dir():
        found = buffer_of_job(place)
        if found is None:
            raise ConfigurationError(
                f"{place} has no {BUFFER_FILE}, and no config.yaml that names a buffer: give the folder of a "
                "job whose explorers and trainer are programs of their own (output_dir/exp_name), or the "
                "buffer itself"
            )
        return found if "://" in found else find_buffer(found)
    if not place.exists():
        raise ConfigurationError(
            f"there is no {place}: give a job's folder, its buffer's file, or a URL such as "
            "postgresql://user@host/name"
        )
    return str(place)


@contextmanager
def opened(found: str, *, to_change: bool = False) -> Iterator[Engine]:
    """Connections to the buffer at `found`, checked: read-only unless it is `to_change`.

    An error in the block is raised as one of the buffer's.

    Raises:
        StorageError: It is no buffer, of a later format, locked, damaged, or its server does not answer.
    """
    require("the buffer", "sqlalchemy")
    is_file = url_of(found).get_backend_name() == "sqlite"
    engine = open_engine(found, busy_s=BUSY_S) if to_change or not is_file else _read_only(found)
    try:
        _check(engine, found)
        yield engine
    except DBAPIError as error:
        raise told(error, shown_place(found)) from error
    finally:
        engine.dispose()


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """One transaction that only reads, and sees the database as it was when it began."""
    options: dict[str, object] = {"reads_only": True}
    if engine.dialect.name == "postgresql":
        options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with engine.connect().execution_options(**options) as connection:
        yield connection


def _read_only(found: str) -> Engine:
    name = Path(url_of(found).database or "").absolute()
    # Without a log there is nothing to share with writers, and in a folder that cannot be written to SQLite
    # could not even make the shared memory that readers need.
    is_still = not name.with_name(f"{name.name}-wal").exists() and not os.access(name.parent, os.W_OK)
    uri = f"file:{quote(str(name))}?mode=ro" + ("&immutable=1" if is_still else "")

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, check_same_thread=False)
        connection.isolation_level = None
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def _check(engine: Engine, found: str) -> None:
    with snapshot(engine) as connection:
        try:
            row = connection.execute(sa.select(tables.job.c.format)).first()
        except (OperationalError, ProgrammingError) as error:
            if is_other_schema(error):
                raise StorageError(f"{shown_place(found)} is no buffer: it has no table `job`") from error
            raise
    if row is None:
        raise StorageError(f"{shown_place(found)} holds no job yet: its first program is just starting")
    if row.format > tables.FORMAT:
        raise StorageError(
            f"{shown_place(found)} has format {row.format}; this envsdk uses up to {tables.FORMAT}. Upgrade "
            "envsdk"
        )


def _named_in(config: Path) -> str | None:
    """`buffer.trainer_input.experience_buffer.path` of a run's settings."""
    try:
        content = yaml.safe_load(config.read_text(encoding="utf-8"))
        path = content["buffer"]["trainer_input"]["experience_buffer"]["path"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None
    return path if isinstance(path, str) else None
