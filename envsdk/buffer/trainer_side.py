"""TrainerSide: the calls of the trainer. begin -> (publish -> take)* -> trained -> ... -> finish"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from envsdk.buffer.admission import due_groups
from envsdk.buffer.contract import DropReason, GroupState, JobStatus, Member, Role, Signal, TakenBatch
from envsdk.buffer.rows import is_in, longest_s, take_out, taken_groups, waiting_groups
from envsdk.buffer.selection import Selection, WaitingGroup, choose, fill, lacks_for_good
from envsdk.buffer.tables import batch_groups, batches, groups, job, members, payloads, versions
from envsdk.buffer.transaction import Database, Transaction
from envsdk.contracts.failures import StorageError

OLDEST_ONCE = Selection()


class TrainerSide:
    """Each method is one transaction, and may be repeated with the same arguments."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, trainer: Member, step: int) -> None:
        """The trainer has the weights before `step`, and goes on from there.

        Batches from `step` on that were taken before are given again. What an earlier process trained after
        the checkpoint counts as taken. Versions after `step` are published anew; when a checkpoint held some
        of them, what they sampled is dropped, and explorers join again.

        Raises:
            StorageError: Such a batch is gone.
        """
        with self._database.writing(trainer) as tx:
            ids = sa.select(batch_groups.c.group_id).where(batch_groups.c.step >= step)
            gone = tx.execute(
                sa.select(sa.func.min(batch_groups.c.step)).where(
                    batch_groups.c.step >= step, ~batch_groups.c.group_id.in_(sa.select(payloads.c.group_id))
                )
            ).scalar()
            if gone is not None:
                raise StorageError(
                    f"the run continues from step {step}, but the batch of step {gone} is no longer in the "
                    "buffer: continue from a later checkpoint"
                )
            tx.execute(
                groups.update()
                .where(groups.c.id.in_(ids), groups.c.state.in_([GroupState.TRAINED, GroupState.READY]))
                .values(state=GroupState.TAKEN, ended_at=None)
            )
            again = sa.and_(batches.c.step >= step, batches.c.trained_at.is_not(None))
            if tx.execute(sa.select(batches.c.step).where(again)).first() is not None:
                _give_up_versions(tx, step)
            tx.execute(versions.delete().where(versions.c.step > step))
            tx.execute(batches.update().where(batches.c.step >= step).values(trained_at=None))
            tx.execute(job.update().values(status=JobStatus.RUNNING, step=step, awaits_batch=False))
            tx.signal(*Signal)

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
        with self._database.writing(trainer) as tx:
            if location is not None:
                # A version that was published before may lie elsewhere now.
                tx.execute(versions.delete().where(versions.c.version == version))
                tx.execute(
                    versions.insert().values(
                        version=version, step=step, location=json.dumps(dict(location)), published_at=tx.now
                    )
                )
            newest = max(version, tx.state["version"])
            tx.execute(job.update().values(step=step, version=newest))
            min_version = tx.terms.min_version(newest)
            if selection.max_uses > 1:
                _use_again(tx, step, min_version, selection)
            tx.drop_the_old(min_version)
            tx.signal(Signal.PLACES)
            if location is not None or newest != tx.state["version"]:
                tx.signal(Signal.VERSION)

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
        with self._database.writing(trainer) as tx:
            taken = tx.execute(sa.select(batches).where(batches.c.step == step)).mappings().first()
            version = version if taken is None else taken["version"]
            held = taken_groups(tx.connection, step)
            if taken is not None and len(held) == tx.terms.groups_per_batch:
                return TakenBatch(step=step, version=version, is_again=True, groups=held)
            tx.drop_the_old(tx.terms.min_version(version))
            waiting = waiting_groups(tx.connection, version, groups.c.rests_until <= step)
            ready = [group for group in waiting if group.ready_at is not None]
            if taken is None:
                chosen = _chosen(tx, waiting, ready, step, selection)
            else:  # some were taken out, and the next ones fill their places
                chosen = choose(ready, tx.terms.groups_per_batch - len(held), replace(selection, mixture={}))
            if chosen is None:
                tx.execute(job.update().values(awaits_batch=True))
                return None
            if taken is None:
                tx.execute(
                    batches.insert().values(
                        step=step, version=version, waited_s=waited_s, taken_at=tx.now, trained_at=None
                    )
                )
            tx.execute(batch_groups.insert(), [{"step": step, "group_id": group_id} for group_id in chosen])
            tx.execute(
                groups.update()
                .where(groups.c.id.in_(chosen))
                .values(state=GroupState.TAKEN, step=step, taken_at=tx.now, uses=groups.c.uses + 1)
            )
            tx.execute(job.update().values(awaits_batch=False))
            tx.signal(Signal.PLACES)
            held = taken_groups(tx.connection, step)
            return TakenBatch(step=step, version=version, is_again=taken is not None, groups=held)

    def drop_damaged(self, trainer: Member, step: int, group_ids: Sequence[int]) -> None:
        """These groups of the batch of `step` cannot be read: `take` puts others in their places."""
        with self._database.writing(trainer) as tx:
            tx.count_dropped(take_out(tx.connection, step, group_ids, DropReason.DAMAGED, tx.now))
            tx.signal(Signal.PLACES)

    def trained(self, trainer: Member, step: int, *, keep_from: int | None = None) -> None:
        """A checkpoint holds everything before `step`.

        Payloads of groups whose last batch was before `keep_from` are removed; none when it is None.
        """
        with self._database.writing(trainer) as tx:
            tx.execute(
                batches.update()
                .where(batches.c.step < step, batches.c.trained_at.is_(None))
                .values(trained_at=tx.now)
            )
            tx.execute(
                groups.update()
                .where(is_in(GroupState.TAKEN), groups.c.step < step)
                .values(state=GroupState.TRAINED, ended_at=tx.now)
            )
            if keep_from is not None:
                # Of the few that still have a payload, not of all that were ever trained.
                old = sa.select(groups.c.id).where(
                    groups.c.id.in_(sa.select(payloads.c.group_id)),
                    is_in(GroupState.TRAINED),
                    groups.c.step < keep_from,
                )
                tx.execute(payloads.delete().where(payloads.c.group_id.in_(old)))

    def finish(self, trainer: Member) -> None:
        """The trainer took all its steps: explorers may end."""
        with self._database.writing(trainer) as tx:
            tx.execute(job.update().values(status=JobStatus.FINISHED))
            tx.signal(*Signal)


