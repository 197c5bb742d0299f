"""How long grading may take, and whose doing it is when it takes longer."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.swe.evaluator import Evaluation, Verdict
from envsdk.envs.swe.evaluator.evaluation import (
    FLOOR_S,
    allowed_s,
    came_through,
    gold_again,
)
from tests.envs.swe.toy_tasks import TASK

SECONDS = st.floats(0.01, 1e5)


def verdict(reason: Verdict, run_s: float = 1.0) -> Evaluation:
    return Evaluation(resolved=reason is Verdict.RESOLVED, reason=reason, detail="", run_s=run_s)


class Gold:
    """Grades the gold patch; counts how often."""

    def __init__(self, *verdicts: Evaluation) -> None:
        self.verdicts = list(verdicts)
        self.limits: list[float] = []

    async def __call__(self, limit_s: float) -> Evaluation:
        self.limits.append(limit_s)
        await asyncio.sleep(0)
        return self.verdicts.pop(0)


@given(SECONDS, SECONDS)
def test_a_run_gets_several_times_the_gold_patchs_time_and_never_more_than_the_task_allows(
    limit_s: float, gold_s: float
) -> None:
    allowed = allowed_s(limit_s, gold_s)
    assert allowed <= limit_s
    assert allowed == limit_s or allowed >= max(FLOOR_S, 10 * gold_s)


def test_where_the_gold_patchs_time_is_not_known_the_tasks_own_limit_holds() -> None:
    assert allowed_s(300, 0) == 300


def test_the_machine_is_fit_only_where_the_gold_patch_ends_by_itself_in_half_of_the_time() -> None:
    assert came_through(verdict(Verdict.RESOLVED, 4.9), 10)
    assert came_through(verdict(Verdict.TESTS_FAILED, 4.9), 10)
    assert not came_through(verdict(Verdict.RESOLVED, 5.1), 10)
    assert not came_through(verdict(Verdict.EXHAUSTED, 1), 10)
    assert not came_through(verdict(Verdict.INFRASTRUCTURE, 0), 10)


async def test_patches_that_run_out_at_the_same_time_share_one_run_of_the_gold_patch() -> None:
    gold = Gold(verdict(Verdict.RESOLVED), verdict(Verdict.RESOLVED, 9))
    again = await asyncio.gather(*(gold_again(TASK, 40, gold) for _ in range(8)))
    assert [found.run_s for found in again] == [1.0] * 8
    assert (await gold_again(TASK, 40, gold)).run_s == 9, "the machine may have changed since"
    assert gold.limits == [40, 40]
