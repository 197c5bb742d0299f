"""The tables of the buffer, the same on SQLite and PostgreSQL."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    inspect,
)

from envsdk.contracts.failures import ConfigurationError

FORMAT = 1
"""Raised when earlier versions of envsdk can no longer use a buffer."""

_ID = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts up by itself only under this name of the type."""

metadata = MetaData()

job = Table(
    "job",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("format", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("terms", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("step", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("awaits_batch", Boolean, nullable=False),
    Column("created_at", Float(53), nullable=False),
)
"""One row. A transaction that changes several tables locks it first."""

members = Table(
    "members",
    metadata,
    Column("role", String(16), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("incarnation", String(64), nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("joined_at", Float(53), nullable=False),
    Column("seen_at", Float(53), nullable=False),
    Column("expires_at", Float(53), nullable=False),
    Column("left_at", Float(53)),
    Column("version", Integer, nullable=False),
    Column("wants", Integer, nullable=False),
    Column("waited_places_s", Float(53), nullable=False),
    Column("waited_weights_s", Float(53), nullable=False),
)
"""Programs, living and gone; one row per name."""

cursors = Table(
    "cursors",
    metadata,
    Column("tag", String(200), primary_key=True),
    Column("next_index", BigInteger, nullable=False),
)
"""The next task of each tag."""

task_sampler = Table(
    "task_sampler",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("state", Text, nullable=False),
)
"""One row, where the job's terms name a task sampler: what it has learned."""

groups = Table(
    "groups",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("tag", String(200), nullable=False),
    Column("task_index", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("attempt", Integer, nullable=False),
    Column("explorer", String(200), nullable=False),
    Column("incarnation", String(64), nullable=False),
    Column("token", String(64), nullable=False),
    Column("oldest_version", Integer),
    Column("uses", Integer, nullable=False),
    Column("step", Integer),
    Column("rests_until", Integer, nullable=False),
    Column("num_trajectories", Integer, nullable=False),
    Column("num_tokens", BigInteger, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("mean_reward", Float(53), nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("leased_at", Float(53)),
    Column("ready_at", Float(53)),
    Column("taken_at", Float(53)),
    Column("ended_at", Float(53)),
)
for _state in ("open", "leased", "ready", "taken"):
    # The groups that matter now are few, those of the past many.
    Index(
        f"groups_{_state}",
        groups.c.id,
        sqlite_where=groups.c.state == _state,
        postgresql_where=groups.c.state == _state,
    )

payloads = Table(
    "payloads",
    metadata,
    Column("group_id", _ID, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("step", Integer, nullable=False),
    Column("location", Text, nullable=False),
    Column("published_at", Float(53), nullable=False),
)

batches = Table(
    "batches",
    metadata,
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("waited_s", Float(53), nullable=False),
    Column("taken_at", Float(53), nullable=False),
    Column("trained_at", Float(53)),
)

batch_groups = Table(
    "batch_groups",
    metadata,
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("group_id", _ID, primary_key=True, autoincrement=False),
    Index("batch_groups_by_group", "group_id"),
)
"""Which groups each batch holds."""

dropped_tokens = Table(
    "dropped_tokens",
    metadata,
    Column("incarnation", String(64), primary_key=True),
    Column("tag", String(200), primary_key=True),
    Column("num_tokens", BigInteger, nullable=False),
)
"""Sampled tokens that were thrown away: by each start of an explorer before its groups were complete, and by
the buffer itself, under an empty name."""

signals = Table(
    "signals",
    metadata,
    Column("name", String(16), primary_key=True),
    Column("number", BigInteger, nullable=False),
)


def make(connection: Connection) -> None:
    """Make the tables, unless they are there. ConfigurationError in a database that something else uses.

    A file is a buffer's alone. A server's database may have tables of others, under other names.
    """
    there = set(inspect(connection).get_table_names())
    if connection.dialect.name == "postgresql":
        there &= metadata.tables.keys()
    if there and job.name not in there:
        place = connection.engine.url.database
        raise ConfigurationError(
            f"{place} is no buffer, it has tables of something else ({', '.join(sorted(there)[:5])}): name "
            "another database (buffer.trainer_input.experience_buffer.path)"
        )
    metadata.create_all(connection)
