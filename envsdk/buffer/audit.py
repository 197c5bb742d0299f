"""Whether a buffer kept its promises, by what is written in it.

broken = audit(engine)      # [] or one sentence for each promise that was broken, with examples
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from envsdk.base.store.file_digests import damaged
from envsdk.buffer.contract import GroupState, Terms
from envsdk.buffer.payload import from_bytes, table_of
from envsdk.buffer.places import snapshot
from envsdk.buffer.tables import batch_groups, batches, cursors, groups, job, members, payloads, versions
from envsdk.contracts import run_limits
from envsdk.contracts.failures import StorageError

_EXAMPLES = 5
_G = groups.c


def audit(engine: Engine, *, decode: bool = False) -> list[str]:
    """Check everything in one read transaction, while the programs run.

    With `decode` the trajectories of ready and taken groups are decoded too, and compared with their rows.
    """
    with snapshot(engine) as connection:
        terms = Terms.from_json(connection.execute(sa.select(job.c.terms)).scalar_one())
        findings = list(_findings(connection, terms))
        findings += [
            _sentence(what, ids)
            for what, query in _wrong_groups(connection, terms)
            if (ids := [int(row[0]) for row in connection.execute(query.order_by(_G.id))])
        ]
        return findings + (list(_other_trajectories(connection)) if decode else [])


def _wrong_groups(connection: Connection, terms: Terms) -> Iterator[tuple[str, sa.Select[Any]]]:
    """What no group may be, and the ids of those that are."""
    known = [state.value for state in GroupState]
    yield "are in no known state", sa.select(_G.id).where(_G.state.not_in(known))
    without_reason = _G.state == GroupState.DROPPED, _G.reason.is_(None)
    yield "were dropped without a reason", sa.select(_G.id).where(*without_reason)

    held = (
        sa.select(
            batch_groups.c.group_id,
            sa.func.count().label("number"),
            sa.func.max(batch_groups.c.step).label("last"),
        )
        .group_by(batch_groups.c.group_id)
        .subquery()
    )
    number = sa.func.coalesce(held.c.number, 0)
    joined = sa.select(_G.id).outerjoin(held, held.c.group_id == _G.id)
    yield (
        "were taken more or less often than batches hold them",
        joined.where(sa.or_(number != _G.uses, sa.and_(number > 0, held.c.last != _G.step))),
    )
    in_a_batch = [GroupState.TAKEN, GroupState.TRAINED]
    yield "are taken or trained, and in no batch", joined.where(_G.state.in_(in_a_batch), number == 0)
    yield (
        "are in a batch, and were played again or dropped",
        joined.where(_G.state.not_in([*in_a_batch, GroupState.READY]), number > 0),
    )
    yield (
        "are in a batch, and ready again though nothing lets them be trained twice",
        sa.select(_G.id).where(_G.state == GroupState.READY, _G.uses > 0, _G.rests_until <= _G.step),
    )
    of_batches = sa.select(_G.id).join(batches, batches.c.step == _G.step)
    yield (
        "are trained, and their batch is in no checkpoint",
        of_batches.where(_G.state == GroupState.TRAINED, batches.c.trained_at.is_(None)),
    )

    yield (
        f"were more than {terms.staleness_bound} versions old when they were taken",
        sa.select(_G.id)
        .join(batch_groups, batch_groups.c.group_id == _G.id)
        .join(batches, batches.c.step == batch_groups.c.step)
        .where(_G.oldest_version < batches.c.version - terms.staleness_bound),
    )
    newest = _newest_version(connection)
    too_new = sa.select(_G.id).where(_G.oldest_version > newest)
    yield f"have tokens of a version after the newest, {newest}", too_new

    with_them = sa.select(payloads.c.group_id)
    waiting, played = [GroupState.READY, GroupState.TAKEN], [GroupState.OPEN, GroupState.LEASED]
    yield (
        "are ready or taken, and their trajectories are gone",
        sa.select(_G.id).where(_G.state.in_(waiting), _G.id.not_in(with_them)),
    )
    yield (
        "have trajectories, and are still played",
        sa.select(_G.id).where(_G.state.in_(played), _G.id.in_(with_them)),
    )
    playing = sa.select(members.c.incarnation).where(members.c.left_at.is_(None))
    yield (
        "are leased to explorers that left",
        sa.select(_G.id).where(_G.state == GroupState.LEASED, _G.incarnation.not_in(playing)),
    )


def _newest_version(connection: Connection) -> int:
    present = connection.execute(sa.select(job.c.version)).scalar_one()
    # A trainer that went back takes batches again that are of later versions.
    newest: int = max(present, connection.execute(sa.select(sa.func.max(batches.c.version))).scalar() or 0)
    return newest


def _findings(connection: Connection, terms: Terms) -> Iterator[str]:
    """What is wrong with tasks, batches, versions and the number of groups."""
    played = sa.select(_G.tag, _G.task_index).group_by(_G.tag, _G.task_index).having(sa.func.count() > 1)
    doubled = [f"{tag} {index}" for tag, index in connection.execute(played.limit(_EXAMPLES))]
    if doubled:
        yield f"tasks are played in several groups: {', '.join(doubled)}"
    counts = (
        sa.select(_G.tag, sa.func.count().label("number"), sa.func.max(_G.task_index).label("last"))
        .group_by(_G.tag)
        .subquery()
    )
    query = sa.select(cursors.c.tag, cursors.c.next_index, counts.c.number, counts.c.last).outerjoin(
        counts, counts.c.tag == cursors.c.tag
    )
    for tag, next_index, number, last in connection.execute(query):
        if number != next_index or last != next_index - 1:
            yield f"{next_index} tasks of {tag} were handed out, and there are {number or 0} groups"

    sizes = (
        sa.select(batches.c.step, sa.func.count(batch_groups.c.group_id))
        .outerjoin(batch_groups, batch_groups.c.step == batches.c.step)
        .group_by(batches.c.step)
        .having(sa.func.count(batch_groups.c.group_id) != terms.groups_per_batch)
    )
    for step, number in connection.execute(sizes.limit(_EXAMPLES)):
        yield f"the batch of step {step} has {number} groups instead of {terms.groups_per_batch}"
    first, last, number = connection.execute(
        sa.select(sa.func.min(batches.c.step), sa.func.max(batches.c.step), sa.func.count())
    ).one()
    if number and last - first + 1 != number:
        yield f"of the steps {first} to {last} there are {number} batches"

    published = connection.execute(sa.select(sa.func.max(versions.c.version))).scalar()
    if published is not None and published > (newest := _newest_version(connection)):
        yield f"version {published} was published, and the job is at {newest}"

    held = sa.or_(_G.state == GroupState.LEASED, sa.and_(_G.state == GroupState.READY, _G.uses == 0))
    number = connection.execute(sa.select(sa.func.count()).select_from(groups).where(held)).scalar_one()
    if number > terms.capacity_groups:
        yield f"{number} groups are leased or ready, where {terms.capacity_groups} may be"


def _other_trajectories(connection: Connection) -> Iterator[str]:
    query = (
        sa.select(groups, payloads.c.data)
        .join(payloads, payloads.c.group_id == _G.id)
        .where(_G.state.in_([GroupState.READY, GroupState.TAKEN]))
    )
    damaged: list[int] = []
    other: list[int] = []
    for row in connection.execution_options(yield_per=64).execute(query).mappings():
        try:
            found = from_bytes(row["data"])
        except StorageError:
            damaged.append(row["id"])
            continue
        tasks = {(each.task.tag, each.task.index) for each in found}
        oldest = run_limits.version_of_group(each.oldest_version for each in found)
        is_own = tasks <= {(row["tag"], row["task_index"])} and len(found) == row["num_trajectories"]
        if not is_own or oldest != row["oldest_version"]:
            other.append(row["id"])
    if damaged:
        yield _sentence("are damaged", damaged)
    if other:
        yield _sentence("hold other trajectories than their rows say", other)


def _sentence(what: str, ids: list[int]) -> str:
    more = f" ... ({len(ids)} in all)" if len(ids) > _EXAMPLES else ""
    return f"groups that {what}: {', '.join(map(str, ids[:_EXAMPLES]))}{more}"


def audit_folder(engine: Engine, folder: Path) -> list[str]:
    """Compare batch files and checkpoints, also while the programs run."""
    return [*_batch_files(engine, folder / "trajectories"), *_checkpoints(folder / "checkpoints")]


def _batch_files(engine: Engine, folder: Path) -> Iterator[str]:
    """Batch files of steps that the trainer has left: the file of the present one may be on its way."""
    query = (
        sa.select(batch_groups.c.step, batch_groups.c.group_id, payloads.c.data)
        .outerjoin(payloads, payloads.c.group_id == batch_groups.c.group_id)
        .where(batch_groups.c.step < sa.select(job.c.step).scalar_subquery())
        .order_by(batch_groups.c.step, batch_groups.c.group_id)
    )
    with snapshot(engine) as connection:
        rows = connection.execution_options(yield_per=64).execute(query)
        for step, batch in groupby(rows, key=attrgetter("step")):
            groups = {row.group_id: row.data for row in batch}
            file = folder / f"step_{step:06d}.parquet"
            try:
                held = pq.read_table(file)
                if sorted(set(held["group_id"].to_pylist())) != list(groups):
                    yield f"{file.name} holds other groups than the batch of step {step}"
                    continue
                for group_id, data in groups.items():
                    if data is not None and (names := _differing(held, group_id, data)):
                        what = f"another {', '.join(names)} of group {group_id}"
                        yield f"{file.name} has {what} than the buffer"
            except (pa.ArrowException, OSError, KeyError) as error:
                yield f"{file.name}, of the batch of step {step}, cannot be read: {error}"


def _differing(held: pa.Table, group_id: int, data: bytes) -> list[str]:
    """Columns of the group that are not the same in the batch file; none where the buffer's are damaged."""
    try:
        original = table_of(data)
    except StorageError:
        return []
    own = held.filter(pc.equal(held["group_id"], group_id))
    if own.equals(original):
        return []
    # Numbers that are none differ from themselves.
    return [
        name
        for name in original.column_names
        if repr(own[name].to_pylist()) != repr(original[name].to_pylist())
    ]


def _checkpoints(folder: Path) -> Iterator[str]:
    for checkpoint in sorted(folder.glob("step_*")):
        try:
            files = json.loads((checkpoint / "run.json").read_text())["files"]
            problems = damaged(checkpoint, files)
        except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
            problems = [f"run.json cannot be read: {error}"]
        if checkpoint.is_dir():  # a trainer that runs removes old ones
            yield from (f"checkpoints/{checkpoint.name}: {problem}" for problem in problems)