def _chosen(
    tx: Transaction,
    waiting: Sequence[WaitingGroup],
    ready: Sequence[WaitingGroup],
    step: int,
    selection: Selection,
) -> list[int] | None:
    """The groups of a new batch; None while there are too few, or others have to be in it."""
    terms, tags = tx.terms, {group.tag for group in waiting if group.ready_at is None}
    usual_s = {tag: longest_s(tx.connection, tag) for tag in tags}
    due = due_groups(terms, step, (each for each in waiting if not each.uses), usual_s, tx.now)
    if due.is_awaited:
        return None
    chosen = choose(ready, terms.groups_per_batch, selection, first=due.first)
    if chosen is None and selection.mixture and lacks_for_good(waiting, terms, selection):
        chosen = fill(ready, terms.groups_per_batch, selection, first=due.first)
    return chosen


def _give_up_versions(tx: Transaction, step: int) -> None:
    """The trainer went back behind a checkpoint: its weights after `step` will be others.

    A killed one that continues from its newest checkpoint makes the same ones again.
    """
    lost = sa.select(sa.func.min(versions.c.published_at)).where(versions.c.step > step)
    since = tx.execute(lost).scalar()
    if since is None:
        return
    sampled = sa.and_(is_in(GroupState.READY), groups.c.uses == 0, groups.c.ready_at >= since)
    ids = tx.execute(sa.select(groups.c.id).where(sampled)).scalars().all()
    tx.drop(ids, DropReason.WENT_BACK)
    living = sa.select(members).where(members.c.role == Role.EXPLORER, members.c.left_at.is_(None))
    for row in tx.execute(living).mappings().all():
        tx.end_member(row, num_lost=0)
    # The version of `step` too, so that whoever has one that was given up hears of it.
    tx.execute(versions.delete().where(versions.c.step >= step))
    tx.execute(job.update().values(version=tx.terms.version_at(step)))


def _use_again(tx: Transaction, step: int, min_version: int, selection: Selection) -> None:
    """Groups of the batches before `step` are ready again, if they may be used more often."""
    # By their batches: of all the groups that were ever trained, only those can be young enough.
    recent = (
        sa.select(batch_groups.c.group_id)
        .join(batches, batches.c.step == batch_groups.c.step)
        .where(batches.c.version >= min_version)
    )
    tx.execute(
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
