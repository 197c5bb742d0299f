"""Checks of the keys that choose the best checkpoint, stop a run early, and average weights."""

from __future__ import annotations

from collections.abc import Iterator

from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import Problem
from envsdk.config.models import RunConfig

_AVERAGE = ("actor_train", "training_args", "ema_decay")
_FOUND_BY_PLAYING = ("val/env/", "val/calls/", "val/players/", "val/num_turns_mean")
"""Metrics whose names the first evaluation shows."""


def selection_problems(config: RunConfig) -> Iterator[Problem]:
    """Problems of selection by a held-out metric."""
    metric, patience = config.metric_for_best_model, config.early_stopping_patience
    tags = ["mean", *config.val_env_manager.tags]
    known = [f"val/{name}/{tag}" for name in ("success", "reward") for tag in tags]
    if metric is not None and metric not in known and not metric.startswith(_FOUND_BY_PLAYING):
        hint = suggest(metric, known, known="metrics of evaluations")
        yield Problem(("metric_for_best_model",), f"no evaluation of this run has `{metric}`; {hint}")
    required = {
        "metric_for_best_model": metric,
        "eval_steps above 0": config.eval_steps,
        "val_batch_size above 0": config.val_batch_size,
    }
    if patience is not None and not all(required.values()):
        needed = next(name for name, value in required.items() if not value)
        yield Problem(("early_stopping_patience",), f"it needs {needed}; set that, or leave this out")
    if not config.evaluates_average:
        return
    if config.mode == "train":
        yield Problem(_AVERAGE, "mode: train publishes the weights themselves to `bench`; leave it out")
    if config.validation_overlaps:
        yield Problem(_AVERAGE, "training would play the averaged weights too; take `validation: pause`")
    if config.actor_train.strategy_args.strategy_name == "megatron_train":
        yield Problem(_AVERAGE, "`megatron_train` keeps no average; take `torch` or `fsdp2_train`")
