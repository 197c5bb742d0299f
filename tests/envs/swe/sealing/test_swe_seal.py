"""A whole seal, by real runs: what solves the task is rewarded, and what does not is not."""

from __future__ import annotations

import asyncio

import pytest

from envsdk.envs.swe.evaluator import Evaluation, Verdict, evaluate
from envsdk.envs.swe.evaluator.sealing.strength import ENOUGH_BITS
from envsdk.envs.swe.tasks.task import Task
from envsdk.rewards.sandbox import SandboxBackend
from tests.by_day import by_day
from tests.envs.swe.sealing.project import BROKEN, HONEST, changed, make_task


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_task(tmp_path_factory.mktemp("lib"))


@pytest.fixture(scope="module")
def graded(task: Task, backend: SandboxBackend, request: pytest.FixtureRequest) -> dict[str, Evaluation]:
    """The patches of the tests that were chosen, all graded at once."""
    patches = {"gold": task.gold_patch, "empty": ""}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec"):
            name = item.callspec.params["name"]
            patches[name] = changed(*{**BROKEN, **HONEST}[name])

    async def grade() -> list[Evaluation]:
        first = await evaluate(task, task.gold_patch, backend)
        rest = await asyncio.gather(*(evaluate(task, patch, backend) for patch in list(patches.values())[1:]))
        return [first, *rest]

    return dict(zip(patches, asyncio.run(grade()), strict=True))


def test_the_gold_patch_is_rewarded_and_the_tests_hide_what_they_expect(
    graded: dict[str, Evaluation],
) -> None:
    assert graded["gold"].resolved, graded["gold"]
    assert graded["gold"].hidden_bits > ENOUGH_BITS
    assert not graded["gold"].weak


def test_an_empty_patch_is_not_rewarded(graded: dict[str, Evaluation]) -> None:
    assert graded["empty"].reason is Verdict.TESTS_FAILED


@pytest.mark.parametrize("name", by_day(list(BROKEN)[::4], BROKEN))
def test_a_patch_that_breaks_a_function_is_not_rewarded(name: str, graded: dict[str, Evaluation]) -> None:
    assert graded[name].reason is Verdict.TESTS_FAILED


@pytest.mark.parametrize("name", by_day(list(HONEST)[::4], HONEST))
def test_a_patch_that_solves_the_task_in_another_way_is_rewarded(
    name: str, graded: dict[str, Evaluation]
) -> None:
    assert graded[name].resolved, graded[name]
