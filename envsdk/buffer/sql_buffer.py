"""SqlBuffer: the transactions of the experience buffer.

    explorer:  join -> (claim -> put | drop | hand_back)* -> leave        renew, all the time
    trainer:   begin -> (publish -> take)* -> trained -> ... -> finish    renew, all the time

Each method is one transaction, and may be repeated with the same arguments when its caller cannot know
whether it was committed: the database was away at that moment. Calls block; they may come from any thread.

A program's lease runs out when it has not called `renew` for `lease_s`. What it played is then open again.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, RowMapping

from envsdk.buffer import tables
from envsdk.buffer.contract import (
    ClaimedGroup,
    DropReason,
    FinishedGroup,
    GroupState,
    JobStatus,
    JobView,
    LeaseLost,
    Member,
    PublishedVersion,
    Role,
    Signal,
    TakenBatch,
    TakenGroup,
    Terms,
)
from envsdk.buffer.fairness import grant
from envsdk.buffer.selection import ReadyGroup, Selection, choose, fill, lacking_of
from envsdk.buffer.tables import (
    batch_groups,
    batches,
    cursors,
    groups,
    job,
    members,
    payloads,
    signals,
    versions,
)
from envsdk.buffer.waking import CHANNEL
from envsdk.failures import ConfigurationError, StorageError
from envsdk.trajectory import Task

TRAIN_SPLIT = "train"
OLDEST_ONCE = Selection()


class SqlBuffer:
    """One buffer. `clock` gives Unix seconds; the same for all its programs."""

    def __init__(
        self, engine: Engine, *, lease_s: float, clock: Callable[[Connection], float] | None = None
    ) -> None:
        self.engine = engine
        self._lease_s = lease_s
        self._clock = clock or database_time

    def create(self, name: str, terms: Terms) -> None:
        """Make the tables and the job, unless they are there.

        ConfigurationError when another job is there, or this one has other terms.
        """
        with self._writing() as connection:
            if connection.dialect.name == "postgresql":
                # Two programs that start at once would both find nothing.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATING)))
            tables.metadata.create_all(connection)
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
                        created_at=self._clock(connection),
                    )
                )
                connection.execute(signals.insert(), [{"name": signal, "number": 0} for signal in Signal])
            elif there != name:
                raise ConfigurationError(
                    f"the buffer is that of another job, {there!r}: give this one, {name!r}, a database of "
                    "its own (buffer.trainer_input.experience_buffer.path)"
                )
            self.terms(connection).check_same(terms)

    def terms(self, connection: Connection | None = None) -> Terms:
        """What the programs of the job agree on. StorageError for a buffer of a later version of envsdk."""
        with self._reading() if connection is None else _given(connection) as c:
            row = c.execute(sa.select(job.c.format, job.c.terms)).one()
        if row.format > tables.FORMAT:
            raise StorageError(
                f"the buffer has format {row.format}; this envsdk uses up to {tables.FORMAT}. Upgrade envsdk"
            )
        return Terms.from_json(row.terms)

    def join(self, role: Role, name: str, *, tags: Mapping[str, str] | None = None) -> Member:
        """Take part in the job under this name.

        Args:
            role: What the program does. A job has one trainer at a time.
            name: No two living programs of a role have the same.
            tags: Digest of each tag's settings that an explorer plays with, see `differing_tags`.

        Raises:
            ConfigurationError: Another program lives under the name.
        """
        with self._writing() as connection:
            state = self._lock(connection)
            now = self._clock(connection)
            alone = members.c.role == role if role is Role.TRAINER else members.c.name == name
            same = members.c.role == role
            for row in connection.execute(sa.select(members).where(same, alone)).mappings():
                if row["left_at"] is None and row["expires_at"] > now and not _has_ended(row):
                    raise ConfigurationError(_already_there(role, row, now))
                self._end_member(connection, row, now)
            known: dict[str, str] = json.loads(state["tags"])
            connection.execute(job.update().values(tags=json.dumps(dict(tags or {}) | known)))
            member = Member(role=role, name=name, incarnation=uuid.uuid4().hex)
            connection.execute(members.delete().where(same, members.c.name == name))
            connection.execute(
                members.insert().values(
                    role=role,
                    name=name,
                    incarnation=member.incarnation,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    joined_at=now,
                    seen_at=now,
                    expires_at=now + self._lease_s,
                    left_at=None,
                    version=-1,
                    wants=0,
                    waited_places_s=0.0,
                    waited_weights_s=0.0,
                )
            )
        return member

    def differing_tags(self, tags: Mapping[str, str]) -> list[str]:
        """The tags whose digest is not the one of the explorer that played them first."""
        with self._reading() as connection:
            known: dict[str, str] = json.loads(connection.execute(sa.select(job.c.tags)).scalar_one())
        return [tag for tag, digest in tags.items() if known.get(tag, digest) != digest]

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
        with self._writing() as connection:
            state = self._lock(connection)
            now = self._clock(connection)
            self._check_alive(connection, member, now)
            connection.execute(
                members.update()
                .where(members.c.role == member.role, members.c.name == member.name)
                .values(
                    version=version,
                    waited_places_s=waited_places_s,
                    waited_weights_s=waited_weights_s,
                )
            )
            self._end_the_silent(connection, now)
            return self._view(connection, state, member, now)

    def leave(self, member: Member) -> None:
        """This program ends; what it still plays is open again."""
        with self._writing() as connection:
            self._lock(connection)
            row = self._row_of(connection, member)
            if row is not None:
                # It says so itself: that is no sign that its groups are what ends explorers.
                self._end_member(connection, row, self._clock(connection), num_lost=0)

    def claim(self, member: Member, tags: Sequence[str], *, version: int, token: str) -> list[ClaimedGroup]:
        """Groups to play, as many of `tags` as there are places for this explorer now, in their order.

        Args:
            member: The explorer.
            tags: Of the groups that it would like, one entry each.
            version: Of its weights. Nothing is given to one whose weights are too old.
            token: A name of this call: repeated with it, the call gives the same groups.

        Raises:
            LeaseLost: The explorer was taken for dead.
        """
        with self._writing() as connection:
            state = self._lock(connection)
            now = self._clock(connection)
            self._check_alive(connection, member, now)
            again = sa.select(groups).where(
                groups.c.token == token, groups.c.incarnation == member.incarnation, _is(GroupState.LEASED)
            )
            given = connection.execute(again.order_by(groups.c.id)).mappings().all()
            if given:
                return [_claimed(row) for row in given]
            self._end_the_silent(connection, now)
            connection.execute(
                members.update()
                .where(members.c.role == member.role, members.c.name == member.name)
                .values(wants=len(tags), version=version)
            )
            terms = Terms.from_json(state["terms"])
            if state["status"] == JobStatus.FINISHED or version < state["version"] - terms.staleness_bound:
                return []
            num_given = self._num_places(connection, state, terms, member, now)
            return self._lease(connection, member, tags[:num_given], token, now)

    def put(self, member: Member, finished: Sequence[FinishedGroup]) -> list[int]:
        """Store complete groups.

        Returns:
            The ids of those that are not wanted: too old, or no longer this explorer's.
        """
        refused = []
        with self._writing() as connection:
            state = self._lock(connection)
            now = self._clock(connection)
            terms = Terms.from_json(state["terms"])
            oldest_allowed = state["version"] - terms.staleness_bound
            rows = self._rows(connection, [each.group_id for each in finished])
            stored = []
            for group in finished:
                row = rows.get(group.group_id)
                if row is None or row["incarnation"] != member.incarnation:
                    refused.append(group.group_id)
                elif row["state"] != GroupState.LEASED:
                    if row["state"] == GroupState.DROPPED or row["ready_at"] is None:
                        refused.append(group.group_id)
                elif (
                    state["version"] if group.oldest_version is None else group.oldest_version
                ) < oldest_allowed:
                    self._drop(connection, [group.group_id], DropReason.TOO_OLD, now)
                    refused.append(group.group_id)
                else:
                    stored.append(group)
            if stored:
                connection.execute(
                    groups.update().where(groups.c.id == sa.bindparam("group")),
                    [
                        {
                            "group": group.group_id,
                            "state": GroupState.READY,
                            "oldest_version": group.oldest_version,
                            "num_trajectories": group.num_trajectories,
                            "num_tokens": group.num_tokens,
                            "num_bytes": len(group.payload),
                            "mean_reward": group.mean_reward,
                            "ready_at": now,
                        }
                        for group in stored
                    ],
                )
                connection.execute(
                    payloads.insert(), [{"group_id": each.group_id, "data": each.payload} for each in stored]
                )
            if refused:
                self._signal(connection, Signal.PLACES)
            if state["awaits_batch"] and stored:
                num_ready = sa.select(sa.func.count()).select_from(groups).where(_is(GroupState.READY))
                if connection.execute(num_ready).scalar_one() >= terms.groups_per_batch:
                    connection.execute(job.update().values(awaits_batch=False))
                    self._signal(connection, Signal.BATCH)
        return refused

    def drop(self, member: Member, reasons: Mapping[int, str]) -> None:
        """Groups that this explorer plays will not come: why, by id. Others take their places."""
        with self._writing() as connection:
            self._lock(connection)
            now = self._clock(connection)
            rows = self._rows(connection, list(reasons))
            for group_id, reason in reasons.items():
                row = rows.get(group_id)
                if row is not None and _is_held(row, member):
                    self._drop(connection, [group_id], reason, now)
            self._signal(connection, Signal.PLACES)

    def hand_back(self, member: Member, group_ids: Iterable[int]) -> None:
        """Groups that this explorer will not finish: others play them."""
        with self._writing() as connection:
            self._lock(connection)
            connection.execute(
                groups.update()
                .where(
                    groups.c.id.in_(list(group_ids)),
                    groups.c.incarnation == member.incarnation,
                    _is(GroupState.LEASED),
                )
                .values(state=GroupState.OPEN, incarnation="", token="")
            )
            self._signal(connection, Signal.PLACES)

    def begin(self, trainer: Member, step: int) -> None:
        """The trainer has the weights before `step`, and goes on from there.

        Batches from `step` on that were taken before are given again. What an earlier process trained after
        the checkpoint counts as taken.

        Raises:
            StorageError: Such a batch is gone.
        """
        with self._writing() as connection:
            self._lock(connection)
            self._check_alive(connection, trainer, self._clock(connection))
            ids = sa.select(batch_groups.c.group_id).where(batch_groups.c.step >= step)
            gone = connection.execute(
                sa.select(sa.func.min(batch_groups.c.step)).where(
                    batch_groups.c.step >= step, ~batch_groups.c.group_id.in_(sa.select(payloads.c.group_id))
                )
            ).scalar()
            if gone is not None:
                raise StorageError(
                    f"the run continues from step {step}, but the batch of step {gone} is no longer in the "
                    "buffer: continue from a later checkpoint"
                )
            connection.execute(
                groups.update()
                .where(groups.c.id.in_(ids), groups.c.state.in_([GroupState.TRAINED, GroupState.READY]))
                .values(state=GroupState.TAKEN, ended_at=None)
            )
            connection.execute(batches.update().where(batches.c.step >= step).values(trained_at=None))
            connection.execute(job.update().values(status=JobStatus.RUNNING, step=step, awaits_batch=False))
            self._signal(connection, *Signal)

    def publish(
        self,
        trainer: Member,
        step: int,
        version: int,
        location: Mapping[str, Any] | None,
        *,
        selection: Selection = OLDEST_ONCE,
    ) -> None:
        """The trainer is at `step`, and its weights are `version`: those of the steps before are used.

        Args:
            trainer: Who says so.
            step: Its batch is the next to be taken.
            version: Of the weights.
            location: Where they are, when they are published now.
            selection: Says how often groups are used.
        """
        with self._writing() as connection:
            state = self._lock(connection)
            now = self._clock(connection)
            self._check_alive(connection, trainer, now)
            terms = Terms.from_json(state["terms"])
            if location is not None:
                # A version that was published before may lie elsewhere now.
                connection.execute(versions.delete().where(versions.c.version == version))
                connection.execute(
                    versions.insert().values(
                        version=version, step=step, location=json.dumps(dict(location)), published_at=now
                    )
                )
            newest = max(version, state["version"])
            connection.execute(job.update().values(step=step, version=newest))
            if selection.max_uses > 1:
                self._use_again(connection, step, newest - terms.staleness_bound, selection)
            self._drop_the_old(connection, newest - terms.staleness_bound, now)
            self._signal(connection, Signal.PLACES)
            if location is not None or newest != state["version"]:
                self._signal(connection, Signal.VERSION)

    def take(
        self,
        trainer: Member,
        step: int,
        *,
        version: int,
        selection: Selection = OLDEST_ONCE,
        waited_s: float = 0.0,
    ) -> TakenBatch | None:
        """The batch of `step`: the one taken before, or a new one; None while there are too few groups.

        No group has a token that is more than the bound older than `version`, when it is first taken.
        """
        with self._writing() as connection:
            state = self._lock(connection)
            now = self._clock(connection)
            self._check_alive(connection, trainer, now)
            taken = connection.execute(sa.select(batches).where(batches.c.step == step)).mappings().first()
            if taken is not None:
                return TakenBatch(
                    step=step, version=taken["version"], is_again=True, groups=_taken(connection, step)
                )
            terms = Terms.from_json(state["terms"])
            self._drop_the_old(connection, version - terms.staleness_bound, now)
            rows = connection.execute(
                sa.select(groups).where(_is(GroupState.READY), groups.c.rests_until <= step)
            ).mappings()
            ready = [_ready(row, version) for row in rows]
            chosen = choose(ready, terms.groups_per_batch, selection)
            if (
                chosen is None
                and selection.mixture
                and self._lacks_for_good(connection, terms, ready, selection)
            ):
                chosen = fill(ready, terms.groups_per_batch, selection)
            if chosen is None:
                connection.execute(job.update().values(awaits_batch=True))
                return None
            connection.execute(
                batches.insert().values(
                    step=step, version=version, waited_s=waited_s, taken_at=now, trained_at=None
                )
            )
            connection.execute(
                batch_groups.insert(), [{"step": step, "group_id": group_id} for group_id in chosen]
            )
            connection.execute(
                groups.update()
                .where(groups.c.id.in_(chosen))
                .values(state=GroupState.TAKEN, step=step, taken_at=now, uses=groups.c.uses + 1)
            )
            connection.execute(job.update().values(awaits_batch=False))
            self._signal(connection, Signal.PLACES)
            return TakenBatch(step=step, version=version, is_again=False, groups=_taken(connection, step))

    def trained(self, trainer: Member, step: int, *, keep_from: int | None = None) -> None:
        """A checkpoint holds everything before `step`.

        Payloads of groups whose last batch was before `keep_from` are removed; none when it is None.
        """
        with self._writing() as connection:
            self._lock(connection)
            now = self._clock(connection)
            self._check_alive(connection, trainer, now)
            connection.execute(
                batches.update()
                .where(batches.c.step < step, batches.c.trained_at.is_(None))
                .values(trained_at=now)
            )
            connection.execute(
                groups.update()
                .where(_is(GroupState.TAKEN), groups.c.step < step)
                .values(state=GroupState.TRAINED, ended_at=now)
            )
            if keep_from is not None:
                # Of the few that still have a payload, not of all that were ever trained.
                old = sa.select(groups.c.id).where(
                    groups.c.id.in_(sa.select(payloads.c.group_id)),
                    _is(GroupState.TRAINED),
                    groups.c.step < keep_from,
                )
                connection.execute(payloads.delete().where(payloads.c.group_id.in_(old)))

    def finish(self, trainer: Member) -> None:
        """The trainer took all its steps: explorers may end."""
        with self._writing() as connection:
            self._lock(connection)
            self._check_alive(connection, trainer, self._clock(connection))
            connection.execute(job.update().values(status=JobStatus.FINISHED))
            self._signal(connection, *Signal)

    def newest_version(self) -> PublishedVersion | None:
        """The weights that were published last."""
        with self._reading() as connection:
            query = sa.select(versions).order_by(versions.c.version.desc()).limit(1)
            row = connection.execute(query).mappings().first()
        return None if row is None else _version(row)

    def step_of(self, version: int) -> int | None:
        """The step at which this version was published, perhaps by an earlier process; None if it was not."""
        with self._reading() as connection:
            return connection.execute(
                sa.select(versions.c.step).where(versions.c.version == version)
            ).scalar()

    def view(self, member: Member | None = None) -> JobView:
        """How the job stands; `held` is of this member."""
        with self._reading() as connection:
            state = connection.execute(sa.select(job)).mappings().one()
            return self._view(connection, state, member, self._clock(connection))

    def num_ready(self) -> int:
        """Groups that are ready."""
        with self._reading() as connection:
            query = sa.select(sa.func.count()).select_from(groups).where(_is(GroupState.READY))
            return int(connection.execute(query).scalar_one())

    def signal_number(self, signal: Signal) -> int:
        """How often this happened so far."""
        with self._reading() as connection:
            query = sa.select(signals.c.number).where(signals.c.name == signal)
            return int(connection.execute(query).scalar_one())

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.engine.begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self.engine.connect().execution_options(reads_only=True) as connection:
            yield connection

    def _lock(self, connection: Connection) -> RowMapping:
        """The job's row, which nobody else changes until the transaction ends."""
        return connection.execute(sa.select(job).with_for_update()).mappings().one()

    def _row_of(self, connection: Connection, member: Member) -> RowMapping | None:
        query = sa.select(members).where(members.c.role == member.role, members.c.name == member.name)
        row = connection.execute(query).mappings().first()
        is_it = row is not None and row["incarnation"] == member.incarnation and row["left_at"] is None
        return row if is_it else None

    def _check_alive(self, connection: Connection, member: Member, now: float) -> None:
        """Every call is a sign of life; LeaseLost for one that others took for dead.

        When nobody was heard for a lease, the database was away: nobody is taken for dead for one lease more.
        The same holds for a program that was heard at a time which is yet to come.
        """
        living = members.c.left_at.is_(None)
        heard_at = connection.execute(sa.select(sa.func.max(members.c.seen_at)).where(living)).scalar()
        if heard_at is not None and now - heard_at > self._lease_s:
            connection.execute(members.update().where(living).values(expires_at=now + self._lease_s))
        elif heard_at is not None and heard_at > now:
            # The clock went back, and would keep the dead alive until it is there again.
            ahead = sa.and_(living, members.c.seen_at > now)
            connection.execute(
                members.update().where(ahead).values(seen_at=now, expires_at=now + self._lease_s)
            )
        if self._row_of(connection, member) is None:
            raise LeaseLost(
                f"the {member.role} {member.name!r} was not heard for more than buffer.lease_s "
                f"({self._lease_s:g} s), or another was started in its place"
            )
        connection.execute(
            members.update()
            .where(members.c.role == member.role, members.c.name == member.name)
            .values(seen_at=now, expires_at=now + self._lease_s)
        )

    def _end_the_silent(self, connection: Connection, now: float) -> None:
        silent = sa.select(members).where(members.c.left_at.is_(None), members.c.expires_at < now)
        for row in connection.execute(silent).mappings().all():
            self._end_member(connection, row, now)

    def _end_member(self, connection: Connection, row: RowMapping, now: float, *, num_lost: int = 1) -> None:
        """It left, or is gone: what it plays is open again."""
        if row["left_at"] is None:
            connection.execute(
                members.update()
                .where(members.c.role == row["role"], members.c.name == row["name"])
                .values(left_at=now, wants=0)
            )
        held = connection.execute(
            sa.select(groups.c.id, groups.c.attempt).where(
                _is(GroupState.LEASED), groups.c.incarnation == row["incarnation"]
            )
        ).all()
        if not held:
            return
        terms = self.terms(connection)
        given_up = [each.id for each in held if each.attempt + num_lost >= terms.max_group_attempts]
        self._drop(connection, given_up, DropReason.GIVEN_UP, now)
        connection.execute(
            groups.update()
            .where(_is(GroupState.LEASED), groups.c.incarnation == row["incarnation"])
            .values(state=GroupState.OPEN, incarnation="", token="", attempt=groups.c.attempt + num_lost)
        )
        self._signal(connection, Signal.PLACES)

    def _num_places(
        self, connection: Connection, state: RowMapping, terms: Terms, member: Member, now: float
    ) -> int:
        """How many groups this explorer may begin now."""
        in_training = sa.and_(_is(GroupState.TAKEN), groups.c.step == state["step"])
        waiting = sa.and_(_is(GroupState.READY), groups.c.uses == 0)
        count = sa.select(sa.func.count()).select_from(groups)
        num_training = connection.execute(count.where(in_training)).scalar_one()
        if terms.alpha == 0 and num_training >= terms.groups_per_batch:
            return 0
        num_waiting = connection.execute(count.where(waiting)).scalar_one()
        held = (
            sa.select(groups.c.explorer, sa.func.count())
            .where(_is(GroupState.LEASED))
            .group_by(groups.c.explorer)
        )
        held_by = {name: int(number) for name, number in connection.execute(held).all()}
        alive = sa.select(members.c.name, members.c.wants).where(
            members.c.role == Role.EXPLORER, members.c.left_at.is_(None)
        )
        wanted = {name: int(number) for name, number in connection.execute(alive).all()}
        free = terms.capacity_groups - num_training - num_waiting - sum(held_by.values())
        return grant(max(0, free), member.name, held_by, wanted)

    def _lacks_for_good(
        self, connection: Connection, terms: Terms, ready: Sequence[ReadyGroup], selection: Selection
    ) -> bool:
        """Whether the mixture cannot come about: there is no place left, and nobody plays what is lacking."""
        by = groups.c.tag if selection.mixture_by == "tag" else groups.c.explorer
        played = sa.select(by, sa.func.count()).where(_is(GroupState.LEASED)).group_by(by)
        leased = {name: int(number) for name, number in connection.execute(played).all()}
        num_new = sum(group.uses == 0 for group in ready)
        if num_new + sum(leased.values()) < terms.capacity_groups:
            return False
        lacking = lacking_of(ready, terms.groups_per_batch, selection)
        return not any(leased.get(name) for name in lacking)

    def _lease(
        self, connection: Connection, member: Member, tags: Sequence[str], token: str, now: float
    ) -> list[ClaimedGroup]:
        found: list[ClaimedGroup] = []
        query = (
            sa.select(groups).where(_is(GroupState.OPEN), groups.c.tag.in_(set(tags))).order_by(groups.c.id)
        )
        left = connection.execute(query).mappings().all() if tags else []
        by_tag: dict[str, list[RowMapping]] = {}
        for row in left:
            by_tag.setdefault(row["tag"], []).append(row)
        lease = {
            "state": GroupState.LEASED,
            "explorer": member.name,
            "incarnation": member.incarnation,
            "token": token,
            "leased_at": now,
        }
        started: list[str] = []
        for tag in tags:
            if by_tag.get(tag):
                found.append(_claimed(by_tag[tag].pop(0)))
            else:
                started.append(tag)
        if found:
            ids = [group.group_id for group in found]
            connection.execute(groups.update().where(groups.c.id.in_(ids)).values(**lease))
        indexes = {tag: self._next_indexes(connection, tag, started.count(tag)) for tag in set(started)}
        tasks = [Task(tag=tag, split=TRAIN_SPLIT, index=next(indexes[tag])) for tag in started]
        if tasks:
            made = connection.execute(
                groups.insert().returning(groups.c.id, sort_by_parameter_order=True),
                [_new_group(task, now) | lease for task in tasks],
            ).scalars()
            found += [
                ClaimedGroup(group_id=group_id, task=task, attempt=0)
                for group_id, task in zip(made, tasks, strict=True)
            ]
        return found

    def _next_indexes(self, connection: Connection, tag: str, count: int) -> Iterator[int]:
        """The next tasks of the tag, which nobody else gets."""
        query = sa.select(cursors.c.next_index).where(cursors.c.tag == tag)
        first = connection.execute(query).scalar()
        if first is None:
            connection.execute(cursors.insert().values(tag=tag, next_index=count))
            return iter(range(count))
        connection.execute(cursors.update().where(cursors.c.tag == tag).values(next_index=first + count))
        return iter(range(first, first + count))

    def _rows(self, connection: Connection, ids: Sequence[int]) -> dict[int, RowMapping]:
        rows = connection.execute(sa.select(groups).where(groups.c.id.in_(ids))).mappings()
        return {row["id"]: row for row in rows}

    def _drop(self, connection: Connection, ids: Sequence[int], reason: str, now: float) -> None:
        if ids:
            connection.execute(
                groups.update()
                .where(groups.c.id.in_(ids))
                .values(state=GroupState.DROPPED, reason=str(reason), ended_at=now)
            )
            connection.execute(payloads.delete().where(payloads.c.group_id.in_(ids)))

    def _drop_the_old(self, connection: Connection, min_version: int, now: float) -> None:
        """End ready groups that no batch may hold. One that was in a batch already stays in that."""
        old = sa.and_(_is(GroupState.READY), groups.c.oldest_version < min_version)
        used = sa.and_(old, groups.c.uses > 0)
        connection.execute(groups.update().where(used).values(state=GroupState.TAKEN))
        ids = connection.execute(sa.select(groups.c.id).where(old)).scalars().all()
        self._drop(connection, ids, DropReason.TOO_OLD, now)

    def _use_again(self, connection: Connection, step: int, min_version: int, selection: Selection) -> None:
        """Groups of the batches before `step` are ready again, if they may be used more often."""
        # By their batches: of all the groups that were ever trained, only those can be young enough.
        recent = (
            sa.select(batch_groups.c.group_id)
            .join(batches, batches.c.step == batch_groups.c.step)
            .where(batches.c.version >= min_version)
        )
        connection.execute(
            groups.update()
            .where(
                groups.c.id.in_(recent),
                groups.c.id.in_(sa.select(payloads.c.group_id)),
                groups.c.state.in_([GroupState.TAKEN, GroupState.TRAINED]),
                groups.c.step < step,
                groups.c.uses < selection.max_uses,
                groups.c.oldest_version >= min_version,
            )
            .values(
                state=GroupState.READY,
                rests_until=groups.c.step + 1 + selection.cool_down_steps,
                ended_at=None,
            )
        )

    def _view(self, connection: Connection, state: RowMapping, member: Member | None, now: float) -> JobView:
        held: Sequence[int] = ()
        if member is not None:
            query = sa.select(groups.c.id).where(
                _is(GroupState.LEASED), groups.c.incarnation == member.incarnation
            )
            held = connection.execute(query).scalars().all()
        trainer = connection.execute(
            sa.select(members.c.left_at, members.c.expires_at).where(members.c.role == Role.TRAINER)
        ).all()
        ends = [
            row.expires_at if row.left_at is None else min(row.left_at, row.expires_at) for row in trainer
        ]
        lives = any(row.left_at is None and row.expires_at >= now for row in trainer)
        explorers = sa.select(members.c.name, members.c.version).where(
            members.c.role == Role.EXPLORER, members.c.left_at.is_(None), members.c.expires_at >= now
        )
        terms = Terms.from_json(state["terms"])
        return JobView(
            status=JobStatus(state["status"]),
            step=state["step"],
            version=state["version"],
            min_version=state["version"] - terms.staleness_bound,
            held=frozenset(held),
            trainer_silent_s=None if lives else now - max(ends, default=state["created_at"]),
            explorer_versions={row.name: row.version for row in connection.execute(explorers)},
        )

    def _signal(self, connection: Connection, *which: Signal) -> None:
        connection.execute(
            signals.update().where(signals.c.name.in_(which)).values(number=signals.c.number + 1)
        )
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_notify(CHANNEL, "")))


