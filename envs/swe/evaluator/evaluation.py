"""What grading one patch says, how much it may take, and whose doing it is when it takes more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from enum import StrEnum
from weakref import WeakKeyDictionary

from envsdk.envs.swe.tasks.task import Outcome, Task


class Verdict(StrEnum):
    """Why a patch scored as it did."""

    RESOLVED = "resolved"
    TESTS_FAILED = "tests_failed"
    """A test that decides did not pass; an empty patch ends here."""
    PATCH_REFUSED = "patch_refused"
    """It is no patch, does not apply, is over the limits on patches, or reaches out of the repository."""
    EXHAUSTED = "exhausted"
    """It made grading run out of time, memory, disk or output, where the gold patch comes through."""
    TAMPERED = "tampered"
    """The report is incomplete or contradicts the canaries: the run cannot be believed."""
    SUSPICIOUS = "suspicious"
    """Strict mode, where tests cannot be sealed: the patch brings introspection that neither the original nor
    the gold patch uses."""
    INFRASTRUCTURE = "infrastructure"
    """The evaluation itself failed (the sandbox, or a machine on which the gold patch runs out of time too):
    says nothing about the patch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The verdict on one patch."""

    resolved: bool
    reason: Verdict
    detail: str
    """One line for a person."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    """The outcome of every test that decides, by node id; empty where no test ran."""
    stripped: tuple[str, ...] = ()
    """Test and configuration files that the patch touched and that were taken out of it."""
    suspicious: tuple[str, ...] = ()
    """What strict mode looks for, `path: token`, in a patch that `weak` tests rewarded."""
    hidden_bits: float = 0.0
    """At most how many bits of what tests expect must be guessed to be rewarded without solving the task."""
    weak: bool = False
    """So few that a rewarded patch may have forged its verdict."""
    num_left_out: int = 0
    """How many added files counted as leftovers and were not graded."""
    elapsed_s: float = 0.0
    run_s: float = 0.0
    """Seconds of the test run alone, without waiting for a place to run; 0 where no test ran."""
    output_tail: str = ""
    """The end of what the test run printed; for people, never for grading."""

    @property
    def infrastructure(self) -> bool:
        """The sample is to be masked, never scored 0."""
        return self.reason is Verdict.INFRASTRUCTURE

    @property
    def reward(self) -> float | None:
        """1.0 or 0.0; None where the sample is to be masked."""
        return None if self.infrastructure else float(self.resolved)


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
    """The verdict on the gold patch now. Gradings that ask while it is being graded share one run.

    gold patch's own time, from when its tests were sealed -> limit for every other patch
    a patch is ended by a limit -> the gold patch again, under the same limit
        it comes through well within it: the patch is to blame, and scores 0
        it does not: the machine is to blame, and the sample is masked
    """
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
