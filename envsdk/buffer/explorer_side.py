"""ExplorerSide: the calls of explorers. claim -> put | drop"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy import RowMapping

from envsdk.algorithms.task_samplers.contract import PlayedGroup
from envsdk.buffer.admission import grant, num_places
from envsdk.buffer.contract import (
    ClaimedGroup,
    DropReason,
    FinishedGroup,
    GroupState,
    JobStatus,
    Member,
    Role,
    Signal,
)
from envsdk.buffer.rows import (
    claimed_group,
    count_dropped,
    is_in,
    new_group,
    waiting_groups,
)
from envsdk.buffer.tables import batches, groups, job, members, payloads
from envsdk.buffer.task_choice import TaskChoice
from envsdk.buffer.transaction import Database, Transaction


class ExplorerSide:
    """Each method is one transaction, and may be repeated with the same arguments."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
        with self._database.writing(member) as tx:
            again = sa.select(groups).where(
                groups.c.token == token, groups.c.incarnation == member.incarnation, is_in(GroupState.LEASED)
            )
            given = tx.execute(again.order_by(groups.c.id)).mappings().all()
            if given:
                return [claimed_group(row) for row in given]
            tx.end_the_silent()
            tx.update_member(member, {"wants": len(tags), "version": version})
            if tx.state["status"] == JobStatus.FINISHED or version < tx.min_version:
                return []
            num_given = _num_places(tx, member, version)
            return _lease(tx, member, tags[:num_given], tags[num_given:], version, token)

    def put(
        self,
        member: Member,
        finished: Sequence[FinishedGroup],
        *,
        dropped_tokens: Mapping[str, int] | None = None,
        played: Mapping[int, PlayedGroup] | None = None,
    ) -> list[int]:
        """Store complete groups.

        Args:
            member: The explorer.
            finished: Its groups.
            dropped_tokens: By tag, sampled tokens of episodes that it has thrown away since it joined.
            played: Results by group, for the job's task sampler.

        Returns:
            The ids of those that are not wanted: too old, or no longer this explorer's.
        """
        refused = []
        with self._database.writing() as tx:
            rows = _rows(tx, [each.group_id for each in finished])
            count_dropped(tx.connection, member.incarnation, dropped_tokens or {}, add=False)
            stored = []
            for group in finished:
                row = rows.get(group.group_id)
                if row is None or row["incarnation"] != member.incarnation:
                    refused.append(group.group_id)
                elif row["state"] != GroupState.LEASED:
                    if row["state"] == GroupState.DROPPED or row["ready_at"] is None:
                        refused.append(group.group_id)
                elif group.oldest_version is not None and group.oldest_version < tx.min_version:
                    tx.drop([group.group_id], DropReason.TOO_OLD)
                    tx.count_dropped({row["tag"]: group.num_tokens})
                    refused.append(group.group_id)
                else:
                    stored.append(group)
            if stored:
                tx.execute(
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
                            "ready_at": tx.now,
                        }
                        for group in stored
                    ],
                )
                tx.execute(
                    payloads.insert(), [{"group_id": each.group_id, "data": each.payload} for each in stored]
                )
            _tell_sampler(tx, played, [each.group_id for each in stored])
            if refused:
                tx.signal(Signal.PLACES)
            if tx.state["awaits_batch"] and stored:
                num_ready = sa.select(sa.func.count()).select_from(groups).where(is_in(GroupState.READY))
                if tx.execute(num_ready).scalar_one() >= tx.terms.groups_per_batch:
                    tx.execute(job.update().values(awaits_batch=False))
                    tx.signal(Signal.BATCH)
        return refused

    def drop(
        self,
        member: Member,
        reasons: Mapping[int, str],
        played: Mapping[int, PlayedGroup] | None = None,
    ) -> None:
        """Groups that this explorer plays will not come: why, by id. Others take their places."""
        with self._database.writing() as tx:
            rows, dropped = _rows(tx, list(reasons)), []
            for group_id, reason in reasons.items():
                row = rows.get(group_id)
                if row is None or row["incarnation"] != member.incarnation:
                    continue
                if row["state"] == GroupState.LEASED:
                    tx.drop([group_id], reason)
                    dropped.append(group_id)
            _tell_sampler(tx, played, dropped)
            tx.signal(Signal.PLACES)


