"""SqlBuffer: the experience buffer, with the calls of every member of a job.

    explorer:  join -> (claim -> put | drop | hand_back)* -> leave        renew, all the time
    trainer:   begin -> (publish -> take)* -> trained -> ... -> finish    renew, all the time

Each method is one transaction, and may be repeated with the same arguments when its caller cannot know
whether it was committed: the database was away at that moment. Calls block; they may come from any thread.

A program's lease runs out when it has not called `renew` for `lease_s`. What it played is then open again.
`explorer_side.py` and `trainer_side.py` have the calls of one role, `transaction.py` what they share.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from envsdk.buffer import tables
from envsdk.buffer.contract import (
    NO_MEANING,
    GroupState,
    JobStatus,
    JobView,
    Meaning,
    Member,
    PublishedVersion,
    Role,
    Signal,
    Terms,
)
from envsdk.buffer.explorer_side import ExplorerSide
from envsdk.buffer.rows import dropped_by_tag, is_in, published_version
from envsdk.buffer.tables import groups, job, members, signals, versions
from envsdk.buffer.trainer_side import TrainerSide
from envsdk.buffer.transaction import Database, agreed, already_there, has_ended, job_view
from envsdk.contracts.failures import ConfigurationError, StorageError


class SqlBuffer:
    """One buffer. `clock` gives Unix seconds; the same for all its programs."""

    def __init__(
        self, engine: Engine, *, lease_s: float, clock: Callable[[Connection], float] | None = None
    ) -> None:
        self.engine = engine
        self._database = Database(engine, lease_s=lease_s, clock=clock)
        self.explorer = ExplorerSide(self._database)
        self.trainer = TrainerSide(self._database)

    def create(self, name: str, terms: Terms, meaning: Meaning = NO_MEANING) -> bool:
        """Make the tables and the job, unless they are there; whether they were made.

        ConfigurationError when another job or other tables are there, or this job has other terms or means
        something else.
        """
        clock = self._database.clock
        with self.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                # Two programs that start at once would both find nothing.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATING)))
            tables.make(connection)
            there = connection.execute(sa.select(job.c.name)).scalar()
            if there is None:
                connection.execute(
                    job.insert().values(
                        id=1,
                        format=tables.FORMAT,
                        name=name,
                        terms=terms.to_json(),
                        tags="{}",
                        status=JobStatus.WAITING,
                        step=0,
                        version=-1,
                        awaits_batch=False,
                        created_at=clock(connection),
                    )
                )
                connection.execute(signals.insert(), [{"name": signal, "number": 0} for signal in Signal])
            elif there != name:
                raise ConfigurationError(
                    f"the buffer is that of another job, {there!r}: give this one, {name!r}, a database of "
                    "its own (buffer.trainer_input.experience_buffer.path)"
                )
            _terms(connection).check_same(terms)
            agreed(connection, meaning, clock(connection))
            return there is None

    def terms(self) -> Terms:
        """What the programs of the job agree on. StorageError for a buffer of a later version of envsdk."""
        with self._database.reading() as connection:
            return _terms(connection)

    def join(self, role: Role, name: str, meaning: Meaning = NO_MEANING) -> Member:
        """Take part in the job under this name.

        Args:
            role: What the program does. A job has one trainer at a time.
            name: No two living programs of a role have the same.
            meaning: What it takes token ids and tags to be.

        Raises:
            ConfigurationError: Another program lives under the name, or the others mean something else.
        """
        with self._database.writing() as tx:
            now = tx.now
            alone = members.c.role == role if role is Role.TRAINER else members.c.name == name
            same = members.c.role == role
            for row in tx.execute(sa.select(members).where(same, alone)).mappings():
                if row["left_at"] is None and row["expires_at"] > now and not has_ended(row):
                    raise ConfigurationError(already_there(role, row, now))
                tx.end_member(row)
            found = agreed(tx.connection, meaning, now)
            tx.execute(job.update().values(tags=json.dumps(found.written)))
            member = Member(role=role, name=name, incarnation=uuid.uuid4().hex, notes=found.notes)
            tx.execute(members.delete().where(same, members.c.name == name))
            tx.execute(
                members.insert().values(
                    role=role,
                    name=name,
                    incarnation=member.incarnation,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    joined_at=now,
                    seen_at=now,
                    expires_at=now + tx.lease_s,
                    left_at=None,
                    version=-1,
                    wants=0,
                    waited_places_s=0.0,
                    waited_weights_s=0.0,
                )
            )
        return member

    def renew(
        self,
        member: Member,
        *,
        version: int = -1,
        waited_places_s: float = 0.0,
        waited_weights_s: float = 0.0,
    ) -> JobView:
        """This program lives.

        Args:
            member: Who says so.
            version: Of the weights that an explorer plays with.
            waited_places_s: Seconds that it has waited for places so far.
            waited_weights_s: And for weights.

        Raises:
            LeaseLost: It was taken for dead, and what it played is played by others.
        """
        waited = {"waited_places_s": waited_places_s, "waited_weights_s": waited_weights_s}
        with self._database.writing(member) as tx:
            tx.update_member(member, {"version": version, **waited})
            tx.end_the_silent()
            return job_view(tx.connection, tx.state, tx.now, member)

    def leave(self, member: Member) -> None:
        """This program ends; what it still plays is open again."""
        with self._database.writing() as tx:
            if (row := tx.row_of(member)) is not None:
                # It says so itself: that is no sign that its groups are what ends explorers.
                tx.end_member(row, num_lost=0)

    def newest_version(self) -> PublishedVersion | None:
        """The weights that were published last."""
        with self._database.reading() as connection:
            query = sa.select(versions).order_by(versions.c.version.desc()).limit(1)
            row = connection.execute(query).mappings().first()
        return None if row is None else published_version(row)

    def step_of(self, version: int) -> int | None:
        """The step at which this version was published, perhaps by an earlier process; None if it was not."""
        with self._database.reading() as connection:
            return connection.execute(
                sa.select(versions.c.step).where(versions.c.version == version)
            ).scalar()

    def view(self, member: Member | None = None) -> JobView:
        """How the job stands; `held` is of this member."""
        with self._database.reading() as connection:
            state = connection.execute(sa.select(job)).mappings().one()
            return job_view(connection, state, self._database.clock(connection), member)

    def dropped_tokens(self) -> dict[str, int]:
        """Sampled tokens by tag that were thrown away so far."""
        with self._database.reading() as connection:
            return dropped_by_tag(connection)

    def num_ready(self) -> int:
        """Groups that are ready."""
        with self._database.reading() as connection:
            query = sa.select(sa.func.count()).select_from(groups).where(is_in(GroupState.READY))
            return int(connection.execute(query).scalar_one())

    def signal_number(self, signal: Signal) -> int:
        """How often this happened so far."""
        with self._database.reading() as connection:
            query = sa.select(signals.c.number).where(signals.c.name == signal)
            return int(connection.execute(query).scalar_one())


_CREATING = 7_105_212
"""Key of an advisory lock: any number that nobody else takes."""


def _terms(connection: Connection) -> Terms:
    row = connection.execute(sa.select(job.c.format, job.c.terms)).one()
    if row.format > tables.FORMAT:
        raise StorageError(
            f"the buffer has format {row.format}; this envsdk uses up to {tables.FORMAT}. Upgrade envsdk"
        )
    return Terms.from_json(row.terms)