_CREATING = 7_105_212
"""Of an advisory lock: any number that nobody else takes."""


def database_time(connection: Connection) -> float:
    """The server's, where there is one: the machines of a job may disagree."""
    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.execute(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))).scalar_one())


@contextmanager
def _given(connection: Connection) -> Iterator[Connection]:
    yield connection


def _new_group(task: Task, now: float) -> dict[str, Any]:
    return {
        "tag": task.tag,
        "task_index": task.index,
        "attempt": 0,
        "uses": 0,
        "rests_until": 0,
        "num_trajectories": 0,
        "num_tokens": 0,
        "num_bytes": 0,
        "mean_reward": 0.0,
        "created_at": now,
    }


def _is(state: GroupState) -> sa.ColumnElement[bool]:
    # Written out, so that the index of this state can be used.
    return groups.c.state == sa.literal_column(f"'{state.value}'")


def _is_held(row: RowMapping, member: Member) -> bool:
    return bool(row["state"] == GroupState.LEASED and row["incarnation"] == member.incarnation)


def _has_ended(row: RowMapping) -> bool:
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


def _already_there(role: Role, row: RowMapping, now: float) -> str:
    where = f"process {row['pid']} on {row['host']}, heard {now - row['seen_at']:.0f} s ago"
    if role is Role.TRAINER:
        return f"this job has a trainer already ({where}); end it first, or choose another exp_name"
    return f"an explorer named {row['name']!r} plays already ({where}); give this one another explorer.name"


