"""Weights & Biases, by its own package."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError
from envsdk.tracking.run_record import keep_run, known_run, name_of, settings_of
from envsdk.tracking.settings import WandbSettings
from envsdk.tracking.tracker import Ending, Tracker

NAME = "wandb"
_INIT_TIMEOUT_S = 25


class WandbTracker(Tracker):
    """One W&B run per run, continued by its id.

    History there only grows: steps that are played again appear a second time, at the same `step`, which is
    the axis of every chart.
    """

    needs = ("wandb",)
    in_background = True

    def __init__(self, run: Any) -> None:
        self._run = run
        self._exit_code = 0
        self._closed = False

    @classmethod
    def create(cls, run_dir: Path, config: Mapping[str, Any]) -> Self:
        import wandb

        settings = validated(WandbSettings, config, f"tracker_args.{NAME}", owner=NAME)
        run_id = known_run(run_dir, NAME) or uuid.uuid4().hex[:12]
        try:
            run = wandb.init(
                project=settings.project,
                entity=settings.entity,
                group=settings.group,
                tags=settings.tags,
                notes=settings.notes,
                name=name_of(run_dir),
                config=settings_of(run_dir),
                id=run_id,
                resume="allow",
                mode=settings.mode,
                dir=run_dir.resolve(),
                reinit="create_new",
                settings=wandb.Settings(
                    init_timeout=_INIT_TIMEOUT_S,
                    silent=True,
                    console="off",
                    disable_git=True,
                    save_code=False,
                ),
            )
        except (wandb.errors.UsageError, wandb.errors.AuthenticationError) as error:
            raise ConfigurationError(
                f"tracker wandb: {error} Set WANDB_API_KEY or run `wandb login`; `tracker_args.wandb.mode: "
                "offline` needs no key"
            ) from error
        keep_run(run_dir, NAME, run_id)
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return cls(run)

    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        self._run.log({**metrics, "step": step, "time_unix_s": time_unix_s})

    def rewind(self, step: int) -> None:
        """W&B keeps the steps after `step`; `rewound_to` of the summary says where the run went on."""
        if step >= 0:
            self._run.summary["rewound_to"] = step

    def end(self, ending: Ending, message: str = "") -> None:
        self._run.summary["ending"] = str(ending)
        if message:
            self._run.summary["ending_message"] = message
        self._exit_code = int(ending == Ending.FAILED)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._run.finish(exit_code=self._exit_code)
