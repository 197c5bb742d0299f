"""Trackio, by its own package: files of this machine, or a Space of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from envsdk.base.settings.validation import validated
from envsdk.tracking.run_record import keep_run, known_run, name_of, settings_of
from envsdk.tracking.settings import TrackioSettings
from envsdk.tracking.tracker import Ending, Tracker

NAME = "trackio"


class TrackioTracker(Tracker):
    """One trackio run per run, continued by its name. Steps that are played again appear a second time."""

    needs = ("trackio",)
    in_background = True

    def __init__(self, run: Any) -> None:
        self._run = run
        self._last_step = 0
        self._closed = False

    @classmethod
    def create(cls, run_dir: Path, config: Mapping[str, Any]) -> Self:
        import trackio

        settings = validated(TrackioSettings, config, f"tracker_args.{NAME}", owner=NAME)
        known = known_run(run_dir, NAME)
        about = {"tags": settings.tags, "notes": settings.notes}
        run = trackio.init(
            project=settings.project,
            name=known or name_of(run_dir),
            group=settings.group,
            space_id=settings.space_id,
            config=settings_of(run_dir) | {name: value for name, value in about.items() if value},
            resume="allow" if known else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        keep_run(run_dir, NAME, run.name)
        return cls(run)

    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        self._last_step = step
        self._run.log(dict(metrics), step=step)

    def rewind(self, step: int) -> None:
        """Trackio keeps the steps after `step`."""

    def end(self, ending: Ending, message: str = "") -> None:
        """Trackio's runs have no state: how they ended is the metric `ended/...`, and a failure an alert."""
        import trackio

        self._run.log({f"ended/{ending}": 1.0}, step=self._last_step)
        if ending == Ending.FAILED:
            self._run.alert(title="the run failed", text=message, level=trackio.AlertLevel.ERROR)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._run.finish()
