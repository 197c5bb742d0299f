"""How a patch is graded.

strip -> start(base tree + hidden tests, read-only) -> git apply -> strict look -> run tests -> judge -> close
                                        ended by a limit -> gold patch again -> 0, or infrastructure
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from envsdk.envs.swe.evaluator.evaluation import Evaluation, Reason
from envsdk.envs.swe.evaluator.introspection import allowed_words, unexpected
from envsdk.envs.swe.evaluator.layout import laid_paths, tests_folder
from envsdk.envs.swe.evaluator.limits import allowed_s, came_through, gold_again, gold_cost, gold_verdict
from envsdk.envs.swe.evaluator.report import Report, look_up
from envsdk.envs.swe.evaluator.run import TestRun, lay, run_tests
from envsdk.envs.swe.evaluator.scratch import scratch_folder
from envsdk.envs.swe.evaluator.stripping import RefusedPatch, Stripped, installed_for, strip
from envsdk.envs.swe.sandbox.contract import (
    ExecResult,
    Limits,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxFileError,
)
from envsdk.envs.swe.sandbox.contract import Reason as Ended
from envsdk.envs.swe.tasks.images import installed_modules, prepare_image
from envsdk.envs.swe.tasks.solution import solution_of
from envsdk.envs.swe.tasks.task import Outcome, Task

_APPLY = "git -c core.fsmonitor=false -c core.hooksPath=/dev/null apply --whitespace=nowarn"
_GIT_ENV = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
_APPLY_TIMEOUT_S = 60.0
_RAN_OUT = {
    Ended.TIMEOUT: "of time",
    Ended.OUT_OF_MEMORY: "of memory",
    Ended.DISK_LIMIT: "of disk",
    Ended.OUTPUT_LIMIT: "of output",
}
_MAX_SOURCE_BYTES = 4 << 20


async def evaluate(task: Task, patch: str, backend: SandboxBackend, *, strict: bool = True) -> Evaluation:
    """Grade `patch`, as `git diff` writes it, against the base tree of `task`.

    A failure of the evaluation itself comes back with `infrastructure` set; it is never a score of 0. A patch
    that makes it run out of time, memory, disk or output scores 0 where the gold patch comes through.

    Args:
        task: What to grade against.
        patch: The text alone; "" is graded like any other.
        backend: Where the tests run, in a sandbox of their own.
        strict: Score 0 where the patch brings means of introspection (frames, always-equal objects, parts of
            pytest) that neither the original files nor the gold patch use.

    Raises ConfigurationError: the task cannot be made: a source is missing, a patch of it does not apply.
    """
    started = time.monotonic()

    async def grade(which: str, limit_s: float) -> Evaluation:
        try:
            return await _grade(task, which, backend, strict=strict, timeout_s=limit_s)
        except SandboxError as error:
            return Evaluation(resolved=False, reason=Reason.INFRASTRUCTURE, detail=str(error))

    async def grade_gold(limit_s: float) -> Evaluation:
        return await grade(task.gold_patch, limit_s)

    if patch == task.gold_patch:
        verdict = await gold_verdict(task, backend, grade_gold)
    else:
        limit_s = allowed_s(task.limits.timeout_s, await gold_cost(task, backend, grade_gold))
        verdict = await grade(patch, limit_s)
        if verdict.reason is Reason.EXHAUSTED:
            verdict = _blamed(verdict, await gold_again(task, limit_s, grade_gold), limit_s)
    return replace(verdict, elapsed_s=time.monotonic() - started)


def _blamed(verdict: Evaluation, gold: Evaluation, limit_s: float) -> Evaluation:
    """The verdict on a patch that was ended by a limit, by how the gold patch fares under the same one."""
    if came_through(gold, limit_s):
        told = f"the gold patch takes {gold.run_s:.1f} s under the same limits"
        return replace(verdict, detail=f"{verdict.detail}; {told}")
    told = gold.detail if gold.run_s <= limit_s else f"{gold.run_s:.1f} s"
    return replace(
        verdict,
        reason=Reason.INFRASTRUCTURE,
        detail=f"{verdict.detail}; but the gold patch does not come through well either: {told}",
    )


async def _grade(
    task: Task, patch: str, backend: SandboxBackend, *, strict: bool, timeout_s: float
) -> Evaluation:
    image = await prepare_image(task, backend)
    assert image.tree is not None
    installed = installed_for(task, image.tree, await installed_modules(task, backend))
    try:
        stripped = await asyncio.to_thread(strip, patch, task, installed)
    except RefusedPatch as error:
        return Evaluation(resolved=False, reason=Reason.PATCH_REFUSED, detail=str(error))
    tests = await asyncio.to_thread(tests_folder, task, image.tree)
    paths = await asyncio.to_thread(laid_paths, task, tests)
    limits = Limits(memory_mb=task.limits.memory_mb)
    with scratch_folder() as scratch:
        laid = await asyncio.to_thread(lay, image, tests, paths, task.tests, Path(scratch))
        sandbox = await backend.start(laid.image, limits=limits)
        try:
            refusal = await _apply(sandbox, stripped)
            if refusal is not None:
                return _told(refusal, stripped)
            marks = await _marks(task, image.tree, sandbox, stripped)
            if marks and strict:
                detail = f"the patch uses {marks[0].partition(': ')[2]} ({marks[0].partition(': ')[0]})"
                verdict = Evaluation(resolved=False, reason=Reason.SUSPICIOUS, detail=detail)
            else:
                run = await run_tests(sandbox, laid, task.tests, timeout_s=timeout_s)
                verdict = _judge(task, run)
            return replace(_told(verdict, stripped), suspicious=tuple(marks))
        finally:
            await sandbox.close()


def _told(verdict: Evaluation, stripped: Stripped) -> Evaluation:
    return replace(verdict, stripped=stripped.removed, num_left_out=len(stripped.left_out))


async def _apply(sandbox: Sandbox, stripped: Stripped) -> Evaluation | None:
    """Apply the patch; the verdict where that cannot be done."""
    if not stripped.files:
        return None
    path = f"/tmp/{secrets.token_hex(8)}"
    await sandbox.write(path, stripped.text.encode(errors="surrogateescape"))
    result = await sandbox.exec(f"{_APPLY} {path} && rm {path}", timeout_s=_APPLY_TIMEOUT_S, env=_GIT_ENV)
    if result.reason is not Ended.EXIT:
        return _ended(result, "applying the patch")
    if not result.ok:
        lines = result.output.strip().splitlines() or ["git apply failed"]
        detail = f"the patch does not apply: {lines[0]}"
        return Evaluation(resolved=False, reason=Reason.PATCH_REFUSED, detail=detail)
    return None


async def _marks(task: Task, base: Path, sandbox: Sandbox, stripped: Stripped) -> list[str]:
    """`path: mark` for every means of introspection that the patch brings."""
    allowed = await asyncio.to_thread(_allowed, base, task.gold_patch)
    found = []
    for patch in stripped.files:
        path = patch.new_path
        if path is None or not patch.hunks:
            continue
        try:
            # Of a new file the patch has all: one command less for each.
            patched = (
                "\n".join(patch.added_lines()).encode(errors="surrogateescape")
                if patch.old_path is None
                else await sandbox.read(path, max_bytes=_MAX_SOURCE_BYTES)
            )
        except SandboxFileError:
            found.append(f"{path}: a file that cannot be read")
            continue
        if not path.endswith((".py", ".pyi", ".pyx")) and not patched.startswith(b"#!"):
            continue
        original = base / (patch.old_path or path)
        before = original.read_text(errors="replace") if original.is_file() else ""
        found += [f"{path}: {mark}" for mark in unexpected(before, patched.decode(errors="replace"), allowed)]
    return found


@lru_cache(maxsize=1024)
def _allowed(base: Path, gold_patch: str) -> frozenset[str]:
    """Means of introspection that the gold patch brings."""
    words = set[str]()
    for before, after in solution_of(base, gold_patch).values():
        words |= allowed_words(before, after)
    return frozenset(words)


def _ended(result: ExecResult, what: str) -> Evaluation:
    """The verdict where a command of the evaluation did not end by itself."""
    if result.reason is Ended.INFRASTRUCTURE:
        reason, detail = Reason.INFRASTRUCTURE, f"{what}: {result.output.strip()[-500:]}"
    else:
        reason = Reason.EXHAUSTED
        detail = f"{what} ran out {_RAN_OUT[result.reason]} after {result.elapsed_s:.0f} s"
    tail = result.output[-2000:]
    return Evaluation(resolved=False, reason=reason, detail=detail, output_tail=tail, run_s=result.elapsed_s)


def _judge(task: Task, run: TestRun) -> Evaluation:
    """The verdict on a run: every test that decides must have come out as the task says."""
    tail = run.result.output[-2000:]
    if run.result.reason is not Ended.EXIT:
        return _ended(run.result, "the tests")
    if run.report is None or run.distrusted is not None:
        assert run.distrusted is not None
        return Evaluation(
            resolved=False,
            reason=Reason.TAMPERED,
            detail=run.distrusted,
            output_tail=tail,
            run_s=run.result.elapsed_s,
        )
    if task.expected is not None:
        seen: Mapping[str, Outcome] = _by_short_name(run.report)
        wanted: Mapping[str, Outcome] = task.expected
    else:
        seen = run.report.outcomes
        wanted = dict.fromkeys((*task.fail_to_pass, *task.pass_to_pass), Outcome.PASSED)
    outcomes = {test: look_up(seen, test, run.report.aliases) for test in wanted}
    wrong = [test for test, outcome in wanted.items() if outcomes[test] is not outcome]
    reason = Reason.TESTS_FAILED if wrong or not wanted else Reason.RESOLVED
    detail = f"{len(wanted) - len(wrong)} of {len(wanted)} tests came out as they must"
    if wrong:
        detail += f"; {outcomes[wrong[0]].value}: {wrong[0]}"
    if run.report.collect_errors:
        detail += f"; cannot be collected: {_first_error(run.report.collect_errors)}"
    return Evaluation(
        resolved=reason is Reason.RESOLVED,
        reason=reason,
        detail=detail,
        outcomes=outcomes,
        output_tail=tail,
        run_s=run.result.elapsed_s,
    )


def _first_error(collect_errors: Mapping[str, str]) -> str:
    """What could not be collected, and the exception."""
    name, message = next(iter(collect_errors.items()))
    lines = [line for line in message.splitlines() if line.startswith("E ")]
    told = lines[-1].removeprefix("E ").strip() if lines else message.strip().rpartition("\n")[2]
    return f"{name} ({told[:300]})" if told else name


def _by_short_name(report: Report) -> dict[str, Outcome]:
    """Outcomes by `Class.test`, as R2E-Gym names tests."""
    return {".".join(test.split("::")[1:]): outcome for test, outcome in report.outcomes.items()}
