"""What `python -m envsdk.envs.swe.grade` does: patches in parallel, each verdict on disk once it is there.

OUT/report.json             all of them, as SWE-bench writes it
OUT/INSTANCE/report.json    one, as SWE-bench writes it
OUT/INSTANCE/verdict.json   the same with the reason, and the key by which the next run knows it
OUT/INSTANCE/patch.diff, test_output.txt
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsdk.base.display.console import TerminalConsole
from envsdk.base.display.terminal import say
from envsdk.base.store.atomic import make_folder, write_atomically, write_json_atomically
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.evaluator import Evaluation, Verdict, evaluate, validate
from envsdk.envs.swe.evaluator.validation import VERSION
from envsdk.envs.swe.export import file_name
from envsdk.envs.swe.grade.predictions import Prediction, read_predictions
from envsdk.envs.swe.tasks.loaders import load_tasks
from envsdk.envs.swe.tasks.shipped import shipped_tasks
from envsdk.envs.swe.tasks.task import Outcome, Task
from envsdk.rewards.sandbox import SandboxBackend, SandboxError, open_backend

if TYPE_CHECKING:
    from envsdk.envs.swe.grade.__main__ import GradeOptions

SHIPPED = "shipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """The result for one patch."""

    prediction: Prediction
    resolved: bool | None
    """None: it could not be graded."""
    told: str
    """One line for a person."""


async def run(arguments: GradeOptions) -> bool:
    """Grade everything and write the reports; whether all patches could be graded."""
    tasks = _tasks(arguments)
    wanted = arguments.instance_ids or tuple(tasks)
    one = wanted[0] if len(wanted) == 1 else None
    predictions = [
        prediction
        for prediction in read_predictions(arguments.source, tasks, instance_id=one)
        if prediction.instance_id in wanted
    ]
    tasks = {name: tasks[name] for name in wanted}
    make_folder(arguments.out)
    workers = arguments.workers or os.cpu_count() or 1
    backend = open_backend(arguments.backend, {"commands_at_once": workers})
    graded: list[Graded] = []
    with TerminalConsole(file=sys.stderr).status(f"0 of {len(predictions)} graded") as status:

        def show(done: Graded) -> None:
            graded.append(done)
            say(f"{done.prediction.instance_id}: {done.told}", flush=True)
            resolved = sum(other.resolved or False for other in graded)
            status.update(f"{len(graded)} of {len(predictions)} graded, {resolved} resolved")

        try:
            await backend.probe()
            slots = asyncio.Semaphore(workers)
            await asyncio.gather(
                *(
                    _one(tasks[prediction.instance_id], prediction, backend, arguments, slots, show)
                    for prediction in predictions
                )
            )
        finally:
            await backend.aclose()
            resolved = {
                done.prediction.instance_id: done.resolved for done in graded if done.resolved is not None
            }
            report = run_report(tasks, predictions, resolved)
            write_json_atomically(arguments.out / "report.json", report)
    say(_summary(report, arguments.out))
    return not report["error_ids"]


def _tasks(arguments: GradeOptions) -> dict[str, Task]:
    path = Path(arguments.tasks)
    if arguments.tasks == SHIPPED and not path.exists():
        loaded: Sequence[Task] = shipped_tasks()
    else:
        loaded = load_tasks(path, repositories=arguments.repositories)
    tasks = {task.instance_id: task for task in loaded}
    if unknown := [name for name in arguments.instance_ids if name not in tasks]:
        raise ConfigurationError(f"--instance-id: {arguments.tasks} has no {', '.join(unknown[:5])}")
    if not tasks:
        raise ConfigurationError(f"{arguments.tasks}: there is no task in it")
    return tasks


async def _one(
    task: Task,
    prediction: Prediction,
    backend: SandboxBackend,
    arguments: GradeOptions,
    slots: asyncio.Semaphore,
    show: Any,
) -> None:
    folder = arguments.out / file_name(task.instance_id)
    key = _key(task, prediction)
    kept = await asyncio.to_thread(_kept, folder, key)
    if kept is not None:
        show(Graded(prediction=prediction, resolved=kept["resolved"], told=f"{kept['told']} (kept)"))
        return
    async with slots:
        validates = arguments.validates and arguments.tasks != SHIPPED
        verdict, problem = await _verdict(task, prediction, backend, validates=validates)
    if problem:
        show(Graded(prediction=prediction, resolved=None, told=f"not graded: {problem}"))
        return
    told = f"{verdict.reason.value}: {verdict.detail}" if verdict else "the patch is empty"
    await asyncio.to_thread(_keep, folder, key, task, prediction, verdict, told)
    show(Graded(prediction=prediction, resolved=verdict is not None and verdict.resolved, told=told))


async def _verdict(
    task: Task, prediction: Prediction, backend: SandboxBackend, *, validates: bool
) -> tuple[Evaluation | None, str]:
    """The verdict, None on an empty patch; and why there is none where task or machine is to blame."""
    if not (prediction.patch or "").strip():
        return None, ""
    try:
        if validates:
            (validation,) = await validate([task], backend)
            if not validation.sound:
                return None, f"the task is unsound: {validation.problem}"
        verdict = await evaluate(task, prediction.patch or "", backend)
    except (ConfigurationError, SandboxError) as error:
        return None, str(error)
    return (None, f"the evaluation failed: {verdict.detail}") if verdict.infrastructure else (verdict, "")


def _key(task: Task, prediction: Prediction) -> str:
    """A digest of everything that a verdict hangs on."""
    patch = prediction.patch if prediction.patch is not None else "\0none"
    text = f"{VERSION} {task.content_hash()} {patch}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _kept(folder: Path, key: str) -> Mapping[str, Any] | None:
    """The verdict of an earlier run on the same patch, unless that was cut off."""
    file = folder / "verdict.json"
    if not file.is_file():
        return None
    verdict: Mapping[str, Any] = json.loads(file.read_text())
    return verdict if verdict["key"] == key else None


def _keep(
    folder: Path,
    key: str,
    task: Task,
    prediction: Prediction,
    verdict: Evaluation | None,
    told: str,
) -> None:
    make_folder(folder)
    write_atomically(folder / "patch.diff", (prediction.patch or "").encode("utf-8", "surrogatepass"))
    if verdict is not None:
        write_atomically(folder / "test_output.txt", verdict.output_tail.encode(errors="replace"))
    write_json_atomically(folder / "report.json", instance_report(task, prediction, verdict))
    # Last, so that an instance with a verdict has all files.
    write_json_atomically(
        folder / "verdict.json",
        {
            "key": key,
            "instance_id": task.instance_id,
            "model_name_or_path": prediction.model,
            "resolved": verdict is not None and verdict.resolved,
            "told": told,
            "reason": verdict.reason.value if verdict else Verdict.TESTS_FAILED.value,
            "stripped": list(verdict.stripped) if verdict else [],
            "num_left_out": verdict.num_left_out if verdict else 0,
            "hidden_bits": verdict.hidden_bits if verdict else 0.0,
            "weak": verdict is not None and verdict.weak,
            "elapsed_s": verdict.elapsed_s if verdict else 0.0,
        },
    )


def _summary(report: Mapping[str, Any], out: Path) -> str:
    said = (
        f"{report['resolved_instances']} of {report['submitted_instances']} patches resolve their task; "
        f"{report['unresolved_instances']} do not, {report['empty_patch_instances']} are empty, "
        f"{report['error_instances']} could not be graded"
    )
    return f"{said}\n{out / 'report.json'}"


def instance_report(task: Task, prediction: Prediction, verdict: Evaluation | None) -> dict[str, Any]:
    """What SWE-bench writes as an instance's `report.json`. No verdict: there was no patch to grade."""
    report: dict[str, Any] = {
        "patch_is_None": prediction.patch is None,
        "patch_exists": prediction.patch is not None,
        "patch_successfully_applied": verdict is not None and verdict.reason is not Verdict.PATCH_REFUSED,
        "resolved": verdict is not None and verdict.resolved,
    }
    if verdict is not None and verdict.outcomes:
        report["tests_status"] = _tests_status(task, verdict.outcomes)
    return {task.instance_id: report}


