"""OpenTelemetry: the episodes of every batch as spans (`spans.py`), by its own SDK and exporters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsdk.base.settings.validation import validated
from envsdk.base.store.appendfile import AppendFile
from envsdk.config.prices import Prices
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Trajectory
from envsdk.tracking.run_record import name_of, settings_of
from envsdk.tracking.settings import OtelSettings
from envsdk.tracking.spans import CONVENTIONS, episode_spans, is_sampled
from envsdk.tracking.tracker import Tracker

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

NAME = "otel"
FILE_NAME = "traces.jsonl"


class OtelTracker(Tracker):
    """One trace per episode. Metrics of steps are left to other trackers.

    What was exported stays: episodes of steps that are played again are exported again, with the same
    `envsdk.step`.
    """

    needs = ("opentelemetry.sdk", "opentelemetry.exporter")
    in_background = True

    def __init__(
        self,
        exporter: SpanExporter,
        settings: OtelSettings,
        *,
        run: str,
        model: str,
        prices: Prices | None = None,
    ) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        ended: list[ReadableSpan] = []

        class Collector(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                ended.append(span)

        resource = Resource.create({"service.name": settings.service_name, "envsdk.run": run})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(Collector())
        self._tracer = self._provider.get_tracer("envsdk", attributes={"envsdk.conventions": CONVENTIONS})
        self._ended = ended
        self._exporter = exporter
        self._settings = settings
        self._model = model
        self._prices = prices

    @classmethod
    def create(cls, run_dir: Path, config: Mapping[str, Any]) -> OtelTracker:
        settings = validated(OtelSettings, config, f"tracker_args.{NAME}", owner=NAME)
        if settings.endpoint is not None and settings.exporter != "otlp":
            raise ConfigurationError(
                f"tracker_args.otel: endpoint is for exporter: otlp, not {settings.exporter}; "
                "name that exporter, or leave endpoint out"
            )
        run = settings_of(run_dir)
        return cls(
            _exporter(run_dir, settings),
            settings,
            run=name_of(run_dir),
            model=Path(str(run.get("pretrain", "policy"))).name,
            prices=Prices.model_validate(run["prices"]) if run.get("prices") else None,
        )

    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        """Metrics are not exported."""

    def log_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        for trajectory in trajectories:
            if is_sampled(trajectory.trajectory_id, self._settings.share):
                self._trace(step, trajectory)
        spans, size = self._ended.copy(), self._settings.spans_per_request
        self._ended.clear()
        for start in range(0, len(spans), size):
            if self._exporter.export(spans[start : start + size]) is not SpanExportResult.SUCCESS:
                raise ConnectionError("its exporter could not send spans; its own message says why")

    def rewind(self, step: int) -> None:
        """What was exported stays."""

    def close(self) -> None:
        self._exporter.shutdown()

    def _trace(self, step: int, trajectory: Trajectory) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        made = episode_spans(
            trajectory, step=step, model=self._model, prices=self._prices, content=self._settings.content
        )
        begun: list[Any] = []
        for each in made:
            span = self._tracer.start_span(
                each.name,
                context=Context()
                if each.parent is None
                else set_span_in_context(begun[each.parent], Context()),
                kind=SpanKind.CLIENT if each.is_client else SpanKind.INTERNAL,
                attributes=each.attributes,
                start_time=_nanoseconds(each.start_s),
            )
            if each.evaluation is not None:
                span.add_event("gen_ai.evaluation.result", each.evaluation, _nanoseconds(each.end_s))
            if each.error is not None:
                span.set_status(Status(StatusCode.ERROR, each.error))
            begun.append(span)
        for span, each in zip(reversed(begun), reversed(made), strict=True):
            span.end(_nanoseconds(each.end_s))


def _exporter(run_dir: Path, settings: OtelSettings) -> SpanExporter:
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    if settings.exporter == "console":
        return ConsoleSpanExporter(formatter=lambda span: str(span.to_json(indent=None)) + "\n")
    if settings.exporter == "file":
        return _file_exporter(run_dir / FILE_NAME)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=settings.endpoint)


def _file_exporter(path: Path) -> SpanExporter:
    """Writes one request of OTLP per line, as JSON: what the collector's `otlpjsonfile` receiver reads."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class FileExporter(SpanExporter):
        def __init__(self) -> None:
            self._file = AppendFile(path)

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            request = encode_spans(spans)
            content = MessageToDict(request, use_integers_for_enums=True)
            for resource, written in zip(request.resource_spans, content["resourceSpans"], strict=True):
                for scope, scope_written in zip(resource.scope_spans, written["scopeSpans"], strict=True):
                    for span, span_written in zip(scope.spans, scope_written["spans"], strict=True):
                        # OTLP's JSON writes ids in hexadecimal, where protobuf's own has base64.
                        span_written["traceId"], span_written["spanId"] = (
                            span.trace_id.hex(),
                            span.span_id.hex(),
                        )
                        if span.parent_span_id:
                            span_written["parentSpanId"] = span.parent_span_id.hex()
            self._file.append(json.dumps(content, ensure_ascii=False).encode() + b"\n")
            return SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            self._file.close()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return True

    return FileExporter()


def _nanoseconds(time_s: float) -> int:
    return round(time_s * 1e9)
