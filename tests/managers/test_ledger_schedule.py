"""The ledger's policy in virtual time: what asynchrony buys, and that it costs no staleness beyond alpha."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from envsdk.managers.ledger_types import Lease, LedgerConfig

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "ideal_schedule.py"


@pytest.fixture(scope="module")
def ideal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ideal_schedule", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def step_s(
    ideal: ModuleType, alpha: float, *, sigma: float = 0.86, slots: int = 256, **changes: object
) -> float:
    draw = ideal.lognormal_durations(mean_s=10.0, sigma=sigma, cap_over_median=20.0, seed=0)

    def duration_s(lease: Lease) -> float:
        return draw(lease.task.index, lease.member, lease.attempt)

    settings = {"batch_size": 256, "group_size": 8, "alpha": alpha, "tag_weights": {"a": 1}, **changes}
    result = ideal.simulate(LedgerConfig(**settings), slots, duration_s, 10.0, 25, 5)
    assert max(result.staleness) <= alpha
    return result.wall_s_per_step


def test_one_batch_ahead_is_three_times_as_fast_as_synchronous_under_a_long_tail(ideal: ModuleType) -> None:
    synchronous_s = step_s(ideal, 0)
    assert synchronous_s / step_s(ideal, 1) > 3.0
    draw = ideal.lognormal_durations(mean_s=10.0, sigma=0.86, cap_over_median=20.0, seed=0)
    queues = ideal.simulate_group_queues(
        num_groups=32, group_size=8, alpha=1, durations=draw, train_s=10.0, num_steps=25, warmup=5
    )
    assert synchronous_s / queues.wall_s_per_step < 2.2


def test_more_batches_ahead_are_never_slower(ideal: ModuleType) -> None:
    steps = [step_s(ideal, alpha, sigma=0.5) for alpha in (0, 1, 2, 4)]
    assert steps == sorted(steps, reverse=True)


def test_spare_groups_and_members_shorten_the_synchronous_step(ideal: ModuleType) -> None:
    plain_s = step_s(ideal, 0)
    spare_groups_s = step_s(ideal, 0, slots=288, num_groups_redundancy=4)
    spare_members_s = step_s(ideal, 0, slots=288, group_size_redundancy=1)
    assert plain_s / spare_groups_s > 1.2
    assert plain_s / spare_members_s > 1.2


def test_the_same_draws_give_the_same_schedule(ideal: ModuleType) -> None:
    assert step_s(ideal, 2) == step_s(ideal, 2)
