"""TensorBoard event files, by TensorBoard's own writer: neither torch nor TensorFlow is needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.tracking.tracker import Tracker

FOLDER_NAME = "tensorboard"


class TensorBoardTracker(Tracker):
    """Scalars in `tensorboard/`; `tensorboard --logdir runs` shows all runs side by side."""

    needs = ("tensorboard",)

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ConfigurationError(
                f"tracker 'tensorboard' needs the package of that name ({error}): "
                "pip install 'envsdk[tensorboard]', or leave it out of `trackers`"
            ) from error
        self._event = event_pb2.Event
        self._session_log = event_pb2.SessionLog
        self._summary = summary_pb2.Summary
        self._started = any(folder.glob("events.out.tfevents.*"))
        try:
            self._writer = EventFileWriter(os.fspath(folder))
        except OSError as error:
            raise StorageError(f"cannot write {folder}: {error.strerror or error}") from error
        self._closed = False

    @classmethod
    def create(cls, run_dir: Path, config: Mapping[str, Any]) -> Self:
        if config:
            raise ConfigurationError(
                f"tracker 'tensorboard' takes no settings, but was given {', '.join(config)}"
            )
        return cls(run_dir / FOLDER_NAME)

    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        values = [self._summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
        self._writer.add_event(
            self._event(wall_time=time_unix_s, step=step, summary=self._summary(value=values))
        )
        self._writer.flush()

    def rewind(self, step: int) -> None:
        if not self._started:
            return
        # Event files are never rewritten: a session start at step s tells TensorBoard to drop what
        # older files hold from s on.
        start = self._session_log(status=self._session_log.START)
        self._writer.add_event(self._event(step=step + 1, session_log=start))
        self._writer.flush()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._writer.close()
