from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.config.prices import Prices, TokenPrices
from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import Outcome
from envsdk.tracking.spans import episode_spans, is_sampled
from tests.envsdk.tracking.episodes import episode


def test_an_episode_becomes_spans_of_the_agent_its_turns_requests_and_tools() -> None:
    spans = episode_spans(episode(), step=5, model="tiny")
    assert [(span.name, span.parent) for span in spans] == [
        ("invoke_agent Lake", None),
        ("turn 1", 0),
        ("chat tiny", 1),
        ("execute_tool search", 1),
        ("turn 2", 0),
        ("chat tiny", 4),
        ("env.step", 4),
    ]
    agent, _, chat, tool, *_ = spans
    assert agent.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert agent.attributes["gen_ai.usage.input_tokens"] == 30
    assert agent.attributes["gen_ai.usage.output_tokens"] == 9
    assert agent.attributes["envsdk.step"] == 5
    assert agent.evaluation is not None
    assert agent.evaluation["gen_ai.evaluation.score.value"] == 1.0
    assert agent.evaluation["gen_ai.evaluation.score.label"] == "pass"
    assert chat.attributes["gen_ai.usage.input_tokens"] == 10
    assert chat.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert tool.attributes["gen_ai.tool.name"] == "search"


def test_turns_have_their_own_times() -> None:
    spans = episode_spans(episode(), step=0, model="tiny")
    times = [(span.start_s, span.end_s) for span in spans]
    # 0.25 s of the environment's second went into its reset.
    assert times[1:4] == [(1000.25, 1002.75), (1000.25, 1002.25), (1002.25, 1002.75)]
    assert times[4] == (1002.75, 1004.0)
    assert "envsdk.times_are_estimates" not in spans[0].attributes


def test_times_that_were_not_recorded_are_estimated_and_called_so() -> None:
    of_file = episode()
    of_file = replace(of_file, turns=[replace(turn, generate_s=0.0, env_s=0.0) for turn in of_file.turns])
    spans = episode_spans(of_file, step=0, model="tiny")
    assert spans[0].attributes["envsdk.times_are_estimates"] is True
    assert (spans[1].start_s, spans[4].end_s) == (1000.0, 1004.0)


def test_texts_are_left_out_unless_asked_for() -> None:
    def texts(content: bool) -> str:
        return str([span.attributes for span in episode_spans(episode(), step=0, model="m", content=content)])

    assert "the lake" not in texts(False)
    assert "ice" not in texts(False)
    assert "the lake" in texts(True)
    assert "ice" in texts(True)


def test_a_failed_episode_is_an_error_without_a_reward() -> None:
    failure = Failure(boundary=Boundary.ENVIRONMENT, kind="timeout", message="too slow")
    failed = episode(outcome=Outcome.FAILED, success=False, failure=failure, turns=[], tokens=None)
    (span,) = episode_spans(failed, step=0, model="tiny")
    assert span.error == span.attributes["error.type"] == "environment/timeout"
    assert span.evaluation is None


def test_prices_put_money_on_spans() -> None:
    prices = Prices(policy=TokenPrices(input=1.0, output=10.0), currency="EUR")
    agent, _, chat, *_ = episode_spans(episode(), step=0, model="tiny", prices=prices)
    assert agent.attributes["envsdk.cost"] == pytest.approx((30 * 1.0 + 9 * 10.0) / 1e6)
    assert chat.attributes["envsdk.cost"] == pytest.approx((10 * 1.0 + 4 * 10.0) / 1e6)
    assert agent.attributes["envsdk.currency"] == "EUR"


@given(number=st.integers(0, 10**6), share=st.floats(0, 1), more=st.floats(0, 1))
def test_a_larger_share_holds_the_smaller_one(number: int, share: float, more: float) -> None:
    smaller, larger = sorted((share, more))
    trajectory_id = f"train-{number}"
    assert is_sampled(trajectory_id, smaller) <= is_sampled(trajectory_id, larger)
    assert is_sampled(trajectory_id, 1.0)
    assert not is_sampled(trajectory_id, 0.0)


def test_a_share_is_about_that_share() -> None:
    assert 200 < sum(is_sampled(f"train-{number}", 0.25) for number in range(1000)) < 300