def _num_places(tx: Transaction, member: Member, version: int) -> int:
    """How many groups this explorer may begin now, with weights of this version."""
    at, terms = tx.state["step"], tx.terms
    in_training = sa.select(sa.func.count()).where(is_in(GroupState.TAKEN), groups.c.step == at)
    num_training = tx.execute(in_training).scalar_one()
    if terms.alpha == 0 and num_training >= terms.groups_per_batch:
        return 0
    # Batches that were taken before a trainer went back come first.
    last = tx.execute(sa.select(sa.func.max(batches.c.step))).scalar()
    next_step = at if last is None else max(at, last + 1)
    waiting = waiting_groups(tx.connection, tx.state["version"], groups.c.uses == 0)
    free = min(
        terms.capacity_groups - num_training - len(waiting),
        num_places(terms, next_step, [group.oldest_version for group in waiting], version),
    )
    held = Counter(group.explorer for group in waiting if group.ready_at is None)
    alive = sa.select(members.c.name, members.c.wants, members.c.version).where(
        members.c.role == Role.EXPLORER, members.c.left_at.is_(None)
    )
    # No place is kept for an explorer that could not begin anything before it has newer weights.
    wanted = {row.name: row.wants for row in tx.execute(alive) if terms.last_step(row.version) >= next_step}
    return grant(max(0, free), member.name, held, wanted)


def _lease(
    tx: Transaction,
    member: Member,
    tags: Sequence[str],
    others: Sequence[str],
    version: int,
    token: str,
) -> list[ClaimedGroup]:
    """Open groups of these tags first, then new ones; a task sampler may take some of `others` in their
    place."""
    found: list[ClaimedGroup] = []
    query = sa.select(groups).where(is_in(GroupState.OPEN), groups.c.tag.in_(set(tags))).order_by(groups.c.id)
    left = tx.execute(query).mappings().all() if tags else []
    by_tag: dict[str, list[RowMapping]] = {}
    for row in left:
        by_tag.setdefault(row["tag"], []).append(row)
    lease = {
        "state": GroupState.LEASED,
        "explorer": member.name,
        "incarnation": member.incarnation,
        "token": token,
        "oldest_version": version,
        "leased_at": tx.now,
    }
    started: list[str] = []
    for tag in tags:
        if by_tag.get(tag):
            found.append(claimed_group(by_tag[tag].pop(0)))
        else:
            started.append(tag)
    if found:
        ids = [group.group_id for group in found]
        tx.execute(groups.update().where(groups.c.id.in_(ids)).values(**lease))
    if started:
        choice = TaskChoice(tx)
        tasks = choice.next_tasks(started, also=others)
        made = (
            tx.execute(
                groups.insert().returning(groups.c.id, sort_by_parameter_order=True),
                [new_group(task, tx.now) | lease for task in tasks],
            )
            .scalars()
            .all()
        )
        choice.started(made, tasks)
        found += [
            ClaimedGroup(group_id=group_id, task=task, attempt=0)
            for group_id, task in zip(made, tasks, strict=True)
        ]
    return found


def _tell_sampler(
    tx: Transaction, played: Mapping[int, PlayedGroup] | None, group_ids: Sequence[int]
) -> None:
    if tx.terms.task_sampler and played and group_ids:
        TaskChoice(tx).over({group_id: played[group_id] for group_id in group_ids if group_id in played})


def _rows(tx: Transaction, ids: Sequence[int]) -> dict[int, RowMapping]:
    rows = tx.execute(sa.select(groups).where(groups.c.id.in_(ids))).mappings()
    return {row["id"]: row for row in rows}
