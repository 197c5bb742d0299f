from __future__ import annotations

from dataclasses import replace

import pytest

from envsdk.config.prices import Prices, TokenPrices
from envsdk.tracking.cost import CostMeter, Usage, usage_of
from tests.envsdk.tracking.episodes import episode


def test_usage_counts_each_requests_whole_prompt_and_the_environments_reset() -> None:
    used = usage_of([episode(), episode(1)])
    assert (used.input_tokens, used.output_tokens) == (60, 18)
    assert used.env_s == pytest.approx(2.0)
    assert used.sandbox_s == 72.0


def test_what_a_judge_used_is_counted() -> None:
    first = episode()
    metrics = {"judge_input_tokens": 100.0, "judge_output_tokens": 5.0, "judge_cost": 0.5}
    judged = replace(first, turns=[replace(first.turns[0], metrics=metrics)])
    used = usage_of([judged])
    assert (used.judge_input_tokens, used.judge_output_tokens, used.judge_cost) == (100, 5, 0.5)


def test_a_step_is_charged_for_tokens_machines_sandboxes_and_judges() -> None:
    prices = Prices(policy=TokenPrices(input=1.0, output=2.0), gpu_hour=3.0, cpu_hour=0.1, sandbox_hour=10.0)
    meter = CostMeter(prices, num_gpus=2, num_cpus=10, total=100.0)
    meter.add(Usage(input_tokens=1_000_000, output_tokens=500_000, sandbox_s=360.0, judge_cost=0.25))
    found = meter.step(3600.0)
    assert found["cost/policy"] == pytest.approx(2.0)
    assert found["cost/gpus"] == pytest.approx(6.0)
    assert found["cost/cpus"] == pytest.approx(1.0)
    assert found["cost/sandboxes"] == pytest.approx(1.0)
    assert found["cost/judges"] == 0.25
    assert found["cost/step"] == pytest.approx(10.25)
    assert found["cost/total"] == pytest.approx(110.25)
    assert meter.step(3600.0)["cost/total"] == pytest.approx(117.25)


def test_without_prices_what_was_used_is_reported_and_no_money() -> None:
    meter = CostMeter(None, num_gpus=0, num_cpus=2)
    meter.add(usage_of([episode()]))
    assert meter.step(1800.0) == {
        "cost/input_tokens": 30.0,
        "cost/output_tokens": 9.0,
        "cost/env_s": pytest.approx(1.0),
        "cost/sandbox_s": 36.0,
        "cost/gpu_hours": 0.0,
        "cost/cpu_hours": 1.0,
    }
