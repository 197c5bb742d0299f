"""Which published versions `mode: bench` evaluates. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """As in a single program: at the first step, every `eval_steps` steps, and at the last one."""

    eval_steps: int
    """0: only the first and the last version."""
    sync_interval: int
    """Steps per version: an evaluation that is due in between waits for the next version."""

    def is_due(self, step: int, *, after: int | None, is_last: bool) -> bool:
        """Whether the version of `step` is evaluated, where that of step `after` was the one before."""
        if after is None:
            return True
        if step <= after:
            return False
        return is_last or (self.eval_steps > 0 and step // self.eval_steps > after // self.eval_steps)

    def missed(self, step: int, *, after: int | None) -> list[int]:
        """Steps of versions that were due after `after`, and in whose place that of `step` is evaluated."""
        if not self.eval_steps:
            return []
        after = -1 if after is None else after
        every, interval = self.eval_steps, self.sync_interval
        marks = range((after // every + 1) * every, step, every)
        return sorted({due for mark in marks if (due := -(-mark // interval) * interval) < step})
