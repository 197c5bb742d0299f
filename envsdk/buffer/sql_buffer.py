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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, RowMapping

from envsdk.buffer import tables
from envsdk.buffer.admission import due_groups, num_places
from envsdk.buffer.contract import (
    NO_MEANING,
    ClaimedGroup,
    DropReason,
    FinishedGroup,
    GroupState,
    JobStatus,
    JobView,
    LeaseLost,
    Meaning,
    Member,
    PublishedVersion,
    Role,
    Signal,
    TakenBatch,
    Terms,
)
from envsdk.buffer.fairness import grant
from envsdk.buffer.living import agreed, already_there, has_ended
from envsdk.buffer.rows import (
    OPENED,
    TRAIN_SPLIT,
    claimed_group,
    count_dropped,
    dropped_by_tag,
    is_in,
    longest_s,
    new_group,
    published_version,
    take_out,
    taken_groups,
    waiting_groups,
)
from envsdk.buffer.selection import Selection, WaitingGroup, choose, fill, lacks_for_good
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

OLDEST_ONCE = Selection()


class SqlBuffer:
    """One buffer. `clock` gives Unix seconds; the same for all its programs."""

    def __init__(
        self, engine: Engine, *, lease_s: float, clock: Callable[[Connection], float] | None = None
    ) -> None:
        self.engine = engine
        self._lease_s = lease_s
        self._clock = clock or database_time

    def create(self, name: str, terms: Terms, meaning: Meaning = NO_MEANING) -> bool:
        """Make the tables and the job, unless they are there; whether they were made.

        ConfigurationError when another job or other tables are there, or this job has other terms or means
        something else.
        """
        with self._writing() as connection:
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
            agreed(connection, meaning, self._clock(connection))
            return there is None

    def terms(self, connection: Connection | None = None) -> Terms:
        """What the programs of the job agree on. StorageError for a buffer of a later version of envsdk."""
        with self._reading() if connection is None else _given(connection) as c:
            row = c.execute(sa.select(job.c.format, job.c.terms)).one()
        if row.format > tables.FORMAT:
            raise StorageError(
                f"the buffer has format {row.format}; this envsdk uses up to {tables.FORMAT}. Upgrade envsdk"
            )
        return Terms.from_json(row.terms)

    def join(self, role: Role, name: str, meaning: Meaning = NO_MEANING) -> Member:
        """Take part in the job under this name.

        Args:
            role: What the program does. A job has one trainer at a time.
            name: No two living programs of a role have the same.
            meaning: What it takes token ids and tags to be.

        Raises:
            ConfigurationError: Another program lives under the name, or the others mean something else.
        """
        with self._writing() as connection:
            self._lock(connection)
            now = self._clock(connection)
            alone = members.c.role == role if role is Role.TRAINER else members.c.name == name
            same = members.c.role == role
            for row in connection.execute(sa.select(members).where(same, alone)).mappings():
                if row["left_at"] is None and row["expires_at"] > now and not has_ended(row):
                    raise ConfigurationError(already_there(role, row, now))
                self._end_member(connection, row, now)
            found = agreed(connection, meaning, now)
            connection.execute(job.update().values(tags=json.dumps(found.written)))
            member = Member(role=role, name=name, incarnation=uuid.uuid4().hex, notes=found.notes)
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
                groups.c.token == token, groups.c.incarnation == member.incarnation, is_in(GroupState.LEASED)
            )
            given = connection.execute(again.order_by(groups.c.id)).mappings().all()
            if given:
                return [claimed_group(row) for row in given]
            self._end_the_silent(connection, now)
            connection.execute(
                members.update()
                .where(members.c.role == member.role, members.c.name == member.name)
                .values(wants=len(tags), version=version)
            )
            terms = Terms.from_json(state["terms"])
            if state["status"] == JobStatus.FINISHED or version < state["version"] - terms.staleness_bound:
                return []
            num_given = self._num_places(connection, state, terms, member, version)
            return self._lease(connection, member, tags[:num_given], version, token, now)

    def put(
        self,
        member: Member,
        finished: Sequence[FinishedGroup],
        *,
        dropped_tokens: Mapping[str, int] | None = None,
    ) -> list[int]:
        """Store complete groups.

        Args:
            member: The explorer.
            finished: Its groups.
            dropped_tokens: By tag, sampled tokens of episodes that it has thrown away since it joined.

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
            count_dropped(connection, member.incarnation, dropped_tokens or {}, add=False)
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
                    count_dropped(connection, "", {row["tag"]: group.num_tokens}, add=True)
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
                num_ready = sa.select(sa.func.count()).select_from(groups).where(is_in(GroupState.READY))
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
                    is_in(GroupState.LEASED),
                )
                .values(**OPENED)
            )
            self._signal(connection, Signal.PLACES)

    def begin(self, trainer: Member, step: int) -> None:
        """The trainer has the weights before `step`, and goes on from there.

        Batches from `step` on that were taken before are given again. What an earlier process trained after
        the checkpoint counts as taken. Versions after `step` are published anew; when a checkpoint held some
        of them, what they sampled is dropped, and explorers join again.

        Raises:
            StorageError: Such a batch is gone.
        """
        with self._writing() as connection:
            state = self._lock(connection)
            now = self._clock(connection)
            self._check_alive(connection, trainer, now)
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
            again = sa.and_(batches.c.step >= step, batches.c.trained_at.is_not(None))
            if connection.execute(sa.select(batches.c.step).where(again)).first() is not None:
                self._give_up_versions(connection, state, step, now)
            connection.execute(versions.delete().where(versions.c.step > step))
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
            terms = Terms.from_json(state["terms"])
            version = version if taken is None else taken["version"]
            held = taken_groups(connection, step)
            if taken is not None and len(held) == terms.groups_per_batch:
                return TakenBatch(step=step, version=version, is_again=True, groups=held)
            self._drop_the_old(connection, version - terms.staleness_bound, now)
            waiting = waiting_groups(connection, version, groups.c.rests_until <= step)
            ready = [group for group in waiting if group.ready_at is not None]
            if taken is None:
                chosen = self._chosen(connection, waiting, ready, terms, step, selection, now)
            else:  # some were taken out, and the next ones fill their places
                chosen = choose(ready, terms.groups_per_batch - len(held), replace(selection, mixture={}))
            if chosen is None:
                connection.execute(job.update().values(awaits_batch=True))
                return None
            if taken is None:
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
            return TakenBatch(
                step=step, version=version, is_again=taken is not None, groups=taken_groups(connection, step)
            )

    def drop_damaged(self, trainer: Member, step: int, group_ids: Sequence[int]) -> None:
        """These groups of the batch of `step` cannot be read: `take` puts others in their places."""
        with self._writing() as connection:
            self._lock(connection)
            now = self._clock(connection)
            self._check_alive(connection, trainer, now)
            lost = take_out(connection, step, group_ids, DropReason.DAMAGED, now)
            count_dropped(connection, "", lost, add=True)
            self._signal(connection, Signal.PLACES)

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
                .where(is_in(GroupState.TAKEN), groups.c.step < step)
                .values(state=GroupState.TRAINED, ended_at=now)
            )
            if keep_from is not None:
                # Of the few that still have a payload, not of all that were ever trained.
                old = sa.select(groups.c.id).where(
                    groups.c.id.in_(sa.select(payloads.c.group_id)),
                    is_in(GroupState.TRAINED),
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
        return None if row is None else published_version(row)

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

    def dropped_tokens(self) -> dict[str, int]:
        """Sampled tokens by tag that were thrown away so far."""
        with self._reading() as connection:
            return dropped_by_tag(connection)

    def num_ready(self) -> int:
        """Groups that are ready."""
        with self._reading() as connection:
            query = sa.select(sa.func.count()).select_from(groups).where(is_in(GroupState.READY))
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
                f"({self._lease_s:g} s), another was started in its place, or the trainer went back"
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
                is_in(GroupState.LEASED), groups.c.incarnation == row["incarnation"]
            )
        ).all()
        if not held:
            return
        terms = self.terms(connection)
        given_up = [each.id for each in held if each.attempt + num_lost >= terms.max_group_attempts]
        self._drop(connection, given_up, DropReason.GIVEN_UP, now)
        connection.execute(
            groups.update()
            .where(is_in(GroupState.LEASED), groups.c.incarnation == row["incarnation"])
            .values(
                state=GroupState.OPEN,
                incarnation="",
                token="",
                oldest_version=None,
                attempt=groups.c.attempt + num_lost,
            )
        )
        self._signal(connection, Signal.PLACES)

    def _chosen(
        self,
        connection: Connection,
        waiting: Sequence[WaitingGroup],
        ready: Sequence[WaitingGroup],
        terms: Terms,
        step: int,
        selection: Selection,
        now: float,
    ) -> list[int] | None:
        """The groups of a new batch; None while there are too few, or others have to be in it."""
        tags = {group.tag for group in waiting if group.ready_at is None}
        usual_s = {tag: longest_s(connection, tag) for tag in tags}
        due = due_groups(terms, step, (each for each in waiting if not each.uses), usual_s, now)
        if due.is_awaited:
            return None
        chosen = choose(ready, terms.groups_per_batch, selection, first=due.first)
        if chosen is None and selection.mixture and lacks_for_good(waiting, terms, selection):
            chosen = fill(ready, terms.groups_per_batch, selection, first=due.first)
        return chosen

    def _give_up_versions(self, connection: Connection, state: RowMapping, step: int, now: float) -> None:
        """The trainer went back behind a checkpoint: its weights after `step` will be others.

        A killed one that continues from its newest checkpoint makes the same ones again.
        """
        lost = sa.select(sa.func.min(versions.c.published_at)).where(versions.c.step > step)
        since = connection.execute(lost).scalar()
        if since is None:
            return
        sampled = sa.and_(is_in(GroupState.READY), groups.c.uses == 0, groups.c.ready_at >= since)
        ids = connection.execute(sa.select(groups.c.id).where(sampled)).scalars().all()
        self._drop(connection, ids, DropReason.WENT_BACK, now)
        living = sa.select(members).where(members.c.role == Role.EXPLORER, members.c.left_at.is_(None))
        for row in connection.execute(living).mappings().all():
            self._end_member(connection, row, now, num_lost=0)
        # The version of `step` too, so that whoever has one that was given up hears of it.
        connection.execute(versions.delete().where(versions.c.step >= step))
        version = Terms.from_json(state["terms"]).version_at(step)
        connection.execute(job.update().values(version=version))

    def _num_places(
        self, connection: Connection, state: RowMapping, terms: Terms, member: Member, version: int
    ) -> int:
        """How many groups this explorer may begin now, with weights of this version."""
        at = state["step"]
        in_training = sa.select(sa.func.count()).where(is_in(GroupState.TAKEN), groups.c.step == at)
        num_training = connection.execute(in_training).scalar_one()
        if terms.alpha == 0 and num_training >= terms.groups_per_batch:
            return 0
        # Batches that were taken before a trainer went back come first.
        last = connection.execute(sa.select(sa.func.max(batches.c.step))).scalar()
        next_step = at if last is None else max(at, last + 1)
        waiting = waiting_groups(connection, state["version"], groups.c.uses == 0)
        free = min(
            terms.capacity_groups - num_training - len(waiting),
            num_places(terms, next_step, [group.oldest_version for group in waiting], version),
        )
        held = Counter(group.explorer for group in waiting if group.ready_at is None)
        alive = sa.select(members.c.name, members.c.wants, members.c.version).where(
            members.c.role == Role.EXPLORER, members.c.left_at.is_(None)
        )
        # No place is kept for an explorer that could not begin anything before it has newer weights.
        wanted = {
            row.name: row.wants
            for row in connection.execute(alive)
            if terms.last_step(row.version) >= next_step
        }
        return grant(max(0, free), member.name, held, wanted)

    def _lease(
        self,
        connection: Connection,
        member: Member,
        tags: Sequence[str],
        version: int,
        token: str,
        now: float,
    ) -> list[ClaimedGroup]:
        found: list[ClaimedGroup] = []
        query = (
            sa.select(groups).where(is_in(GroupState.OPEN), groups.c.tag.in_(set(tags))).order_by(groups.c.id)
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
            "oldest_version": version,
            "leased_at": now,
        }
        started: list[str] = []
        for tag in tags:
            if by_tag.get(tag):
                found.append(claimed_group(by_tag[tag].pop(0)))
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
                [new_group(task, now) | lease for task in tasks],
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
            lost = sa.select(groups.c.tag, sa.func.sum(groups.c.num_tokens)).where(groups.c.id.in_(ids))
            tokens = connection.execute(lost.group_by(groups.c.tag)).all()
            count_dropped(connection, "", {tag: int(number) for tag, number in tokens if number}, add=True)
            connection.execute(
                groups.update()
                .where(groups.c.id.in_(ids))
                .values(
                    state=GroupState.DROPPED,
                    reason=str(reason),
                    ended_at=now,
                    oldest_version=sa.case((groups.c.ready_at.is_not(None), groups.c.oldest_version)),
                )
            )
            connection.execute(payloads.delete().where(payloads.c.group_id.in_(ids)))

    def _drop_the_old(self, connection: Connection, min_version: int, now: float) -> None:
        """End ready groups that no batch may hold. One that was in a batch already stays in that."""
        old = sa.and_(is_in(GroupState.READY), groups.c.oldest_version < min_version)
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
                is_in(GroupState.LEASED), groups.c.incarnation == member.incarnation
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


def _is_held(row: RowMapping, member: Member) -> bool:
    return bool(row["state"] == GroupState.LEASED and row["incarnation"] == member.incarnation)
