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
    evaluates = config.mode == "both" and config.val_batch_size > 0
    metric, patience = config.metric_for_best_model, config.early_stopping_patience
    if metric is not None:
        yield from _metric_problems(config, metric)
        if not evaluates:
            why = "val_batch_size is 0" if config.mode == "both" else f"mode: {config.mode}"
            yield Problem(
                ("metric_for_best_model",), f"this program makes no evaluations ({why}); leave it out"
            )
    if patience is not None and (metric is None or not config.eval_steps):
        needed = "metric_for_best_model" if metric is None else "eval_steps above 0"
        yield Problem(
            ("early_stopping_patience",), f"it needs {needed}, which says what must improve and when"
        )
    if not config.evaluates_average:
        return
    if config.mode != "both":
        yield Problem(_AVERAGE, f"mode: {config.mode} has no evaluations that could play it; leave it out")
    if config.validation_overlaps:
        yield Problem(_AVERAGE, "training would play the averaged weights too; take `validation: pause`")
    if config.actor_train.strategy_args.strategy_name == "megatron_train":
        yield Problem(_AVERAGE, "`megatron_train` keeps no average; take `torch` or `fsdp2_train`")


def _metric_problems(config: RunConfig, metric: str) -> Iterator[Problem]:
    tags = ["mean", *config.val_env_manager.groups_per_tag]
    known = [f"val/{name}/{tag}" for name in ("success", "reward") for tag in tags]
    if metric not in known and not metric.startswith(_FOUND_BY_PLAYING):
        hint = suggest(metric, known, known="metrics of evaluations")
        yield Problem(("metric_for_best_model",), f"no evaluation of this run has `{metric}`; {hint}")
