"""What is in a buffer: read in one transaction, while its programs run.

content = inspect(engine, Which(tags=("maze",)))
content.counted("explorer")["node7"][GroupState.READY].num_groups
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from envsdk.buffer.contract import GroupState, Terms
from envsdk.buffer.places import snapshot
from envsdk.buffer.rows import dropped_by_tag
from envsdk.buffer.tables import batch_groups, batches, groups, job, members, payloads, versions
from envsdk.buffer.transaction import database_time
from envsdk.buffer.upkeep import Which

NEWEST = 5
"""Versions and steps that are listed."""

_IN_BATCHES = (GroupState.TAKEN, GroupState.TRAINED)
Property = Literal["tag", "explorer", "version"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """Numbers of some groups."""

    num_groups: int = 0
    num_complete: int = 0
    """Groups that have trajectories, or had them."""
    num_trajectories: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    reward: float = 0.0
    """The sum of the groups' mean rewards."""
    first_at: float = float("inf")
    """When the first of them came into its state, Unix time."""
    last_at: float = 0.0

    @property
    def mean_reward(self) -> float | None:
        """Mean reward of complete groups."""
        return self.reward / self.num_complete if self.num_complete else None

    def plus(self, other: Total) -> Total:
        """Both together."""
        combined = {"first_at": min, "last_at": max}
        return Total(
            **{
                name: combined.get(name, operator.add)(getattr(self, name), getattr(other, name))
                for name in Total.__slots__
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Groups that have state, tag, explorer and version in common."""

    state: GroupState
    tag: str
    explorer: str
    version: int | None
    """Version of the oldest token; None before the group is complete."""
    total: Total


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program of the job, living or gone."""

    role: str
    name: str
    host: str
    pid: int
    joined_at: float
    seen_at: float
    """When it last gave a sign of life."""
    expires_at: float
    left_at: float | None
    version: int
    """Version of its weights; -1 before the first."""
    wants: int
    """Groups that it asked for last."""
    waited_places_s: float
    waited_weights_s: float
    num_held: int
    """Groups that it plays."""

    def state(self, now: float) -> str:
        """`lives`, `silent` (its lease ran out) or `left`."""
        return "left" if self.left_at is not None else "lives" if self.expires_at >= now else "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A version of the weights."""

    version: int
    step: int
    method: str
    published_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A batch that was taken."""

    step: int
    version: int
    num_groups: int
    waited_s: float
    taken_at: float
    trained_at: float | None
    """When a checkpoint held it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagUse:
    """What became of a tag's groups."""

    tag: str
    num_groups: int
    """In batches."""
    share: float | None
    """Share of all groups in batches."""
    num_tokens: int
    """Sampled ones of the groups in batches."""
    dropped_tokens: int
    """Sampled and thrown away."""
    dropped_share: float | None
    """Share of the sampled tokens that were dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What `inspect` found."""

    name: str
    """Name of the job."""
    status: str
    step: int
    version: int
    terms: Terms
    read_at: float
    counts: Sequence[Count]
    dropped_tokens: Mapping[str, int] | None
    """Sampled tokens by tag: those that were thrown away; None where some groups were chosen."""
    reasons: Mapping[str, int]
    """Dropped groups by reason, the most frequent first."""
    payload_bytes: int
    """Size of all groups, whether or not they were chosen."""
    programs: Sequence[Program]
    newest_versions: Sequence[Published]
    newest_steps: Sequence[Step]

    def by_state(self) -> dict[GroupState, Total]:
        """In the order of a group's life."""
        found = {state: Total() for state in GroupState}
        for count in self.counts:
            found[count.state] = found[count.state].plus(count.total)
        return {state: total for state, total in found.items() if total.num_groups}

    def counted(self, by: Property) -> dict[Any, dict[GroupState, Total]]:
        """Counts by a property's value, and then by state; groups that have no such value are left out."""
        found: dict[Any, dict[GroupState, Total]] = {}
        for count in self.counts:
            value = getattr(count, by)
            if value not in (None, ""):
                totals = found.setdefault(value, {})
                totals[count.state] = totals.get(count.state, Total()).plus(count.total)
        return dict(sorted(found.items()))

    def used_by_tag(self) -> list[TagUse]:
        """What became of each tag's groups; nothing where some groups were chosen."""
        if self.dropped_tokens is None:
            return []
        in_batches = {
            tag: reduce(Total.plus, (totals.get(state, Total()) for state in _IN_BATCHES), Total())
            for tag, totals in self.counted("tag").items()
        }
        num_groups = sum(total.num_groups for total in in_batches.values())
        found = []
        for tag, total in in_batches.items():
            dropped = self.dropped_tokens.get(tag, 0)
            sampled = dropped + total.num_tokens
            found.append(
                TagUse(
                    tag=tag,
                    num_groups=total.num_groups,
                    share=total.num_groups / num_groups if num_groups else None,
                    num_tokens=total.num_tokens,
                    dropped_tokens=dropped,
                    dropped_share=dropped / sampled if sampled else None,
                )
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything; times are Unix seconds."""

        def totals(by_state: Mapping[GroupState, Total]) -> dict[str, Any]:
            return {state.value: _total_json(total) for state, total in by_state.items()}

        properties: tuple[Property, ...] = ("tag", "explorer", "version")
        return {
            "job": {"name": self.name, "status": self.status, "step": self.step, "version": self.version},
            "terms": asdict(self.terms)
            | {"max_staleness": self.terms.staleness_bound, "capacity_groups": self.terms.capacity_groups},
            "read_at": self.read_at,
            "groups": totals(self.by_state()),
            **{
                f"groups_by_{each}": {str(value): totals(own) for value, own in self.counted(each).items()}
                for each in properties
            },
            "dropped": dict(self.reasons),
            "tags": {use.tag: asdict(use) for use in self.used_by_tag()},
            "payload_bytes": self.payload_bytes,
            "programs": [
                asdict(program) | {"state": program.state(self.read_at)} for program in self.programs
            ],
            "versions": [asdict(version) for version in self.newest_versions],
            "steps": [asdict(step) for step in self.newest_steps],
        }


def inspect(engine: Engine, which: Which | None = None, *, now: float | None = None) -> Content:
    """Count the groups that fit, and list programs, versions and steps."""
    chosen, size = (which or Which()).where(), sa.func.sum(sa.func.length(payloads.c.data))
    with snapshot(engine) as connection:
        state = connection.execute(sa.select(job)).mappings().one()
        return Content(
            name=state["name"],
            status=state["status"],
            step=state["step"],
            version=state["version"],
            terms=Terms.from_json(state["terms"]),
            read_at=database_time(connection) if now is None else now,
            counts=_counts(connection, chosen),
            dropped_tokens=dropped_by_tag(connection) if which is None or which.is_all else None,
            reasons=_reasons(connection, chosen),
            payload_bytes=int(connection.execute(sa.select(size)).scalar() or 0),
            programs=_programs(connection),
            newest_versions=_newest_versions(connection),
            newest_steps=taken_steps(connection, NEWEST),
        )


def _counts(connection: Connection, chosen: sa.ColumnElement[bool]) -> list[Count]:
    g = groups.c
    # When a group became open again is not written down: its last explorer began before.
    in_state = sa.case(
        (g.state.in_([GroupState.OPEN, GroupState.LEASED]), g.leased_at),
        (g.state == GroupState.READY, g.ready_at),
        (g.state == GroupState.TAKEN, g.taken_at),
        else_=g.ended_at,
    )
    since = sa.func.coalesce(in_state, g.created_at)
    keys = (g.state, g.tag, g.explorer, g.oldest_version)
    sums = (g.num_trajectories, g.num_tokens, g.num_bytes, g.mean_reward)
    query = (
        sa.select(
            *keys,
            sa.func.count(),
            sa.func.count(sa.case((g.num_trajectories > 0, 1))),
            *(sa.func.sum(column) for column in sums),
            sa.func.min(since),
            sa.func.max(since),
        )
        .where(chosen)
        .group_by(*keys)
        .order_by(*keys)
    )
    found = []
    for row in connection.execute(query):
        state, tag, explorer, version, *numbers = row
        # PostgreSQL gives sums as decimals.
        typed: list[Any] = [*map(int, numbers[:5]), *map(float, numbers[5:])]
        total = Total(**dict(zip(Total.__slots__, typed, strict=True)))
        found.append(Count(state=GroupState(state), tag=tag, explorer=explorer, version=version, total=total))
    return found


def _reasons(connection: Connection, chosen: sa.ColumnElement[bool]) -> dict[str, int]:
    number = sa.func.count()
    query = (
        sa.select(groups.c.reason, number)
        .where(chosen, groups.c.state == GroupState.DROPPED)
        .group_by(groups.c.reason)
        .order_by(number.desc(), groups.c.reason)
    )
    return {str(reason): int(count) for reason, count in connection.execute(query)}


def _programs(connection: Connection) -> list[Program]:
    held = (
        sa.select(groups.c.incarnation, sa.func.count().label("num_held"))
        .where(groups.c.state == GroupState.LEASED)
        .group_by(groups.c.incarnation)
        .subquery()
    )
    query = (
        sa.select(members, sa.func.coalesce(held.c.num_held, 0).label("num_held"))
        .outerjoin(held, held.c.incarnation == members.c.incarnation)
        .order_by(members.c.role.desc(), members.c.name)
    )
    return [
        Program(**{name: row[name] for name in Program.__slots__})
        for row in connection.execute(query).mappings()
    ]


def _newest_versions(connection: Connection) -> list[Published]:
    rows = connection.execute(sa.select(versions).order_by(versions.c.version.desc()).limit(NEWEST))
    return [
        Published(
            version=row.version,
            step=row.step,
            method=str(json.loads(row.location).get("method", "")),
            published_at=row.published_at,
        )
        for row in rows
    ]


def taken_steps(connection: Connection, limit: int | None = None) -> list[Step]:
    """The batches that were taken, the newest first."""
    number = sa.select(sa.func.count()).where(batch_groups.c.step == batches.c.step).scalar_subquery()
    rows = connection.execute(
        sa.select(batches, number.label("num_groups")).order_by(batches.c.step.desc()).limit(limit)
    )
    return [Step(**{name: row[name] for name in Step.__slots__}) for row in rows.mappings()]


def _total_json(total: Total) -> dict[str, Any]:
    return {
        "groups": total.num_groups,
        "trajectories": total.num_trajectories,
        "tokens": total.num_tokens,
        "bytes": total.num_bytes,
        "mean_reward": total.mean_reward,
        "first_at": total.first_at,
        "last_at": total.last_at,
    }
