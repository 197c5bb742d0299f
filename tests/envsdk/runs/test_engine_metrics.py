from __future__ import annotations

import pytest

from envsdk.engines.engine import EngineHealth
from envsdk.runs.step_log import EngineMetrics


def look(num_tokens: int, *, num_queued: int = 0, kv_usage: float = 0.0) -> EngineHealth:
    return EngineHealth(
        version=0,
        num_running=0,
        num_queued=num_queued,
        num_tokens_sampled=num_tokens,
        num_prompt_tokens=2 * num_tokens,
        num_prefilled_tokens=num_tokens,
        kv_usage=kv_usage,
    )


def test_each_engine_has_its_queue_its_cache_and_from_the_second_look_on_its_speed() -> None:
    metrics = EngineMetrics()
    first = metrics.step({"a": look(100, num_queued=2, kv_usage=0.5), "b": look(50, kv_usage=0.25)}, 10.0)
    assert first == {
        "engine/tokens_sampled": 150.0,
        "engine/prompt_tokens": 300.0,
        "engine/prefilled_tokens": 150.0,
        "engine/queued": 2.0,
        "engine/kv_usage": 0.5,
        "engine/a/queued": 2.0,
        "engine/a/kv_usage": 0.5,
        "engine/b/queued": 0.0,
        "engine/b/kv_usage": 0.25,
    }
    second = metrics.step({"a": look(400), "b": look(50)}, 12.0)
    assert second["engine/a/tokens_per_s"] == pytest.approx(150.0)
    assert second["engine/b/tokens_per_s"] == 0.0


def test_the_speed_of_a_restarted_engine_counts_from_its_start() -> None:
    metrics = EngineMetrics()
    metrics.step({"a": look(1000)}, 0.0)
    assert metrics.step({"a": look(30)}, 10.0)["engine/a/tokens_per_s"] == pytest.approx(3.0)


def test_an_engine_that_was_away_has_no_speed_until_it_has_been_seen_twice() -> None:
    metrics = EngineMetrics()
    metrics.step({"a": look(10)}, 0.0)
    assert metrics.step({}, 1.0)["engine/kv_usage"] == 0.0
    assert "engine/a/tokens_per_s" not in metrics.step({"a": look(20)}, 2.0)
