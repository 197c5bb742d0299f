"""Transactions of the buffer: each locks the job's row, so that one happens after another.

with database.writing(member) as now:           # the member lives, or LeaseLost
    now.drop(ids, DropReason.TOO_OLD)
    now.signal(Signal.PLACES)
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, CursorResult, Engine, RowMapping

from envsdk.buffer.contract import (
    Agreement,
    DropReason,
    GroupState,
    JobStatus,
    JobView,
    LeaseLost,
    Meaning,
    Member,
    Role,
    Signal,
    Terms,
)
from envsdk.buffer.rows import OPENED, count_dropped, is_in
from envsdk.buffer.tables import groups, job, members, payloads, signals
from envsdk.buffer.waking import CHANNEL


class Database:
    """Opens transactions. `clock` gives Unix seconds; the same for all programs of the job."""

    def __init__(
        self, engine: Engine, *, lease_s: float, clock: Callable[[Connection], float] | None
    ) -> None:
        self.engine = engine
        self.lease_s = lease_s
        self.clock = clock or database_time

    @contextmanager
    def writing(self, member: Member | None = None) -> Iterator[Transaction]:
        """A transaction that changes something. It begins with a sign of life of `member`; LeaseLost."""
        with self.engine.begin() as connection:
            state = connection.execute(sa.select(job).with_for_update()).mappings().one()
            transaction = Transaction(connection, state, self.clock(connection), self.lease_s)
            if member is not None:
                transaction.check_alive(member)
            yield transaction

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that changes nothing."""
        with self.engine.connect().execution_options(reads_only=True) as connection:
            yield connection


class Transaction:
    """Owner: one method of the buffer."""

    def __init__(self, connection: Connection, state: RowMapping, now: float, lease_s: float) -> None:
        self.connection = connection
        self.state = state
        """The job's row, which nobody else changes until the transaction ends."""
        self.now = now
        """Unix time."""
        self.lease_s = lease_s

    @cached_property
    def terms(self) -> Terms:
        return Terms.from_json(self.state["terms"])

    @property
    def min_version(self) -> int:
        """Oldest version of a group that may still be put or used."""
        return self.terms.min_version(self.state["version"])

    def execute(self, statement: sa.Executable, values: Any = None) -> CursorResult[Any]:
        """As `Connection.execute`."""
        return self.connection.execute(statement, values)

    def signal(self, *which: Signal) -> None:
        """Wake the programs that wait for one of these."""
        self.execute(signals.update().where(signals.c.name.in_(which)).values(number=signals.c.number + 1))
        if self.connection.dialect.name == "postgresql":
            self.execute(sa.select(sa.func.pg_notify(CHANNEL, "")))

    def row_of(self, member: Member) -> RowMapping | None:
        """Row of a member that has not left."""
        row = self.execute(sa.select(members).where(_is(member))).mappings().first()
        is_it = row is not None and row["incarnation"] == member.incarnation and row["left_at"] is None
        return row if is_it else None

    def check_alive(self, member: Member) -> None:
        """Every call is a sign of life; LeaseLost for one that others took for dead.

        When no program was heard for a lease, the database was away: all leases last one more. The same holds
        for a program that was heard at a time which is yet to come.
        """
        now, living = self.now, members.c.left_at.is_(None)
        renewed = {"expires_at": now + self.lease_s}
        heard_at = self.execute(sa.select(sa.func.max(members.c.seen_at)).where(living)).scalar()
        if heard_at is not None and now - heard_at > self.lease_s:
            self.execute(members.update().where(living).values(renewed))
        elif heard_at is not None and heard_at > now:
            # The clock went back, and would keep the dead alive until it is there again.
            ahead = sa.and_(living, members.c.seen_at > now)
            self.execute(members.update().where(ahead).values(renewed | {"seen_at": now}))
        if self.row_of(member) is None:
            raise LeaseLost(
                f"the {member.role} {member.name!r} was not heard for more than buffer.lease_s "
                f"({self.lease_s:g} s), another was started in its place, or the trainer went back"
            )
        self.update_member(member, renewed | {"seen_at": now})

    def update_member(self, member: Member, values: Mapping[str, Any]) -> None:
        """Change columns of its row."""
        self.execute(members.update().where(_is(member)).values(values))

    def end_the_silent(self) -> None:
        """End the members whose lease has run out."""
        silent = sa.select(members).where(members.c.left_at.is_(None), members.c.expires_at < self.now)
        for row in self.execute(silent).mappings().all():
            self.end_member(row)

    def end_member(self, row: RowMapping, *, num_lost: int = 1) -> None:
        """It left, or is gone: what it plays is open again, and has used up `num_lost` attempts more."""
        if row["left_at"] is None:
            same = sa.and_(members.c.role == row["role"], members.c.name == row["name"])
            self.execute(members.update().where(same).values(left_at=self.now, wants=0))
        is_held = sa.and_(is_in(GroupState.LEASED), groups.c.incarnation == row["incarnation"])
        held = self.execute(sa.select(groups.c.id, groups.c.attempt).where(is_held)).all()
        if not held:
            return
        given_up = [each.id for each in held if each.attempt + num_lost >= self.terms.max_group_attempts]
        self.drop(given_up, DropReason.GIVEN_UP)
        self.execute(groups.update().where(is_held).values(**OPENED, attempt=groups.c.attempt + num_lost))
        self.signal(Signal.PLACES)

    def drop(self, ids: Sequence[int], reason: str) -> None:
        """End these groups; no batch may hold them."""
        if not ids:
            return
        lost = sa.select(groups.c.tag, sa.func.sum(groups.c.num_tokens)).where(groups.c.id.in_(ids))
        tokens = self.connection.execute(lost.group_by(groups.c.tag)).all()
        self.count_dropped({tag: int(number) for tag, number in tokens if number})
        self.execute(
            groups.update()
            .where(groups.c.id.in_(ids))
            .values(
                state=GroupState.DROPPED,
                reason=str(reason),
                ended_at=self.now,
                oldest_version=sa.case((groups.c.ready_at.is_not(None), groups.c.oldest_version)),
            )
        )
        self.execute(payloads.delete().where(payloads.c.group_id.in_(ids)))

    def drop_the_old(self, min_version: int) -> None:
        """End ready groups that no batch may hold. One that was in a batch already stays in that."""
        old = sa.and_(is_in(GroupState.READY), groups.c.oldest_version < min_version)
        used = sa.and_(old, groups.c.uses > 0)
        self.execute(groups.update().where(used).values(state=GroupState.TAKEN))
        self.drop(self.execute(sa.select(groups.c.id).where(old)).scalars().all(), DropReason.TOO_OLD)

    def count_dropped(self, tokens: Mapping[str, int]) -> None:
        """Sampled tokens by tag that the buffer has thrown away."""
        count_dropped(self.connection, "", tokens, add=True)


