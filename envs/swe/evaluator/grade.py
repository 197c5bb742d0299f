"""How a patch is graded.

strip -> start(base tree + sealed tests, read-only) -> git apply -> run tests -> judge -> close
                       ended by a limit -> gold patch again -> 0, or infrastructure
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from envsdk.envs.swe.evaluator.evaluation import Evaluation, Verdict, allowed_s, came_through, gold_again
from envsdk.envs.swe.evaluator.introspection import look
from envsdk.envs.swe.evaluator.layout import tests_folder
from envsdk.envs.swe.evaluator.report import Report, first_error, look_up
from envsdk.envs.swe.evaluator.run import TestRun
from envsdk.envs.swe.evaluator.sealing import SealedTests, sealed_tests
from envsdk.envs.swe.evaluator.stripping import Installed, RefusedPatch, installed_for, strip
from envsdk.envs.swe.evaluator.trial import DoesNotApply, try_patch
from envsdk.envs.swe.evaluator.trial import Ended as TrialEnded
from envsdk.envs.swe.tasks.images import installed_modules, prepare_image
from envsdk.envs.swe.tasks.task import Outcome, Task
from envsdk.rewards.sandbox.contract import ExecEnd, ExecResult, Image, SandboxBackend, SandboxError

_RAN_OUT = {
    ExecEnd.TIMEOUT: "of time",
    ExecEnd.OUT_OF_MEMORY: "of memory",
    ExecEnd.DISK_LIMIT: "of disk",
    ExecEnd.OUTPUT_LIMIT: "of output",
}


async def evaluate(task: Task, patch: str, backend: SandboxBackend, *, strict: bool = True) -> Evaluation:
    """Grade `patch`, as `git diff` writes it, against the base tree of `task`.

    A failure of the evaluation itself comes back with `infrastructure` set; it is never a score of 0. A patch
    that makes it run out of time, memory, disk or output scores 0 where the gold patch comes through.

    Args:
        task: What to grade against.
        patch: The text alone; "" is graded like any other.
        backend: Where the tests run, in a sandbox of their own.
        strict: Where the task's tests cannot be sealed, score 0 if the patch brings means of introspection
            (frames, always-equal objects, parts of pytest) that neither the original files nor the gold patch
            use.

    Raises ConfigurationError: the task cannot be made: a source is missing, a patch of it does not apply.
    """
    started = time.monotonic()
    try:
        verdict = await _evaluate(task, patch, backend, strict)
    except SandboxError as error:
        verdict = Evaluation(resolved=False, reason=Verdict.INFRASTRUCTURE, detail=str(error))
    return replace(verdict, elapsed_s=time.monotonic() - started)


async def _evaluate(task: Task, patch: str, backend: SandboxBackend, strict: bool) -> Evaluation:
    image = await prepare_image(task, backend)
    assert image.tree is not None
    plain = await asyncio.to_thread(tests_folder, task, image.tree)
    installed = installed_for(task, image.tree, await installed_modules(task, backend), plain)
    tests = await sealed_tests(task, image, plain, installed, backend)
    grading = _Grading(task, image, tests, installed, backend, strict)
    if patch == task.gold_patch:
        return await grading.verdict(patch, task.limits.timeout_s)
    limit_s = allowed_s(task.limits.timeout_s, tests.seal.gold_s)
    verdict = await grading.verdict(patch, limit_s)
    if verdict.reason is Verdict.EXHAUSTED:
        gold = await gold_again(task, limit_s, lambda limit: grading.verdict(task.gold_patch, limit))
        verdict = _blamed(verdict, gold, limit_s)
    return verdict


def _blamed(verdict: Evaluation, gold: Evaluation, limit_s: float) -> Evaluation:
    """The verdict on a patch that was ended by a limit, by how the gold patch fares under the same one."""
    if came_through(gold, limit_s):
        gold_time = f"the gold patch takes {gold.run_s:.1f} s under the same limits"
        return replace(verdict, detail=f"{verdict.detail}; {gold_time}")
    problem = gold.detail if gold.run_s <= limit_s else f"{gold.run_s:.1f} s"
    return replace(
        verdict,
        reason=Verdict.INFRASTRUCTURE,
        detail=f"{verdict.detail}; but the gold patch does not come through well either: {problem}",
    )


@dataclass(frozen=True, slots=True)
class _Grading:
    """What patches of one task are graded with."""

    task: Task
    image: Image
    tests: SealedTests
    installed: Installed
    backend: SandboxBackend
    strict: bool

    async def verdict(self, patch: str, limit_s: float) -> Evaluation:
        try:
            stripped = await asyncio.to_thread(strip, patch, self.task, self.installed)
        except RefusedPatch as error:
            return Evaluation(resolved=False, reason=Verdict.PATCH_REFUSED, detail=str(error))
        marks: list[str] = []
        try:
            run = await try_patch(
                self.task,
                stripped,
                image=self.image,
                tests=self.tests.folder,
                backend=self.backend,
                timeout_s=limit_s,
            )
        except DoesNotApply as error:
            verdict = Evaluation(resolved=False, reason=Verdict.PATCH_REFUSED, detail=str(error))
        except TrialEnded as error:
            verdict = _ended(error.result, "applying the patch")
        else:
            verdict = await asyncio.to_thread(lambda: _judge(self.task, self.tests.judged_run(run)))
            if verdict.resolved and self.tests.seal.is_weak:
                assert self.image.tree is not None
                marks = await asyncio.to_thread(look, self.image.tree, stripped, self.task.gold_patch)
                if marks and self.strict and self.tests.seal.problem:
                    detail = _suspicion(marks)
                    verdict = replace(verdict, resolved=False, reason=Verdict.SUSPICIOUS, detail=detail)
        return replace(
            verdict,
            stripped=stripped.removed,
            num_left_out=len(stripped.left_out),
            suspicious=tuple(marks),
            hidden_bits=self.tests.seal.hidden_bits,
            weak=self.tests.seal.is_weak,
        )


def _suspicion(marks: Sequence[str]) -> str:
    path, _, mark = marks[0].partition(": ")
    return f"the patch uses {mark} ({path}), and the tests of this task cannot be sealed"


def _ended(result: ExecResult, what: str) -> Evaluation:
    """The verdict where a command of the evaluation did not end by itself."""
    if result.reason is ExecEnd.INFRASTRUCTURE:
        reason, detail = Verdict.INFRASTRUCTURE, f"{what}: {result.output.strip()[-500:]}"
    else:
        reason = Verdict.EXHAUSTED
        detail = f"{what} ran out {_RAN_OUT[result.reason]} after {result.elapsed_s:.0f} s"
    tail = result.output[-2000:]
    return Evaluation(resolved=False, reason=reason, detail=detail, output_tail=tail, run_s=result.elapsed_s)


def _judge(task: Task, run: TestRun) -> Evaluation:
    """The verdict on a run: every test that decides must have come out as the task says."""
    tail = run.result.output[-2000:]
    if run.result.reason is not ExecEnd.EXIT:
        return _ended(run.result, "the tests")
    if run.report is None or run.distrusted is not None:
        assert run.distrusted is not None
        errors = run.report.collect_errors if run.report is not None and run.is_uncollected else {}
        return Evaluation(
            resolved=False,
            reason=Verdict.TESTS_FAILED if errors else Verdict.TAMPERED,
            detail=f"no test can be collected: {first_error(errors)}" if errors else run.distrusted,
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
    reason = Verdict.TESTS_FAILED if wrong or not wanted else Verdict.RESOLVED
    detail = f"{len(wanted) - len(wrong)} of {len(wanted)} tests came out as they must"
    if wrong:
        detail += f"; {outcomes[wrong[0]].value}: {wrong[0]}"
        if outcomes[wrong[0]] is Outcome.MISSING:
            detail += f" ({_why_missing(wrong[0], task, run.report)})"
    if run.report.collect_errors:
        detail += f"; cannot be collected: {first_error(run.report.collect_errors)}"
    return Evaluation(
        resolved=reason is Verdict.RESOLVED,
        reason=reason,
        detail=detail,
        outcomes=outcomes,
        output_tail=tail,
        run_s=run.result.elapsed_s,
    )


def _why_missing(test: str, task: Task, report: Report) -> str:
    """Why no outcome of the listed `test` was reported."""
    path = test.split("::")[0]
    is_run = any(path == planned or path.startswith(f"{planned}/") for planned in task.tests.paths)
    if "::" in test and not is_run and "." not in task.tests.paths:
        return (
            f"{path} is not run, only {', '.join(task.tests.paths[:3])}: `tests.paths` in `envsdk` names more"
        )
    if path in report.collect_errors:
        return "its file cannot be collected"
    if test in task.tests.deselected:
        return "it is left out by `tests.deselected`"
    near = get_close_matches(test, report.outcomes, n=1, cutoff=0.8)
    return f"no test of this name ran; there is {near[0]}" if near else "no test of this name ran"


def _by_short_name(report: Report) -> dict[str, Outcome]:
    """Outcomes by `Class.test`, as R2E-Gym names tests; of several of one name, one that did not pass."""
    found: dict[str, Outcome] = {}
    for test, outcome in report.outcomes.items():
        name = ".".join(test.split("::")[1:])
        if found.get(name, Outcome.PASSED) is Outcome.PASSED:
            found[name] = outcome
    return found
