"""One run of a task's tests over a patch, in a sandbox of its own, to judge or only to see."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from envsdk.envs.swe.evaluator.layout import laid_paths, tests_folder
from envsdk.envs.swe.evaluator.report import Report
from envsdk.envs.swe.evaluator.run import Laid, TestRun, lay, run_tests
from envsdk.envs.swe.evaluator.stripping import Stripped
from envsdk.envs.swe.tasks.images import prepare_image
from envsdk.envs.swe.tasks.task import Outcome, Task
from envsdk.rewards.sandbox.contract import (
    ExecEnd,
    ExecResult,
    Image,
    Limits,
    Sandbox,
    SandboxBackend,
    SandboxError,
)
from envsdk.rewards.sandbox.scratch import scratch_folder
from envsdk.rewards.sandbox.threads import in_thread

_APPLY = "git -c core.fsmonitor=false -c core.hooksPath=/dev/null apply --whitespace=nowarn"
_GIT_ENV = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
_APPLY_TIMEOUT_S = 60.0


class DoesNotApply(ValueError):
    """What git says of the patch."""


class Ended(RuntimeError):
    """A command of the trial other than the tests did not end by itself."""

    def __init__(self, what: str, result: ExecResult) -> None:
        super().__init__(f"{what}: {result.reason.value} after {result.elapsed_s:.0f} s")
        self.result = result


async def try_patch(
    task: Task,
    patch: Stripped,
    *,
    image: Image,
    tests: Path,
    backend: SandboxBackend,
    timeout_s: float,
    hash_seed: int = 0,
) -> TestRun:
    """Apply `patch` to the base tree and run the tests of the folder `tests`, laid over it read-only.

    Args:
        timeout_s: Of the tests.
        hash_seed: `PYTHONHASHSEED` of the run.

    Raises:
        DoesNotApply: git refuses the patch.
        Ended: Applying it took too much.
        SandboxError: The sandbox failed.
    """
    async with with_tests(task, image, tests, backend, patch.own) as (sandbox, laid):
        await _apply(sandbox, patch)
        return await run_tests(sandbox, laid, task.tests, timeout_s=timeout_s, hash_seed=hash_seed)


@asynccontextmanager
async def with_tests(
    task: Task, image: Image, tests: Path, backend: SandboxBackend, own: frozenset[str] = frozenset()
) -> AsyncIterator[tuple[Sandbox, Laid]]:
    """A sandbox of the base tree with the folder `tests` laid over it; `own` are a patch's tests."""
    paths = await asyncio.to_thread(laid_paths, task, tests, own)
    async with scratch_folder() as scratch:
        laid = await in_thread(lay, image, tests, paths, task.tests, scratch)
        sandbox = await backend.start(laid.image, limits=Limits(memory_mb=task.limits.memory_mb))
        try:
            yield sandbox, laid
        finally:
            await sandbox.close()


async def _apply(sandbox: Sandbox, patch: Stripped) -> None:
    if not patch.files:
        return
    path = f"/tmp/{secrets.token_hex(8)}"
    data = await asyncio.to_thread(lambda: patch.text.encode(errors="surrogateescape"))
    await sandbox.write(path, data)
    result = await sandbox.exec(f"{_APPLY} {path} && rm {path}", timeout_s=_APPLY_TIMEOUT_S, env=_GIT_ENV)
    if result.reason is not ExecEnd.EXIT:
        raise Ended("applying the patch", result)
    if not result.ok:
        lines = result.output.strip().splitlines() or ["git apply failed"]
        raise DoesNotApply(f"the patch does not apply: {lines[0]}")


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