def job_view(connection: Connection, state: RowMapping, now: float, member: Member | None = None) -> JobView:
    """How the job stands; `held` is of this member."""
    held: Sequence[int] = ()
    if member is not None:
        is_held = sa.and_(is_in(GroupState.LEASED), groups.c.incarnation == member.incarnation)
        held = connection.execute(sa.select(groups.c.id).where(is_held)).scalars().all()
    trainer = connection.execute(
        sa.select(members.c.left_at, members.c.expires_at).where(members.c.role == Role.TRAINER)
    ).all()
    ends = [row.expires_at if row.left_at is None else min(row.left_at, row.expires_at) for row in trainer]
    lives = any(row.left_at is None and row.expires_at >= now for row in trainer)
    explorers = sa.select(members.c.name, members.c.version).where(
        members.c.role == Role.EXPLORER, members.c.left_at.is_(None), members.c.expires_at >= now
    )
    return JobView(
        status=JobStatus(state["status"]),
        step=state["step"],
        version=state["version"],
        min_version=Terms.from_json(state["terms"]).min_version(state["version"]),
        held=frozenset(held),
        trainer_silent_s=None if lives else now - max(ends, default=state["created_at"]),
        explorer_versions={row.name: row.version for row in connection.execute(explorers)},
    )


def database_time(connection: Connection) -> float:
    """The server's, where there is one: the machines of a job may disagree."""
    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.execute(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))).scalar_one())


def _is(member: Member) -> sa.ColumnElement[bool]:
    return sa.and_(members.c.role == member.role, members.c.name == member.name)


def agreed(connection: Connection, meaning: Meaning, now: float) -> Agreement:
    """The meanings in the job with one of a program that is not a living member. ConfigurationError."""
    state = connection.execute(sa.select(job)).mappings().one()
    living = sa.select(members).where(members.c.left_at.is_(None), members.c.expires_at > now)
    return meaning.joined(
        json.loads(state["tags"]),
        is_alone=all(map(has_ended, connection.execute(living).mappings())),
        has_begun=state["version"] >= 0,
    )


def has_ended(row: RowMapping) -> bool:
    """Whether this machine knows that the program is gone."""
    if row["host"] != socket.gethostname():
        return False
    try:
        os.kill(row["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def already_there(role: Role, row: RowMapping, now: float) -> str:
    where = f"process {row['pid']} on {row['host']}, heard {now - row['seen_at']:.0f} s ago"
    if role is Role.TRAINER:
        return f"this job has a trainer already ({where}); end it first, or choose another exp_name"
    return f"an explorer named {row['name']!r} plays already ({where}); give this one another explorer.name"
