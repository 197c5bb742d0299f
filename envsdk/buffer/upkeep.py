"""What a person may change in a buffer, also while its programs run: drop groups, export them, free space.

dropped = drop_by_hand(engine, Which(states=("ready",), explorers=("node7",)))
freed = vacuum(engine)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from envsdk.buffer.contract import GroupState, Role, Signal
from envsdk.buffer.payload import from_bytes
from envsdk.buffer.places import snapshot
from envsdk.buffer.rows import take_out
from envsdk.buffer.tables import groups, job, members, payloads, signals
from envsdk.buffer.transaction import database_time, has_ended
from envsdk.contracts.failures import StorageError
from envsdk.contracts.trajectory import Trajectory

BY_HAND = "dropped by hand"
DROPPABLE = (GroupState.OPEN, GroupState.LEASED, GroupState.READY)
"""What a trainer has taken belongs to a batch, which it may ask for once more."""
_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Some groups: those that fit every choice; a choice that is empty excludes none."""

    states: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    explorers: tuple[str, ...] = ()
    versions: tuple[int, ...] = ()
    """Versions of the oldest token."""
    groups: tuple[int, ...] = ()
    """Ids."""

    @property
    def is_all(self) -> bool:
        return self == Which()

    def where(self) -> sa.ColumnElement[bool]:
        """The choice as a condition."""
        choices = {
            groups.c.state: self.states,
            groups.c.tag: self.tags,
            groups.c.explorer: self.explorers,
            groups.c.oldest_version: self.versions,
            groups.c.id: self.groups,
        }
        return sa.and_(sa.true(), *(column.in_(values) for column, values in choices.items() if values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """What `drop_by_hand` did."""

    num_by_state: dict[str, int]
    """Groups that were dropped, by the state in which they were."""
    num_kept: int
    """Groups that fit, and stay because a trainer has taken them."""


def drop_by_hand(engine: Engine, which: Which) -> Dropped:
    """Drop the groups that fit, unless a trainer has taken them. Explorers that play them leave them.

    Groups named by their ids are taken out of batches too, while no trainer lives and no checkpoint holds
    them: the next trainer fills their places.
    """
    was_used = groups.c.uses > 0
    droppable = sa.and_(which.where(), groups.c.state.in_(DROPPABLE), ~was_used)
    is_ready, is_taken = (groups.c.state == state for state in (GroupState.READY, GroupState.TAKEN))
    taken = sa.and_(which.where(), sa.or_(is_taken, sa.and_(was_used, is_ready)))
    with engine.begin() as connection:
        connection.execute(sa.select(job.c.id).with_for_update())
        count = sa.select(groups.c.state, sa.func.count()).where(droppable).group_by(groups.c.state)
        num_by_state = {state: int(number) for state, number in connection.execute(count).all()}
        if num_taken := _take_out(connection, which):
            num_by_state[GroupState.TAKEN] = num_taken
        num_kept = connection.execute(sa.select(sa.func.count()).where(taken)).scalar_one()
        ids = sa.select(groups.c.id).where(droppable)
        connection.execute(payloads.delete().where(payloads.c.group_id.in_(ids)))
        connection.execute(
            groups.update()
            .where(droppable)
            .values(state=GroupState.DROPPED, reason=BY_HAND, ended_at=database_time(connection))
        )
        if num_by_state:
            connection.execute(
                signals.update().where(signals.c.name == Signal.PLACES).values(number=signals.c.number + 1)
            )
    return Dropped(num_by_state=num_by_state, num_kept=num_kept)


def _take_out(connection: Connection, which: Which) -> int:
    """Out of batches that no checkpoint holds; how many."""
    now = database_time(connection)
    alive = sa.select(members).where(
        members.c.role == Role.TRAINER, members.c.left_at.is_(None), members.c.expires_at > now
    )
    if not which.groups or not all(map(has_ended, connection.execute(alive).mappings())):
        return 0
    query = sa.select(groups.c.step, groups.c.id).where(which.where(), groups.c.state == GroupState.TAKEN)
    taken = connection.execute(query).all()
    for step, group_id in taken:
        take_out(connection, step, [group_id], BY_HAND, now)
    return len(taken)


def stored_trajectories(engine: Engine, which: Which) -> Iterator[Trajectory]:
    """The trajectories of the groups that fit and have any, by the groups' ids.

    Read some groups at a time, so that writers are not held up: a group that ends meanwhile may be left out.
    StorageError for a group that is damaged.
    """
    last = -1
    while True:
        query = (
            sa.select(payloads.c.group_id, payloads.c.data)
            .join(groups, groups.c.id == payloads.c.group_id)
            .where(which.where(), payloads.c.group_id > last)
            .order_by(payloads.c.group_id)
            .limit(_AT_ONCE)
        )
        with snapshot(engine) as connection:
            rows = connection.execute(query).all()
        for row in rows:
            try:
                yield from from_bytes(row.data)
            except StorageError as error:
                raise StorageError(f"group {row.group_id}: {error}") from error
        if not rows:
            return
        last = rows[-1].group_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """What `vacuum` did."""

    num_groups: int
    """Whose payloads were removed."""
    payload_bytes: int
    disk_bytes: int
    """Bytes by which the database became smaller."""


def vacuum(engine: Engine) -> Freed:
    """Remove the payloads of groups that are trained or dropped, and give the space back.

    A trainer can then no longer continue from a checkpoint before such a group's step.
    """
    before = _size(engine)
    ended = sa.select(groups.c.id).where(groups.c.state.in_([GroupState.TRAINED, GroupState.DROPPED]))
    with engine.begin() as connection:
        connection.execute(sa.select(job.c.id).with_for_update())
        going = payloads.c.group_id.in_(ended)
        number, size = connection.execute(
            sa.select(sa.func.count(), sa.func.sum(sa.func.length(payloads.c.data))).where(going)
        ).one()
        connection.execute(payloads.delete().where(going))
    if engine.dialect.name == "sqlite":
        # Neither may run in a transaction.
        _outside(engine, "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)")
    else:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as alone:
            alone.exec_driver_sql(f"VACUUM (FULL) {payloads.name}")
    return Freed(
        num_groups=int(number), payload_bytes=int(size or 0), disk_bytes=max(0, before - _size(engine))
    )


def _outside(engine: Engine, *statements: str) -> None:
    connection = engine.raw_connection()
    try:
        for statement in statements:
            connection.cursor().execute(statement)
    finally:
        connection.close()


def _size(engine: Engine) -> int:
    """Bytes of the database, on the disk."""
    if engine.dialect.name == "sqlite":
        name = engine.url.database or ""
        return sum(path.stat().st_size for path in (Path(name), Path(f"{name}-wal")) if path.is_file())
    with engine.connect() as connection:
        return int(connection.execute(sa.select(sa.func.pg_total_relation_size(payloads.name))).scalar_one())
