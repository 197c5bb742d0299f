"""How much grading one patch may take, and whose doing it is when it takes more.

gold patch graded once, its time kept -> limit for every other patch
a patch is ended by a limit -> the gold patch again, under the same limit
    it comes through well within it: the patch is to blame, and scores 0
    it does not: the machine is to blame, and the sample is masked
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from envsdk.atomic import make_folder, write_json_atomically
from envsdk.envs.swe.evaluator.evaluation import Evaluation, Reason
from envsdk.envs.swe.sandbox.contract import SandboxBackend
from envsdk.envs.swe.tasks.runtime import swe_cache
from envsdk.envs.swe.tasks.task import Task

FLOOR_S = 30.0
FACTOR = 10.0
"""A test run may take FLOOR_S and FACTOR times as long as with the gold patch, up to the task's limit."""
WELL_WITHIN = 0.5
"""Of a limit: where the gold patch needs more, the machine is too slow to blame another patch."""

GradeGold = Callable[[float], Awaitable[Evaluation]]
"""Grades the gold patch with this limit on its test run, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldCost:
    """What grading the gold patch of a task took."""

    seconds: float
    """Of the test run alone."""


def allowed_s(limit_s: float, gold: GoldCost | None) -> float:
    """How long a test run may take: the task's own `limit_s` where nothing is known of its gold patch."""
    return limit_s if gold is None else min(limit_s, FLOOR_S + FACTOR * gold.seconds)


def came_through(verdict: Evaluation, limit_s: float) -> bool:
    """Whether this verdict on the gold patch shows that the machine is fit to grade under the limit."""
    ended_by_itself = verdict.reason not in (Reason.EXHAUSTED, Reason.INFRASTRUCTURE)
    return ended_by_itself and verdict.run_s <= WELL_WITHIN * limit_s


async def gold_cost(task: Task, backend: SandboxBackend, grade_gold: GradeGold) -> GoldCost | None:
    """The cost of the gold patch of `task`: measured once, and kept by content in the cache.

    None: it cannot be measured, because the gold patch is itself ended by the task's limits.
    """
    if (known := _kept(task, backend)) is None:
        await gold_verdict(task, backend, grade_gold)
        known = _kept(task, backend)
    return known


async def gold_verdict(task: Task, backend: SandboxBackend, grade_gold: GradeGold) -> Evaluation:
    """The verdict on the gold patch under the task's own limits; what it took is kept."""
    limit_s = task.limits.timeout_s
    verdict = await _shared(("first", task.content_hash(), backend.name), lambda: grade_gold(limit_s))
    if verdict.reason not in (Reason.EXHAUSTED, Reason.INFRASTRUCTURE):
        file = _file(task, backend)
        make_folder(file.parent)
        write_json_atomically(file, {"instance_id": task.instance_id, "seconds": verdict.run_s})
    return verdict


async def gold_again(task: Task, limit_s: float, grade_gold: GradeGold) -> Evaluation:
    """The verdict on the gold patch now. Gradings that ask while it is being graded share one run."""
    return await _shared(("again", task.content_hash(), limit_s), lambda: grade_gold(limit_s))


def _kept(task: Task, backend: SandboxBackend) -> GoldCost | None:
    file = _file(task, backend)
    return GoldCost(seconds=json.loads(file.read_text())["seconds"]) if file.is_file() else None


def _file(task: Task, backend: SandboxBackend) -> Path:
    identity = f"{backend.name} {task.content_hash()}"
    return swe_cache() / "gold" / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"


_running: MutableMapping[asyncio.AbstractEventLoop, dict[tuple[object, ...], asyncio.Task[Evaluation]]]
_running = WeakKeyDictionary()


async def _shared(key: tuple[object, ...], work: Callable[[], Awaitable[Evaluation]]) -> Evaluation:
    """What `work` returns; one that runs already under this key in this event loop is joined."""
    running = _running.setdefault(asyncio.get_running_loop(), {})
    if key not in running:
        running[key] = asyncio.ensure_future(work())
        running[key].add_done_callback(lambda done: running.pop(key))
    return await asyncio.shield(running[key])
