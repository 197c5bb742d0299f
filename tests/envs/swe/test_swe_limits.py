"""How long grading may take, and whose doing it is when it takes longer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.swe.evaluator import Evaluation, Reason
from envsdk.envs.swe.evaluator.limits import (
    FLOOR_S,
    GoldCost,
    allowed_s,
    came_through,
    gold_again,
    gold_cost,
)
from tests.envs.swe.toy_tasks import TASK

BACKEND: Any = SimpleNamespace(name="toy")
SECONDS = st.floats(0.01, 1e5)


def verdict(reason: Reason, run_s: float = 1.0) -> Evaluation:
    return Evaluation(resolved=reason is Reason.RESOLVED, reason=reason, detail="", run_s=run_s)


class Gold:
    """Grades the gold patch; counts how often."""

    def __init__(self, *verdicts: Evaluation) -> None:
        self.verdicts = list(verdicts)
        self.limits: list[float] = []

    async def __call__(self, limit_s: float) -> Evaluation:
        self.limits.append(limit_s)
        await asyncio.sleep(0)
        return self.verdicts.pop(0)


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path))


@given(SECONDS, SECONDS)
def test_a_run_gets_several_times_the_gold_patchs_time_and_never_more_than_the_task_allows(
    limit_s: float, gold_s: float
) -> None:
    allowed = allowed_s(limit_s, GoldCost(seconds=gold_s))
    assert allowed <= limit_s == allowed_s(limit_s, None)
    assert allowed == limit_s or allowed >= max(FLOOR_S, 10 * gold_s)


def test_the_machine_is_fit_only_where_the_gold_patch_ends_by_itself_in_half_of_the_time() -> None:
    assert came_through(verdict(Reason.RESOLVED, 4.9), 10)
    assert came_through(verdict(Reason.TESTS_FAILED, 4.9), 10)
    assert not came_through(verdict(Reason.RESOLVED, 5.1), 10)
    assert not came_through(verdict(Reason.EXHAUSTED, 1), 10)
    assert not came_through(verdict(Reason.INFRASTRUCTURE, 0), 10)


async def test_the_cost_of_a_gold_patch_is_measured_once_however_many_ask() -> None:
    gold = Gold(verdict(Reason.RESOLVED, 2.5))
    costs = await asyncio.gather(*(gold_cost(TASK, BACKEND, gold) for _ in range(5)))
    assert costs == [GoldCost(seconds=2.5)] * 5
    assert await gold_cost(TASK, BACKEND, gold) == GoldCost(seconds=2.5)
    assert gold.limits == [TASK.limits.timeout_s]
    other = replace(TASK, instance_id="other")
    assert await gold_cost(other, BACKEND, Gold(verdict(Reason.RESOLVED, 1))) == GoldCost(seconds=1)


async def test_a_gold_patch_that_is_cut_off_has_no_cost_and_is_asked_again() -> None:
    gold = Gold(verdict(Reason.INFRASTRUCTURE), verdict(Reason.EXHAUSTED), verdict(Reason.RESOLVED, 3))
    costs = [await gold_cost(TASK, BACKEND, gold) for _ in range(3)]
    assert costs == [None, None, GoldCost(seconds=3)]


async def test_patches_that_run_out_at_the_same_time_share_one_run_of_the_gold_patch() -> None:
    gold = Gold(verdict(Reason.RESOLVED), verdict(Reason.RESOLVED, 9))
    again = await asyncio.gather(*(gold_again(TASK, 40, gold) for _ in range(8)))
    assert [found.run_s for found in again] == [1.0] * 8
    assert (await gold_again(TASK, 40, gold)).run_s == 9, "the machine may have changed since"
    assert gold.limits == [40, 40]
