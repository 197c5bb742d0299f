"""`tracker_args`: the settings of each tracker. Keys of services come from the environment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from envsdk.base.settings.strict import StrictSettings

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class TrackerSettings(StrictSettings):
    """What every tracker of a service takes."""

    project: str = "envsdk"
    """The service's project, or experiment, that the run belongs to."""
    tags: list[str] = Field(default_factory=list)
    """Words to find the run by."""
    notes: str | None = None
    """A description."""


class WandbSettings(TrackerSettings):
    """`tracker_args.wandb`."""

    entity: str | None = None
    """Team or user; the key's own when absent."""
    group: str | None = None
    """Runs that are shown together."""
    mode: Literal["online", "offline"] | None = None
    """`offline` writes files that `wandb sync` sends later; `WANDB_MODE`, or else `online`, when absent."""


class MlflowSettings(TrackerSettings):
    """`tracker_args.mlflow`; `project` is the experiment."""

    tracking_uri: str | None = None
    """Server, or `sqlite:///FILE`; `MLFLOW_TRACKING_URI`, or else `mlflow.db` beside the run's folder, when
    absent."""


class TrackioSettings(TrackerSettings):
    """`tracker_args.trackio`."""

    group: str | None = None
    """Runs that are shown together."""
    space_id: str | None = None
    """Space of Hugging Face to send to; the files stay on this machine when absent."""


class OtelSettings(StrictSettings):
    """`tracker_args.otel`."""

    exporter: Literal["file", "otlp", "console"] = "file"
    """`file`: OTLP's JSON in `traces.jsonl`; `otlp`: to a collector over HTTP; `console`: to
    standard output."""
    endpoint: str | None = None
    """URL that takes traces, such as `http://localhost:4318/v1/traces`; OTEL_EXPORTER_OTLP_ENDPOINT when
    absent. OTEL_EXPORTER_OTLP_HEADERS holds keys."""
    share: Share = 1.0
    """Share of the episodes that are exported, chosen by their ids."""
    content: bool = False
    """Whether texts of observations, replies and tool calls are exported."""
    spans_per_request: PositiveInt = 512
    """Spans that are sent at once."""
    service_name: str = "envsdk"
    """The resource's `service.name`."""