def _tests_status(task: Task, outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, list[str]]]:
    """Tests by how they came out; those of a task with an outcome per test are under PASS_TO_PASS."""
    lists: dict[str, Mapping[str, Outcome]] = {
        "FAIL_TO_PASS": dict.fromkeys(task.fail_to_pass, Outcome.PASSED),
        "PASS_TO_PASS": task.expected or dict.fromkeys(task.pass_to_pass, Outcome.PASSED),
        "FAIL_TO_FAIL": {},
        "PASS_TO_FAIL": {},
    }
    return {
        name: {
            "success": [test for test, wanted in tests.items() if outcomes.get(test) is wanted],
            "failure": [test for test, wanted in tests.items() if outcomes.get(test) is not wanted],
        }
        for name, tests in lists.items()
    }


def run_report(
    instance_ids: Iterable[str], predictions: Collection[Prediction], resolved: Mapping[str, bool]
) -> dict[str, Any]:
    """What SWE-bench writes at the end of an evaluation.

    Args:
        instance_ids: All tasks.
        resolved: Whether a patch solved its task, by instance, for those that were graded.
    """
    submitted = {prediction.instance_id for prediction in predictions}
    empty = {prediction.instance_id for prediction in predictions if not (prediction.patch or "").strip()}
    everything = set(instance_ids)
    lists = {
        "completed": resolved.keys() - empty,
        "incomplete": everything - submitted,
        "empty_patch": empty,
        "submitted": submitted,
        "resolved": {name for name, is_resolved in resolved.items() if is_resolved},
        "unresolved": {name for name, is_resolved in resolved.items() if not is_resolved} - empty,
        "error": submitted - empty - resolved.keys(),
    }
    counted = ("submitted", "completed", "resolved", "unresolved", "empty_patch", "error")
    return {
        "total_instances": len(everything),
        **{f"{name}_instances": len(lists[name]) for name in counted},
        **{f"{name}_ids": sorted(ids) for name, ids in lists.items()},
        "schema_version": 2,
    }
