from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from envsdk.contracts.failures import Boundary, ConfigurationError, Failure
from envsdk.contracts.trajectory import Outcome
from envsdk.tracking.otel import OtelTracker
from envsdk.tracking.settings import OtelSettings
from tests.envsdk.tracking.episodes import episode

FAILURE = Failure(boundary=Boundary.ENGINE, kind="lost", message="gone")


def tracker_into(exporter: SpanExporter, **settings: object) -> OtelTracker:
    return OtelTracker(exporter, OtelSettings.model_validate(settings), run="lake", model="tiny")


def test_an_episode_is_one_trace_with_its_times_and_its_reward() -> None:
    exporter = InMemorySpanExporter()
    tracker = tracker_into(exporter, spans_per_request=3)
    tracker.log_episodes(2, [episode(), episode(1)])
    spans = exporter.get_finished_spans()
    assert len(spans) == 14
    assert len({span.context.trace_id for span in spans if span.context}) == 2
    agent = next(span for span in spans if span.name == "invoke_agent Lake")
    assert agent.parent is None
    assert (agent.start_time, agent.end_time) == (1_000_000_000_000, 1_004_000_000_000)
    assert agent.resource.attributes["envsdk.run"] == "lake"
    (event,) = agent.events
    assert event.name == "gen_ai.evaluation.result"
    turn = next(span for span in spans if span.name == "turn 1")
    assert turn.parent is not None
    assert agent.context is not None
    assert turn.parent.span_id == agent.context.span_id
    assert next(span for span in spans if span.name == "chat tiny").kind is SpanKind.CLIENT


def test_a_failed_episode_has_the_status_of_an_error() -> None:
    exporter = InMemorySpanExporter()
    failed = episode(outcome=Outcome.FAILED, success=False, failure=FAILURE, turns=[], tokens=None)
    tracker_into(exporter).log_episodes(0, [failed])
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR


def test_no_more_than_the_share_is_exported() -> None:
    exporter = InMemorySpanExporter()
    tracker_into(exporter, share=0.0).log_episodes(0, [episode(number) for number in range(20)])
    assert not exporter.get_finished_spans()


def test_an_exporter_that_fails_raises_for_the_group_to_disable_the_tracker() -> None:
    class Down(InMemorySpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.FAILURE

    with pytest.raises(ConnectionError):
        tracker_into(Down()).log_episodes(0, [episode()])


def test_the_file_is_otlp_json_with_hexadecimal_ids_and_a_resumed_run_appends(tmp_path: Path) -> None:
    for step in range(2):
        tracker = OtelTracker.create(tmp_path, {"service_name": "lake"})
        tracker.log_episodes(step, [episode(step)])
        tracker.close()
    lines = (tmp_path / "traces.jsonl").read_text().splitlines()
    assert len(lines) == 2
    (resource,) = json.loads(lines[0])["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    by_id = {span["spanId"]: span for span in scope["spans"]}
    assert all(len(span["traceId"]) == 32 and len(span["spanId"]) == 16 for span in scope["spans"])
    (agent,) = [span for span in scope["spans"] if "parentSpanId" not in span]
    assert agent["name"] == "invoke_agent Lake"
    assert {span["parentSpanId"] for span in scope["spans"] if "parentSpanId" in span} <= by_id.keys()


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    received: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
        server.shutdown()
        thread.join()


def test_a_collector_gets_the_spans_over_http(
    tmp_path: Path, collector: tuple[str, list[ExportTraceServiceRequest]]
) -> None:
    url, received = collector
    tracker = OtelTracker.create(tmp_path, {"exporter": "otlp", "endpoint": url})
    tracker.log_episodes(0, [episode()])
    tracker.close()
    (request,) = received
    names = [span.name for span in request.resource_spans[0].scope_spans[0].spans]
    assert "execute_tool search" in names


def test_an_endpoint_without_otlp_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="exporter: otlp"):
        OtelTracker.create(tmp_path, {"endpoint": "http://localhost"})
