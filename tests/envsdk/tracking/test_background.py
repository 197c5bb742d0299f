from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Trajectory
from envsdk.tracking import Ending, Tracker
from envsdk.tracking.group import MOST_BATCHES, MOST_CALLS, BackgroundTracker


class Service(Tracker):
    """A service that answers only while `answers` is set."""

    answers: ClassVar[threading.Event] = threading.Event()
    calls: ClassVar[list[Any]] = []
    error: ClassVar[Exception | None] = None
    refusal: ClassVar[Exception | None] = None

    @classmethod
    def create(cls, run_dir: Path, config: Mapping[str, Any]) -> Service:
        cls.answers.wait()
        if cls.refusal is not None:
            raise cls.refusal
        return cls()

    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(step)

    def log_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        self.calls.append(("episodes", step))

    def rewind(self, step: int) -> None:
        self.calls.append(("rewind", step))

    def end(self, ending: Ending, message: str = "") -> None:
        self.calls.append((ending, message))

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def service() -> type[Service]:
    class Own(Service):
        answers = threading.Event()
        calls: ClassVar[list[Any]] = []

    Own.answers.set()
    return Own


def opened(service: type[Service], *, patience_s: float = 30.0) -> BackgroundTracker:
    return BackgroundTracker(
        "service", service, Path(), {}, start_patience_s=patience_s, close_patience_s=30.0
    )


def test_calls_arrive_in_order_and_before_the_end(service: type[Service]) -> None:
    tracker = opened(service)
    tracker.rewind(4)
    tracker.log(5, {"a": 1.0}, time_unix_s=0.0)
    tracker.log_episodes(5, [])
    tracker.end(Ending.FAILED, "why")
    tracker.close()
    tracker.close()
    assert service.calls == [("rewind", 4), 5, ("episodes", 5), (Ending.FAILED, "why"), "close"]


def test_settings_that_the_service_refuses_end_the_start(service: type[Service]) -> None:
    service.refusal = ConfigurationError("no key")
    with pytest.raises(ConfigurationError, match="no key"):
        opened(service)


def the_warning(service: type[Service], caplog: pytest.LogCaptureFixture) -> str:
    """What is said, once, while three steps are logged."""
    tracker = opened(service)
    for step in range(3):
        tracker.log(step, {}, time_unix_s=0.0)
    tracker.close()
    (record,) = caplog.records
    return record.message


def test_a_service_that_cannot_be_reached_disables_its_tracker_with_one_warning(
    service: type[Service], caplog: pytest.LogCaptureFixture
) -> None:
    service.refusal = ConnectionError("no network")
    assert "no network" in the_warning(service, caplog)


def test_an_error_later_on_disables_it_too(service: type[Service], caplog: pytest.LogCaptureFixture) -> None:
    service.error = OSError(28, "No space left on device")
    assert "No space left" in the_warning(service, caplog)
    assert service.calls == []


def test_a_service_that_does_not_answer_blocks_nothing_and_what_waits_for_it_is_bounded(
    service: type[Service], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    service.answers.clear()
    tracker = opened(service, patience_s=0.0)
    for step in range(MOST_BATCHES + 3):
        tracker.log_episodes(step, [])
    for step in range(MOST_CALLS + 3):
        tracker.log(step, {}, time_unix_s=0.0)
    tracker.end(Ending.FINISHED)
    service.answers.set()
    tracker.close()
    assert sum(isinstance(call, tuple) and call[0] == "episodes" for call in service.calls) == MOST_BATCHES
    assert sum(isinstance(call, int) for call in service.calls) == MOST_CALLS - MOST_BATCHES
    assert service.calls[-2:] == [(Ending.FINISHED, ""), "close"]
    said = [record.message for record in caplog.records]
    assert sum("is too slow" in message for message in said) == 1
    assert "lost 10 calls" in said[-1]
