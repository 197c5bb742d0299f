"""How a job went, by the times in its buffer: how full it was, and what each explorer brought.

history = read_history(engine)
history.depth["ready"][-1]      # groups that are ready now
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from envsdk.buffer.contract import GroupState
from envsdk.buffer.inspection import Step, taken_steps
from envsdk.buffer.places import snapshot
from envsdk.buffer.tables import batches, groups, job, members, versions

NUM_TIMES = 120
RECENT_S = 300.0
"""The latest seconds for which rates are given."""
STAGES = ("played", "ready", "training")
"""What takes places of the capacity. Played: open or leased. Training: in a batch, until the weights after it
are published or the next batch is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What one explorer has brought."""

    explorer: str
    num_ready: int
    """Complete groups that it has stored."""
    num_recent: int
    """Those of them in the last `RECENT_S`."""
    num_dropped: int
    """Groups that it played last and that were dropped."""
    mean_lag: float | None
    """Versions between a group's oldest token and the trainer, when the group was taken."""
    by_time: Sequence[int]
    """Groups stored between the times of the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What `read_history` found. `times` are the ends of intervals of equal length."""

    began_at: float
    """When the first group was claimed, Unix time."""
    interval_s: float
    times: Sequence[float]
    """Seconds since `began_at`."""
    depth: Mapping[str, Sequence[int]]
    """Groups by stage: the number at each of `times`. One that was used several times is no longer ready
    since its last use."""
    brought: Sequence[Brought]
    """Groups that explorers brought, in the order of the explorers' names."""
    steps: Sequence[Step]
    """All of them, in order."""


def read_history(engine: Engine, *, num_times: int = NUM_TIMES) -> History:
    """The history so far, in one read transaction, while the programs run."""
    g = groups.c
    with snapshot(engine) as connection:
        began_at = _first_time(connection)
        interval_s = max(_last_time(connection) - began_at, 1.0) / num_times
        bins = _Bins(connection=connection, began_at=began_at, interval_s=interval_s, num_times=num_times)
        was_ready = g.ready_at.is_not(None)
        no_longer_played = sa.func.coalesce(g.ready_at, g.ended_at)
        no_longer_ready = sa.func.coalesce(g.taken_at, g.ended_at)
        in_and_out = {
            "played": (bins.count(g.created_at), bins.count(no_longer_played)),
            "ready": (
                bins.count(g.ready_at),
                bins.count(no_longer_ready, was_ready),
            ),
        }
        steps = taken_steps(connection)[::-1]
        return History(
            began_at=began_at,
            interval_s=interval_s,
            times=[interval_s * (at + 1) for at in range(num_times)],
            depth={
                stage: list(accumulate(came - went for came, went in zip(*ins_and_outs, strict=True)))
                for stage, ins_and_outs in in_and_out.items()
            }
            | {"training": _in_training(steps, _publications(connection), bins)},
            brought=_brought(connection, bins, began_at + interval_s * num_times - RECENT_S),
            steps=steps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bins:
    """Counts groups by the interval in which a time of theirs lies."""

    connection: Connection
    began_at: float
    interval_s: float
    num_times: int

    def place(self, time: float) -> int:
        """The number of the interval that a time lies in."""
        return min(max(0, int((time - self.began_at) / self.interval_s)), self.num_times - 1)

    def count(self, time: sa.ColumnElement[float], *where: sa.ColumnElement[bool]) -> list[int]:
        return self.count_by(sa.literal(""), time, *where).get("", [0] * self.num_times)

    def count_by(
        self, name: sa.ColumnElement[str], time: sa.ColumnElement[float], *where: sa.ColumnElement[bool]
    ) -> dict[str, list[int]]:
        place = (time - self.began_at) / self.interval_s
        # A cast cuts off in SQLite, which may have no `floor`, and rounds in PostgreSQL.
        is_sqlite = self.connection.dialect.name == "sqlite"
        at = sa.cast(place if is_sqlite else sa.func.floor(place), sa.Integer).label("at")
        chosen = sa.select(name.label("name"), at).where(time.is_not(None), *where).subquery()
        query = sa.select(chosen.c.name, chosen.c.at, sa.func.count()).group_by(chosen.c.name, chosen.c.at)
        found: dict[str, list[int]] = {}
        for owner, where_, number in self.connection.execute(query):
            counts = found.setdefault(owner, [0] * self.num_times)
            counts[min(max(0, where_), self.num_times - 1)] += number
        return found


def _publications(connection: Connection) -> dict[int, float]:
    """When the weights before each step were published."""
    first = sa.select(versions.c.step, sa.func.min(versions.c.published_at)).group_by(versions.c.step)
    return {step: float(at) for step, at in connection.execute(first)}


def _in_training(steps: Sequence[Step], published_at: Mapping[int, float], bins: _Bins) -> list[int]:
    changes = [0] * bins.num_times
    for step, following in zip_longest(steps, steps[1:]):
        changes[bins.place(step.taken_at)] += step.num_groups
        ends = [published_at.get(step.step + 1), None if following is None else following.taken_at]
        known = [end for end in ends if end is not None]
        # A trainer that went back has published a version before it took the batch again.
        if known:
            changes[bins.place(max(step.taken_at, min(known)))] -= step.num_groups
    return list(accumulate(changes))


def _first_time(connection: Connection) -> float:
    claimed_at = connection.execute(sa.select(sa.func.min(groups.c.created_at))).scalar()
    return float(claimed_at or connection.execute(sa.select(job.c.created_at)).scalar_one())


def _last_time(connection: Connection) -> float:
    g = groups.c
    queries = [
        sa.select(*(sa.func.max(each) for each in (g.created_at, g.ready_at, g.taken_at, g.ended_at))),
        sa.select(sa.func.max(members.c.seen_at), sa.func.max(members.c.left_at)),
        sa.select(sa.func.max(batches.c.taken_at)),
    ]
    times = [time for query in queries for time in connection.execute(query).one() if time is not None]
    return float(max(times, default=0.0))


def _brought(connection: Connection, bins: _Bins, recent_from: float) -> list[Brought]:
    g = groups.c
    query = (
        sa.select(
            g.explorer,
            sa.func.count(g.ready_at),
            sa.func.count(sa.case((g.ready_at > recent_from, 1))),
            sa.func.count(sa.case((g.state == GroupState.DROPPED, 1))),
            sa.func.avg(batches.c.version - g.oldest_version),
        )
        .outerjoin(batches, batches.c.step == g.step)
        .group_by(g.explorer)
        .order_by(g.explorer)
    )
    by_time = bins.count_by(g.explorer, g.ready_at)
    return [
        Brought(
            explorer=explorer,
            num_ready=num_ready,
            num_recent=num_recent,
            num_dropped=num_dropped,
            mean_lag=None if lag is None else float(lag),
            by_time=by_time.get(explorer, []),
        )
        for explorer, num_ready, num_recent, num_dropped, lag in connection.execute(query)
        if explorer
    ]
