"""Running a task's tests on its base tree without judging: how tasks are made and recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from envsdk.envs.swe.evaluator.layout import tests_folder
from envsdk.envs.swe.evaluator.report import Report
from envsdk.envs.swe.evaluator.run import TestRun, run_tests
from envsdk.envs.swe.evaluator.trial import with_tests
from envsdk.envs.swe.tasks.images import prepare_image
from envsdk.envs.swe.tasks.task import Outcome, Task
from envsdk.rewards.sandbox.contract import ExecEnd, SandboxBackend, SandboxError


async def observe(
    task: Task,
    backend: SandboxBackend,
    *,
    hash_seed: int = 0,
    coverage_of: Sequence[str] = (),
    packages: tuple[str, ...] = ("pytest",),
    files: Mapping[str, str] | None = None,
) -> TestRun:
    """Run the tests of `task`, hidden ones laid over, on its unpatched base tree.

    Args:
        hash_seed: `PYTHONHASHSEED` of the run.
        coverage_of: Folders whose lines are counted; `coverage` must be among the packages.
        packages: What is installed in the interpreter.
        files: Written into the tree first, by path.

    Raises SandboxError: the sandbox failed.
    """
    image = await prepare_image(task, backend, packages=packages)
    assert image.tree is not None
    tests = await asyncio.to_thread(tests_folder, task, image.tree)
    async with with_tests(task, image, tests, backend) as (sandbox, laid):
        for path, text in (files or {}).items():
            await sandbox.write(path, text.encode())
        run = await run_tests(
            sandbox,
            laid,
            task.tests,
            timeout_s=task.limits.timeout_s,
            hash_seed=hash_seed,
            coverage_of=coverage_of,
        )
    if run.result.reason is ExecEnd.INFRASTRUCTURE:
        raise SandboxError(f"{task.instance_id}: {run.result.output}")
    return run


def passed(report: Report) -> list[str]:
    """The node ids that passed, in the order in which they ran."""
    return [test for test, outcome in report.outcomes.items() if outcome is Outcome.PASSED]
