"""Rows of the tables as the types of the contract."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, RowMapping

from envsdk.buffer.contract import ClaimedGroup, GroupState, PublishedVersion, TakenGroup
from envsdk.buffer.selection import WaitingGroup
from envsdk.buffer.tables import batch_groups, batches, dropped_tokens, groups, payloads
from envsdk.contracts.trajectory import Task

TRAIN_SPLIT = "train"
OPENED = {"state": GroupState.OPEN, "incarnation": "", "token": "", "oldest_version": None}
"""The state of a group that nobody plays any longer."""
_WAITING = (GroupState.LEASED, GroupState.READY)
_LATEST = 16
_LOOK_BACK = 4_096
"""Groups among which the latest of a tag are looked for."""


def is_in(state: GroupState) -> sa.ColumnElement[bool]:
    # Written out, so that the index of this state can be used.
    return groups.c.state == sa.literal_column(f"'{state.value}'")


def new_group(task: Task, now: float) -> dict[str, Any]:
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


def claimed_group(row: RowMapping) -> ClaimedGroup:
    task = Task(tag=row["tag"], split=TRAIN_SPLIT, index=row["task_index"])
    return ClaimedGroup(group_id=row["id"], task=task, attempt=row["attempt"])


def waiting_groups(
    connection: Connection, version: int, *where: sa.ColumnElement[bool]
) -> list[WaitingGroup]:
    """Groups that are played or ready. One without any token is as old as `version`."""
    # Each state by the index of its own.
    ids = sa.union_all(*(sa.select(groups.c.id).where(is_in(state)) for state in _WAITING))
    rows = connection.execute(sa.select(groups).where(groups.c.id.in_(ids), *where)).mappings()
    return [
        WaitingGroup(
            group_id=row["id"],
            tag=row["tag"],
            explorer=row["explorer"],
            oldest_version=version if row["oldest_version"] is None else row["oldest_version"],
            leased_at=row["leased_at"],
            ready_at=row["ready_at"] if row["state"] == GroupState.READY else None,
            uses=row["uses"],
        )
        for row in rows
    ]


def longest_s(connection: Connection, tag: str) -> float:
    """Seconds that the longest of the tag's latest groups took, however it ended; infinite when none did."""
    ended_at = sa.func.coalesce(groups.c.ready_at, groups.c.ended_at)
    newest = connection.execute(sa.select(sa.func.max(groups.c.id))).scalar() or 0
    latest = (
        sa.select((ended_at - groups.c.leased_at).label("seconds"))
        .where(groups.c.id > newest - _LOOK_BACK, groups.c.tag == tag, ended_at > groups.c.leased_at)
        .order_by(groups.c.id.desc())
        .limit(_LATEST)
        .subquery()
    )
    found = connection.execute(sa.select(sa.func.max(latest.c.seconds))).scalar()
    return math.inf if found is None else float(found)


def taken_groups(connection: Connection, step: int) -> list[TakenGroup]:
    query = (
        sa.select(groups.c.id, groups.c.explorer, groups.c.ready_at, payloads.c.data)
        .join(batch_groups, batch_groups.c.group_id == groups.c.id)
        .outerjoin(payloads, payloads.c.group_id == groups.c.id)
        .where(batch_groups.c.step == step)
        .order_by(groups.c.id)
    )
    return [
        TakenGroup(group_id=row.id, payload=row.data or b"", explorer=row.explorer, ready_at=row.ready_at)
        for row in connection.execute(query)
    ]


def count_dropped(connection: Connection, of: str, tokens: Mapping[str, int], *, add: bool) -> None:
    """Count sampled tokens by tag that a start of an explorer has thrown away, or the buffer, as "".

    `add` them to what was counted; or else they are all of them so far.
    """
    table = dropped_tokens
    for tag, number in tokens.items():
        own = sa.and_(table.c.incarnation == of, table.c.tag == tag)
        value = table.c.num_tokens + number if add else number
        if not connection.execute(table.update().where(own).values(num_tokens=value)).rowcount:
            connection.execute(table.insert().values(incarnation=of, tag=tag, num_tokens=number))


def dropped_by_tag(connection: Connection) -> dict[str, int]:
    """Sampled tokens that were thrown away."""
    table = dropped_tokens
    query = sa.select(table.c.tag, sa.func.sum(table.c.num_tokens)).group_by(table.c.tag)
    return {tag: int(number) for tag, number in connection.execute(query.order_by(table.c.tag))}


def take_out(
    connection: Connection, step: int, group_ids: Sequence[int], reason: str, now: float
) -> dict[str, int]:
    """Drop groups of the batch of `step`; one that an earlier batch holds stays in that.

    Returns the sampled tokens of the dropped ones, by tag.
    """
    own = sa.and_(batch_groups.c.step == step, batch_groups.c.group_id.in_(group_ids))
    ids = connection.execute(sa.select(batch_groups.c.group_id).where(own)).scalars().all()
    connection.execute(batch_groups.delete().where(own))
    last = sa.select(sa.func.max(batch_groups.c.step)).where(batch_groups.c.group_id == groups.c.id)
    connection.execute(
        groups.update()
        .where(groups.c.id.in_(ids))
        .values(uses=groups.c.uses - 1, step=last.scalar_subquery(), state=GroupState.TAKEN)
    )
    trained = sa.select(batches.c.step).where(batches.c.trained_at.is_not(None))
    chosen = groups.update().where(groups.c.id.in_(ids))
    in_none = sa.and_(groups.c.id.in_(ids), groups.c.step.is_(None))
    tokens = sa.select(groups.c.tag, sa.func.sum(groups.c.num_tokens)).where(in_none).group_by(groups.c.tag)
    lost = {tag: int(number) for tag, number in connection.execute(tokens)}
    connection.execute(chosen.where(groups.c.step.in_(trained)).values(state=GroupState.TRAINED))
    connection.execute(
        chosen.where(groups.c.step.is_(None)).values(
            state=GroupState.DROPPED, reason=str(reason), ended_at=now
        )
    )
    connection.execute(
        payloads.delete().where(payloads.c.group_id.in_(sa.select(groups.c.id).where(in_none)))
    )
    return lost


def published_version(row: RowMapping) -> PublishedVersion:
    return PublishedVersion(
        version=row["version"],
        step=row["step"],
        location=json.loads(row["location"]),
        published_at=row["published_at"],
    )
