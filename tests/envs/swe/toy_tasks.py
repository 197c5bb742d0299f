"""Three tasks about one bug, and an evaluator that reads patches instead of running tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from envsdk import TextEnv
from envsdk.envs.swe.evaluator import Evaluation, Verdict
from envsdk.envs.swe.tasks.task import Outcome, Task, TestPlan, TreeSource

GOLD = """diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
TASK = Task(
    instance_id="toy__calc-1",
    repo="toy/calc",
    source=TreeSource(folder=Path("/nowhere")),
    problem_statement="add(1, 2) is -1.",
    hints_text="Look at the sign.",
    gold_patch=GOLD,
    fail_to_pass=("test_calc.py::test_add", "test_calc.py::test_more"),
    pass_to_pass=("test_calc.py::test_name",),
    tests=TestPlan(paths=("test_calc.py",)),
)
MakeEnv = Callable[..., TextEnv]


class Evaluator:
    """Resolved is what adds; a patch with `hang` in it cannot be graded."""

    def __init__(self) -> None:
        self.graded: list[str] = []

    async def __call__(self, task: Task, patch: str, backend: object, *, strict: bool = True) -> Evaluation:
        self.graded.append(patch)
        if "hang" in patch:
            return Evaluation(resolved=False, reason=Verdict.INFRASTRUCTURE, detail="the tests took too long")
        resolved = "+    return a + b" in patch
        outcomes = dict.fromkeys(task.fail_to_pass, Outcome.PASSED if resolved else Outcome.FAILED)
        outcomes |= dict.fromkeys(task.pass_to_pass, Outcome.PASSED)
        return Evaluation(
            resolved=resolved,
            reason=Verdict.RESOLVED if resolved else Verdict.TESTS_FAILED,
            detail="3 of 3" if resolved else "1 of 3",
            outcomes=outcomes,
        )


def toy_tasks(folder: Path) -> tuple[Task, ...]:
    """Of a repository that is made in `folder`."""
    repository = folder / "calc"
    repository.mkdir()
    (repository / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (repository / "name.txt").write_text("calc\n")
    source = TreeSource(folder=repository)
    return tuple(replace(TASK, instance_id=f"toy__calc-{number}", source=source) for number in (1, 2, 3))
