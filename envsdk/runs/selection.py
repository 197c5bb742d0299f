"""Which checkpoint of a run is its best, and whether the run has stopped improving. Pure.

Selection.of(config) -> (with_evaluation)* -> best_step, is_over
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from envsdk.config.models import RunConfig
from envsdk.contracts.failures import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The values of one held-out metric so far. Owner: the pipeline."""

    metric: str | None
    """Name of the metric; None: nothing is selected."""
    greater_is_better: bool = True
    patience: int | None = None
    """Evaluations in a row without a new best value that end the run; None: none do."""
    scores: Mapping[int, float] = field(default_factory=dict)
    """Value by the step that was evaluated."""

    @classmethod
    def of(cls, config: RunConfig, state: Mapping[str, Any] | None = None) -> Self:
        """As `config` asks, with the evaluations in `state` if they are of the same metric."""
        metric = config.metric_for_best_model
        stored = state["scores"] if state is not None and state["metric"] == metric else {}
        return cls(
            metric=metric,
            greater_is_better=config.greater_is_better,
            patience=config.early_stopping_patience,
            scores={int(step): float(value) for step, value in stored.items()},
        )

    def state(self) -> dict[str, Any] | None:
        """JSON-ready, for a checkpoint."""
        if self.metric is None:
            return None
        return {"metric": self.metric, "scores": {str(step): value for step, value in self.scores.items()}}

    def with_evaluation(self, step: int, metrics: Mapping[str, float]) -> Self:
        """After the evaluation of `step`; one that is made again counts once.

        ConfigurationError when it has no such metric.
        """
        if self.metric is None:
            return self
        if self.metric not in metrics:
            known = ", ".join(sorted(metrics))
            raise ConfigurationError(
                f"metric_for_best_model: no evaluation of this run has `{self.metric}`; it has {known}"
            )
        return replace(self, scores={**self.scores, step: metrics[self.metric]})

    @property
    def best_step(self) -> int | None:
        """The step with the best value, the earliest of equal ones; None before the first evaluation."""
        sign = 1 if self.greater_is_better else -1
        return max(sorted(self.scores), key=lambda step: sign * self.scores[step], default=None)

    @property
    def is_over(self) -> bool:
        """Whether the patience is used up."""
        best = self.best_step
        if self.patience is None or best is None:
            return False
        return sum(step > best for step in self.scores) >= self.patience
