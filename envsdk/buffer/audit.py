"""Whether a buffer kept its promises, by what is written in it.

broken = audit(engine)      # [] or one sentence for each promise that was broken, with examples
"""

from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from envsdk.buffer.contract import GroupState, Terms
from envsdk.buffer.payload import from_bytes
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
        checks: list[Callable[[Connection, Terms], Iterator[str]]] = [
            _each_group_has_a_state,
            _each_task_is_played_in_one_group,
            _each_batch_is_full_and_none_is_missing,
            _each_group_is_in_as_many_batches_as_it_says,
            _no_group_was_too_old,
            _what_waits_has_its_trajectories,
            _what_is_played_has_a_player,
            _no_more_than_the_capacity,
        ]
        if decode:
            checks.append(_trajectories_are_those_of_their_group)
        return [sentence for check in checks for sentence in check(connection, terms)]


def _each_group_has_a_state(connection: Connection, terms: Terms) -> Iterator[str]:
    known = [state.value for state in GroupState]
    yield from _none(connection, "are in no known state", sa.select(_G.id).where(_G.state.not_in(known)))
    yield from _none(
        connection,
        "were dropped without a reason",
        sa.select(_G.id).where(_G.state == GroupState.DROPPED, _G.reason.is_(None)),
    )


def _each_task_is_played_in_one_group(connection: Connection, terms: Terms) -> Iterator[str]:
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


def _each_batch_is_full_and_none_is_missing(connection: Connection, terms: Terms) -> Iterator[str]:
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


def _each_group_is_in_as_many_batches_as_it_says(connection: Connection, terms: Terms) -> Iterator[str]:
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
    yield from _none(
        connection,
        "were taken more or less often than batches hold them",
        joined.where(sa.or_(number != _G.uses, sa.and_(number > 0, held.c.last != _G.step))),
    )
    in_a_batch = [GroupState.TAKEN, GroupState.TRAINED]
    yield from _none(
        connection,
        "are taken or trained, and in no batch",
        joined.where(_G.state.in_(in_a_batch), number == 0),
    )
    yield from _none(
        connection,
        "are in a batch, and were played again or dropped",
        joined.where(_G.state.not_in([*in_a_batch, GroupState.READY]), number > 0),
    )
    yield from _none(
        connection,
        "are in a batch, and ready again though nothing lets them be trained twice",
        sa.select(_G.id).where(_G.state == GroupState.READY, _G.uses > 0, _G.rests_until <= _G.step),
    )
    yield from _none(
        connection,
        "are trained, and their batch is in no checkpoint",
        sa.select(_G.id)
        .join(batches, batches.c.step == _G.step)
        .where(_G.state == GroupState.TRAINED, batches.c.trained_at.is_(None)),
    )


def _no_group_was_too_old(connection: Connection, terms: Terms) -> Iterator[str]:
    yield from _none(
        connection,
        f"were more than {terms.staleness_bound} versions old when they were taken",
        sa.select(_G.id)
        .join(batch_groups, batch_groups.c.group_id == _G.id)
        .join(batches, batches.c.step == batch_groups.c.step)
        .where(_G.oldest_version < batches.c.version - terms.staleness_bound),
    )
    present = connection.execute(sa.select(job.c.version)).scalar_one()
    # A trainer that went back takes batches again that are of later versions.
    newest = max(present, connection.execute(sa.select(sa.func.max(batches.c.version))).scalar() or 0)
    yield from _none(
        connection,
        f"have tokens of a version after the newest, {newest}",
        sa.select(_G.id).where(_G.oldest_version > newest),
    )
    published = connection.execute(sa.select(sa.func.max(versions.c.version))).scalar()
    if published is not None and published > newest:
        yield f"version {published} was published, and the job is at {newest}"


def _what_waits_has_its_trajectories(connection: Connection, terms: Terms) -> Iterator[str]:
    with_them = sa.select(payloads.c.group_id)
    waiting = [GroupState.READY, GroupState.TAKEN]
    yield from _none(
        connection,
        "are ready or taken, and their trajectories are gone",
        sa.select(_G.id).where(_G.state.in_(waiting), _G.id.not_in(with_them)),
    )
    yield from _none(
        connection,
        "have trajectories, and are still played",
        sa.select(_G.id).where(_G.state.in_([GroupState.OPEN, GroupState.LEASED]), _G.id.in_(with_them)),
    )


def _what_is_played_has_a_player(connection: Connection, terms: Terms) -> Iterator[str]:
    playing = sa.select(members.c.incarnation).where(members.c.left_at.is_(None))
    yield from _none(
        connection,
        "are leased to explorers that left",
        sa.select(_G.id).where(_G.state == GroupState.LEASED, _G.incarnation.not_in(playing)),
    )


def _no_more_than_the_capacity(connection: Connection, terms: Terms) -> Iterator[str]:
    query = (
        sa.select(sa.func.count())
        .select_from(groups)
        .where(sa.or_(_G.state == GroupState.LEASED, sa.and_(_G.state == GroupState.READY, _G.uses == 0)))
    )
    number = connection.execute(query).scalar_one()
    if number > terms.capacity_groups:
        yield f"{number} groups are leased or ready, where {terms.capacity_groups} may be"


def _trajectories_are_those_of_their_group(connection: Connection, terms: Terms) -> Iterator[str]:
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


def _none(connection: Connection, what: str, query: sa.Select[Any]) -> Iterator[str]:
    """A sentence if the query finds ids of groups."""
    ids = [int(row[0]) for row in connection.execute(query.order_by(_G.id))]
    if ids:
        yield _sentence(what, ids)


def _sentence(what: str, ids: list[int]) -> str:
    more = f" ... ({len(ids)} in all)" if len(ids) > _EXAMPLES else ""
    return f"groups that {what}: {', '.join(map(str, ids[:_EXAMPLES]))}{more}"
