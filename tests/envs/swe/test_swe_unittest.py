"""Tasks whose tests pytest does not run: graded by the same rules, with what the standard library has."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from envsdk.envs.swe.evaluator import Evaluation, Verdict, evaluate
from envsdk.envs.swe.evaluator.run import KIT
from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.task import Outcome, Runner, Task, TestPlan, TreeSource
from envsdk.rewards.sandbox import SandboxBackend, open_backend

BUG = "def mean(numbers):\n    return sum(numbers) / 2\n"
FIXED = BUG.replace("/ 2", "/ len(numbers)")
SHARED = """\
import unittest


class Shared:
    def test_of_two(self):
        self.assertEqual(self.mean([1, 3]), 2)
"""
TESTS = """\
import unittest

from calc import mean
from tests.shared import Shared


class MeanTests(Shared, unittest.TestCase):
    mean = staticmethod(mean)

    @classmethod
    def setUpClass(cls):
        cls.three = [1, 2, 3]

    def test_of_three(self):
        \"\"\"The mean of three numbers is not half their sum.\"\"\"
        for numbers in (self.three, [3, 2, 1]):
            with self.subTest(numbers=numbers):
                self.assertEqual(mean(numbers), 2)

    @unittest.skip("not yet")
    def test_skipped(self):
        pass

    @unittest.expectedFailure
    def test_expected_to_fail(self):
        self.assertEqual(mean([]), 0)


class Broken(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise RuntimeError("no set-up")

    def test_never_runs(self):
        pass


def test_a_function():
    assert mean([4]) == 4
"""
FILE = "tests/test_mean.py"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("calc")
    (folder / "tests").mkdir()
    (folder / "calc.py").write_text(BUG)
    (folder / "tests/__init__.py").touch()
    (folder / "tests/shared.py").write_text(SHARED)
    return Task(
        instance_id="toy__mean",
        repo="toy/mean",
        source=TreeSource(folder=folder),
        problem_statement="mean([1, 2, 3]) is 3.0.",
        gold_patch=diff({"calc.py": BUG}, {"calc.py": FIXED}),
        test_patch=diff({}, {FILE: TESTS}),
        fail_to_pass=(f"{FILE}::MeanTests::test_of_three", f"{FILE}::test_a_function"),
        pass_to_pass=("test_of_two (tests.test_mean.MeanTests)",),
        tests=TestPlan(paths=(FILE,), runner=Runner.UNITTEST),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[SandboxBackend]:
    opened = open_backend("bubblewrap")
    yield opened
    await opened.aclose()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_gold_patch_pays_and_an_empty_one_does_not(task: Task, backend: SandboxBackend) -> None:
    named = replace(
        task,
        fail_to_pass=("The mean of three numbers is not half their sum.", "test_a_function"),
        pass_to_pass=("test_of_two (tests.test_mean.MeanTests.test_of_two)",),
    )
    gold, empty, by_name = await asyncio.gather(
        evaluate(task, task.gold_patch, backend),
        evaluate(task, "", backend),
        evaluate(named, task.gold_patch, backend),
    )
    assert (gold.reward, gold.reason) == (1.0, Verdict.RESOLVED), gold
    assert (empty.reward, empty.reason) == (0.0, Verdict.TESTS_FAILED), empty
    assert empty.outcomes == {
        task.fail_to_pass[0]: Outcome.FAILED,
        task.fail_to_pass[1]: Outcome.FAILED,
        task.pass_to_pass[0]: Outcome.PASSED,
    }
    assert by_name.resolved, by_name


@pytest.mark.asyncio(loop_scope="module")
async def test_only_what_ran_and_passed_is_a_pass(task: Task, backend: SandboxBackend) -> None:
    expected = {
        f"{FILE}::MeanTests::test_skipped": Outcome.SKIPPED,
        f"{FILE}::MeanTests::test_expected_to_fail": Outcome.XFAILED,
        f"{FILE}::Broken::test_never_runs": Outcome.MISSING,
        f"{FILE}::test_gone": Outcome.MISSING,
    }
    listed = replace(task, fail_to_pass=tuple(expected), pass_to_pass=())
    verdict = await evaluate(listed, task.gold_patch, backend)
    assert verdict.outcomes == expected
    assert verdict.reason is Verdict.TESTS_FAILED


ATTACKS = {
    "leaves early": ("import os\nos._exit(1)\n", Verdict.TAMPERED),
    "raises SystemExit": ("raise SystemExit(0)\n", Verdict.TESTS_FAILED),
    "skips everything": ("import unittest\nraise unittest.SkipTest\n", Verdict.TESTS_FAILED),
    "makes every case pass": (
        "import unittest\nunittest.TestCase.run = lambda self, result: (result.startTest(self), "
        "result.addSuccess(self), result.stopTest(self))\n",
        Verdict.TAMPERED,
    ),
    "makes every assertion pass": (
        "import unittest\nunittest.TestCase.assertEqual = lambda *arguments: None\n",
        Verdict.TAMPERED,
    ),
    "drops failures": (
        "import unittest\nunittest.case._Outcome.testPartExecutor = "
        "__import__('contextlib').contextmanager(lambda self, *a, **k: iter([None]))\n",
        Verdict.TAMPERED,
    ),
    "reports by itself": (
        "import sys\nfor module in list(sys.modules.values()):\n"
        "    if hasattr(module, 'Result'):\n"
        "        module.Result.addFailure = module.Result.addError = lambda self, test, err: "
        "self.addSuccess(test)\n        module.Result.addSubTest = lambda *arguments: None\n",
        Verdict.TAMPERED,
    ),
}


@pytest.mark.asyncio(loop_scope="module")
async def test_attacks_do_not_pay(task: Task, backend: SandboxBackend) -> None:
    async def attacked(text: str) -> Evaluation:
        patch = diff({"calc.py": BUG}, {"calc.py": text + BUG})
        return await evaluate(task, patch, backend, strict=False)

    verdicts = await asyncio.gather(*(attacked(text) for text, _ in ATTACKS.values()))
    for (name, (_, reason)), verdict in zip(ATTACKS.items(), verdicts, strict=True):
        assert (verdict.reward, verdict.reason) == (0.0, reason), (name, verdict)


def test_the_kit_is_written_for_old_interpreters() -> None:
    for file in KIT.glob("*.py"):
        tree = ast.parse(file.read_text(), feature_version=(3, 6))
        assert not any(
            isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in ast.walk(tree)
        )