def _claimed(row: RowMapping) -> ClaimedGroup:
    task = Task(tag=row["tag"], split=TRAIN_SPLIT, index=row["task_index"])
    return ClaimedGroup(group_id=row["id"], task=task, attempt=row["attempt"])


def _ready(row: RowMapping, version: int) -> ReadyGroup:
    oldest = row["oldest_version"]
    return ReadyGroup(
        group_id=row["id"],
        tag=row["tag"],
        explorer=row["explorer"],
        oldest_version=version if oldest is None else oldest,
        ready_at=row["ready_at"],
        uses=row["uses"],
    )


def _taken(connection: Connection, step: int) -> list[TakenGroup]:
    query = (
        sa.select(groups.c.id, groups.c.explorer, groups.c.ready_at, payloads.c.data)
        .join(batch_groups, batch_groups.c.group_id == groups.c.id)
        .join(payloads, payloads.c.group_id == groups.c.id)
        .where(batch_groups.c.step == step)
        .order_by(groups.c.id)
    )
    return [
        TakenGroup(group_id=row.id, payload=row.data, explorer=row.explorer, ready_at=row.ready_at)
        for row in connection.execute(query)
    ]


def _version(row: RowMapping) -> PublishedVersion:
    return PublishedVersion(
        version=row["version"],
        step=row["step"],
        location=json.loads(row["location"]),
        published_at=row["published_at"],
    )
