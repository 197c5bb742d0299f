"""How a patch is graded.

strip -> start(base tree + sealed tests, read-only) -> git apply -> run tests -> judge -> close
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from envsdk.envs.swe.evaluator.evaluation import Evaluation, Reason
from envsdk.envs.swe.evaluator.introspection import look
from envsdk.envs.swe.evaluator.layout import tests_folder
from envsdk.envs.swe.evaluator.report import Report, look_up
from envsdk.envs.swe.evaluator.run import TestRun
from envsdk.envs.swe.evaluator.sealing import sealed_tests
from envsdk.envs.swe.evaluator.stripping import RefusedPatch, strip
from envsdk.envs.swe.evaluator.trial import DoesNotApply, try_patch
from envsdk.envs.swe.evaluator.trial import Ended as TrialEnded
from envsdk.envs.swe.sandbox.contract import (
    ExecResult,
    SandboxBackend,
    SandboxError,
)
from envsdk.envs.swe.sandbox.contract import Reason as Ended
from envsdk.envs.swe.tasks.images import prepare_image
from envsdk.envs.swe.tasks.task import Outcome, Task

_APPLY = "git -c core.fsmonitor=false -c core.hooksPath=/dev/null apply --whitespace=nowarn"
_GIT_ENV = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
_APPLY_TIMEOUT_S = 60.0
_OF_THE_EVALUATION = {Ended.TIMEOUT, Ended.OUT_OF_MEMORY, Ended.INFRASTRUCTURE}
_MAX_SOURCE_BYTES = 4 << 20


async def evaluate(task: Task, patch: str, backend: SandboxBackend, *, strict: bool = True) -> Evaluation:
    """Grade `patch`, as `git diff` writes it, against the base tree of `task`.

    A failure of the evaluation itself comes back with `infrastructure` set; it is never a score of 0.

    Args:
        task: What to grade against.
        patch: The text alone; "" is graded like any other.
        backend: Where the tests run, in a sandbox of their own.
        strict: Where the task's tests do not hide what they expect, score 0 if the patch brings means of
            introspection (frames, always-equal objects, parts of pytest) that neither the original files nor
            the gold patch use.

    Raises ConfigurationError: the task cannot be made: a source is missing, a patch of it does not apply.
    """
    started = time.monotonic()
    try:
        verdict = await _grade(task, patch, backend, strict=strict)
    except SandboxError as error:
        verdict = Evaluation(resolved=False, reason=Reason.INFRASTRUCTURE, detail=str(error))
    return replace(verdict, elapsed_s=time.monotonic() - started)


async def _grade(task: Task, patch: str, backend: SandboxBackend, *, strict: bool) -> Evaluation:
    try:
        stripped = strip(patch, task)
    except RefusedPatch as error:
        return Evaluation(resolved=False, reason=Reason.PATCH_REFUSED, detail=str(error))
    image = await prepare_image(task, backend)
    assert image.tree is not None
    plain = await asyncio.to_thread(tests_folder, task, image.tree)
    tests = await sealed_tests(task, image, plain, backend)
    marks: list[str] = []
    try:
        run = await try_patch(task, stripped, image=image, tests=tests.folder, backend=backend)
    except DoesNotApply as error:
        verdict = Evaluation(resolved=False, reason=Reason.PATCH_REFUSED, detail=str(error))
    except TrialEnded as error:
        verdict = _infrastructure(error.result, str(error))
    else:
        verdict = _judge(task, await asyncio.to_thread(tests.judged_run, run))
        if verdict.resolved and tests.seal.is_weak:
            marks = await asyncio.to_thread(look, image.tree, stripped, task.gold_patch)
            if marks and strict:
                verdict = replace(verdict, resolved=False, reason=Reason.SUSPICIOUS, detail=_suspicion(marks))
    return replace(
        verdict,
        stripped=stripped.removed,
        suspicious=tuple(marks),
        hidden_bits=tests.seal.hidden_bits,
        weak=tests.seal.is_weak,
    )


def _suspicion(marks: Sequence[str]) -> str:
    path, _, mark = marks[0].partition(": ")
    return f"the patch uses {mark} ({path}), and the tests of this task do not hide what they expect"


def _infrastructure(result: ExecResult, what: str) -> Evaluation:
    detail = f"{what}: {result.reason.value} after {result.elapsed_s:.0f} s"
    return Evaluation(
        resolved=False, reason=Reason.INFRASTRUCTURE, detail=detail, output_tail=result.output[-2000:]
    )


def _judge(task: Task, run: TestRun) -> Evaluation:
    """The verdict on a run: every test that decides must have come out as the task says."""
    tail = run.result.output[-2000:]
    if run.result.reason in _OF_THE_EVALUATION:
        return _infrastructure(run.result, "the tests")
    if run.report is None or run.distrusted is not None:
        detail = run.distrusted or f"the tests were ended: {run.result.reason.value}"
        return Evaluation(resolved=False, reason=Reason.TAMPERED, detail=detail, output_tail=tail)
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
        detail += f"; cannot be collected: {next(iter(run.report.collect_errors))}"
    return Evaluation(
        resolved=reason is Reason.RESOLVED, reason=reason, detail=detail, outcomes=outcomes, output_tail=tail
    )


def _by_short_name(report: Report) -> dict[str, Outcome]:
    """Outcomes by `Class.test`, as R2E-Gym names tests."""
    return {".".join(test.split("::")[1:]): outcome for test, outcome in report.outcomes.items()}
