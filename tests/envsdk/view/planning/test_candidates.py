"""The search tries every split with every alpha, and prefers what is less stale."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from envsdk.config.loading import load_config
from envsdk.contracts.failures import ConfigurationError
from envsdk.view.planning.candidates import Candidate, Plan, Row, best, cost_per_million, splits
from envsdk.view.planning.report import comparison, draw, table
from envsdk.view.planning.settings import misfit_of
from envsdk.view.planning.workload import EngineTime, StatedEpisodes, Timings, TrainTime, Workload

BASE = Candidate(sampling_devices=2, async_generation_ratio=0.0, group_size=4, infer_batch_size=8)
EPISODES = StatedEpisodes.model_validate({"reply_tokens": {"kind": "lognormal", "mean": 100, "sigma": 0.6}})
PLAN = Plan(
    workload=Workload(
        episodes=EPISODES,
        timings=Timings(engine=EngineTime(token_s=0.01), train=TrainTime(token_s=0.01)),
    ),
    devices=8,
    batch_size=16,
    base=BASE,
    dimensions={
        "sampling_devices": (2, 4, 6),
        "async_generation_ratio": (0.0, 1.0),
        "num_groups_redundancy": (0, 1),
        "group_size": (4, 3),
    },
    tries_shared=True,
    num_steps=4,
)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return PLAN.explore()


def test_the_grid_and_the_other_dimensions_around_its_best_are_tried(rows: list[Row]) -> None:
    tried = {row.candidate for row in rows}
    assert {(c.sampling_devices, c.async_generation_ratio) for c in tried} >= {
        (split, alpha) for split in (2, 4, 6) for alpha in (0.0, 1.0)
    }
    chosen = best(rows)
    assert chosen is not None
    assert {replace(chosen.candidate, num_groups_redundancy=n) for n in (0, 1)} <= tried
    assert any(each.is_shared for each in tried)
    assert len(tried) == len(rows)


def test_an_impossible_candidate_is_a_row_that_says_why(rows: list[Row]) -> None:
    problems = [row.problem for row in rows if row.candidate.group_size == 3]
    assert problems
    assert all("group_size 3" in problem for problem in problems)
    assert any("group_size 3" in line for line in table(rows, devices=8))


def test_turns_are_compared_with_the_best_of_the_divided_ones(rows: list[Row]) -> None:
    shared, divided, verdict = comparison(rows, 8)
    assert shared.startswith("in turns on all 8 devices: ")
    assert divided.startswith("divided, ")
    rates = [float(line.split(": ")[1].split()[0]) for line in (shared, divided)]
    assert verdict.startswith("dividing them: " if rates[1] >= rates[0] else "turns: ")
    assert float(verdict.split(": ")[1].split()[0]) == pytest.approx(max(rates) / min(rates), abs=0.02)
    assert comparison([row for row in rows if not row.candidate.is_shared], 8) == []


def test_switching_devices_costs_turns_alone() -> None:
    def step_s(switch_s: float, *, is_shared: bool) -> float:
        timings = PLAN.workload.timings.model_copy(update={"switch_s": switch_s})
        plan = replace(PLAN, workload=replace(PLAN.workload, timings=timings))
        row = plan.evaluate(replace(BASE, is_shared=is_shared, sampling_devices=8 if is_shared else 2))
        assert row.prediction is not None
        return row.prediction.step_s

    assert step_s(5.0, is_shared=True) == pytest.approx(step_s(0.0, is_shared=True) + 5.0)
    assert step_s(5.0, is_shared=False) == step_s(0.0, is_shared=False)


def test_what_does_not_fit_is_not_simulated(model_folder: Path) -> None:
    run = load_config(
        "agentic_sync.yaml",
        [
            f"pretrain={model_folder}",
            "device_memory_gib=0.01",
            "actor_train.strategy_args.strategy_name=fsdp2_train",
            "actor_infer.strategy_args.strategy_name=vllm",
            "actor_infer.strategy_args.strategy_config.gpu_memory_utilization=0.9",
            "actor_infer.strategy_args.strategy_config.dtype=float32",
        ],
        for_training=False,
        to_explain=True,
    ).config
    plan = replace(PLAN, misfit=partial(misfit_of, run, 8))
    row = plan.evaluate(BASE)
    assert row.prediction is None
    assert row.problem.startswith("does not fit: ")
    assert misfit_of(run.model_copy(update={"device_memory_gib": 80.0}), 8, BASE) == ""
    assert comparison([row, replace(row, candidate=replace(BASE, is_shared=True))], 8)[1].endswith(
        row.problem
    )


def test_the_table_begins_with_the_best_row_and_counts_money(rows: list[Row]) -> None:
    lines = table(rows, devices=8, cost_per_hour=2.5, most=5)
    assert [line[0] for line in lines[:3]] == [" ", "*", " "]
    assert lines[-1] == f"and {len(rows) - 5} more"
    chosen = best(rows)
    assert chosen is not None
    assert chosen.prediction is not None
    money = cost_per_million(chosen, 8, 2.5)
    assert money == pytest.approx(8 * 2.5 / 3600 / chosen.prediction.tokens_per_s * 1e6)
    assert lines[1].rstrip().endswith(f"{money:,.2f}")


def test_among_equals_the_less_stale_one_is_best() -> None:
    slow_training = replace(
        PLAN.workload, timings=Timings(engine=EngineTime(token_s=0.001), train=TrainTime(base_s=100))
    )
    plan = replace(
        PLAN, workload=slow_training, tries_shared=False, dimensions={"async_generation_ratio": (2.0, 1.0)}
    )
    chosen = best(plan.explore())
    assert chosen is not None
    assert chosen.candidate.async_generation_ratio == 1.0


def test_the_plot_is_an_image_of_every_split(rows: list[Row]) -> None:
    svg = draw(rows, devices=8, title="a & b")
    assert svg is not None
    assert "a &amp; b" in svg
    assert svg.count('class="curve') == 2 + 3
    assert draw(rows[:1], devices=8, title="") is None


@pytest.mark.parametrize(
    ("devices", "per_engine", "expected"), [(2, 1, (1,)), (8, 2, (2, 4, 6)), (40, 1, 12), (9, 8, (8,))]
)
def test_splits_leave_a_device_to_the_trainer(devices: int, per_engine: int, expected: object) -> None:
    found = splits(devices, per_engine)
    assert (len(found) if isinstance(expected, int) else found) == expected
    assert all(0 < each < devices and each % per_engine == 0 for each in found)


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="--devices is 8"):
        splits(8, 8)
