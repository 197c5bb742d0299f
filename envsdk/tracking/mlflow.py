"""MLflow, by its own client."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from envsdk.base.settings.validation import validated
from envsdk.tracking.run_record import flat, keep_run, known_run, name_of, settings_of
from envsdk.tracking.settings import MlflowSettings
from envsdk.tracking.tracker import Ending, Tracker

NAME = "mlflow"
_STATUS = {Ending.FINISHED: "FINISHED", Ending.STOPPED: "KILLED", Ending.FAILED: "FAILED"}
_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM = 1000, 100, 500
_FORBIDDEN = re.compile(r"[^\w\-. /:]")


class MlflowTracker(Tracker):
    """One MLflow run per run, continued by its id.

    Its metrics cannot be deleted: a step that is played again has two values, the later one with the later
    time.
    """

    needs = ("mlflow",)
    in_background = True

    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._ending: Ending | None = None
        self._closed = False

    @classmethod
    def create(cls, run_dir: Path, config: Mapping[str, Any]) -> Self:
        from mlflow import MlflowClient

        settings = validated(MlflowSettings, config, f"tracker_args.{NAME}", owner=NAME)
        uri = settings.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        client = MlflowClient(tracking_uri=uri or f"sqlite:///{run_dir.resolve().parent / 'mlflow.db'}")
        run_id = known_run(run_dir, NAME)
        if run_id is None or not _is_there(client, run_id):
            run_id = _new_run(client, run_dir, settings)
            keep_run(run_dir, NAME, run_id)
        client.update_run(run_id, status="RUNNING")
        return cls(client, run_id)

    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        from mlflow.entities import Metric

        values = [
            Metric(_FORBIDDEN.sub("_", name), float(value), round(time_unix_s * 1000), step)
            for name, value in metrics.items()
        ]
        for start in range(0, len(values), _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=values[start : start + _MOST_METRICS])

    def rewind(self, step: int) -> None:
        """MLflow keeps the steps after `step`; the tag `envsdk.rewound_to` says where the run went on."""
        if step >= 0:
            self._client.set_tag(self._run_id, "envsdk.rewound_to", str(step))

    def end(self, ending: Ending, message: str = "") -> None:
        self._ending = ending
        self._client.set_tag(
            self._run_id, "envsdk.ending", f"{ending}: {message}" if message else str(ending)
        )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._ending is not None:
                self._client.set_terminated(self._run_id, status=_STATUS[self._ending])


def _new_run(client: Any, run_dir: Path, settings: MlflowSettings) -> str:
    from mlflow.entities import Param

    experiment = client.get_experiment_by_name(settings.project)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(settings.project)
    tags = dict.fromkeys(settings.tags, "") | (
        {"mlflow.note.content": settings.notes} if settings.notes else {}
    )
    run = client.create_run(experiment_id, run_name=name_of(run_dir), tags=tags)
    params = [
        Param(_FORBIDDEN.sub("_", name)[:250], str(value)[:_LONGEST_PARAM])
        for name, value in flat(settings_of(run_dir))
    ]
    for start in range(0, len(params), _MOST_PARAMS):
        client.log_batch(run.info.run_id, params=params[start : start + _MOST_PARAMS])
    return str(run.info.run_id)


def _is_there(client: Any, run_id: str) -> bool:
    """Whether the server knows the run; another server than before does not."""
    from mlflow.exceptions import MlflowException

    try:
        client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    return True
