"""What an evaluation says, as plain data for `info`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from envsdk.envs.swe.tasks.task import Outcome, Task

if TYPE_CHECKING:
    from envsdk.envs.swe.evaluator import Evaluation


def describe(evaluation: Evaluation | None) -> str:
    """One line for a person."""
    if evaluation is None:
        return "Nothing was submitted."
    return f"{evaluation.reason.value}: {evaluation.detail}"


def counts(task: Task, evaluation: Evaluation | None) -> dict[str, Any]:
    """`reason`, `stripped` files, and for each list of tests how many passed: `{"passed": 2, "total": 3}`.

    `hidden_bits`, `weak` and `suspicious` say how far the verdict can be forged. The lists are `fail_to_pass`
    and `pass_to_pass`, or `expected` where the task has an outcome per test.
    """
    outcomes = {} if evaluation is None else evaluation.outcomes
    told: dict[str, Any] = {
        "reason": "not_submitted" if evaluation is None else evaluation.reason.value,
        "stripped": [] if evaluation is None else list(evaluation.stripped),
    }
    if evaluation is not None:
        told |= {"hidden_bits": evaluation.hidden_bits, "weak": evaluation.weak}
        if evaluation.suspicious:
            told["suspicious"] = list(evaluation.suspicious)
    if task.expected is not None:
        as_expected = sum(outcomes.get(name) is outcome for name, outcome in task.expected.items())
        return {**told, "expected": {"passed": as_expected, "total": len(task.expected)}}

    def passed(names: Iterable[str]) -> int:
        return sum(outcomes.get(name) is Outcome.PASSED for name in names)

    for name, tests in (("fail_to_pass", task.fail_to_pass), ("pass_to_pass", task.pass_to_pass)):
        told[name] = {"passed": passed(tests), "total": len(tests)}
    return told


def shares(told: dict[str, Any]) -> dict[str, float]:
    """The share of each list of `counts` that passed, 1 for an empty list; for `metrics`."""
    return {
        f"{name}_passed": told[name]["passed"] / total if (total := told[name]["total"]) else 1.0
        for name in ("fail_to_pass", "pass_to_pass", "expected")
        if name in told
    }
