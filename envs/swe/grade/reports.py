"""Reports in the form of SWE-bench's evaluation (its `schema_version` 2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from envsdk.envs.swe.evaluator import Evaluation, Verdict
from envsdk.envs.swe.grade.predictions import Prediction
from envsdk.envs.swe.tasks import Outcome, Task


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
