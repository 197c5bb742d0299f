"""How much grading one patch may take, and whose doing it is when it takes more.

gold patch's own time, from when its tests were sealed -> limit for every other patch
a patch is ended by a limit -> the gold patch again, under the same limit
    it comes through well within it: the patch is to blame, and scores 0
    it does not: the machine is to blame, and the sample is masked
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from weakref import WeakKeyDictionary

from envsdk.envs.swe.evaluator.evaluation import Evaluation, Verdict
from envsdk.envs.swe.tasks.task import Task

FLOOR_S = 30.0
FACTOR = 10.0
"""A test run may take FLOOR_S and FACTOR times as long as with the gold patch, up to the task's limit."""
WELL_WITHIN = 0.5
"""Share of a limit: where the gold patch needs more, the machine is too slow to blame another patch."""

GradeGold = Callable[[float], Awaitable[Evaluation]]
"""Grades the gold patch with this limit on its test run, in seconds."""


def allowed_s(limit_s: float, gold_s: float) -> float:
    """How long a run may take that takes `gold_s` (0: not known) with the gold patch; at most `limit_s`."""
    return min(limit_s, FLOOR_S + FACTOR * gold_s) if gold_s else limit_s


def came_through(verdict: Evaluation, limit_s: float) -> bool:
    """Whether this verdict on the gold patch shows that the machine is fit to grade under the limit."""
    ended_by_itself = verdict.reason not in (Verdict.EXHAUSTED, Verdict.INFRASTRUCTURE)
    return ended_by_itself and verdict.run_s <= WELL_WITHIN * limit_s


async def gold_again(task: Task, limit_s: float, grade_gold: GradeGold) -> Evaluation:
    """The verdict on the gold patch now. Gradings that ask while it is being graded share one run."""
    return await _shared(("again", task.content_hash(), limit_s), lambda: grade_gold(limit_s))


_running: MutableMapping[asyncio.AbstractEventLoop, dict[tuple[object, ...], asyncio.Task[Evaluation]]]
_running = WeakKeyDictionary()


async def _shared(key: tuple[object, ...], work: Callable[[], Awaitable[Evaluation]]) -> Evaluation:
    """What `work` returns; one that runs already under this key in this event loop is joined."""
    running = _running.setdefault(asyncio.get_running_loop(), {})
    if key not in running:
        running[key] = asyncio.ensure_future(work())
        running[key].add_done_callback(lambda done: running.pop(key))
    return await asyncio.shield(running[key])
