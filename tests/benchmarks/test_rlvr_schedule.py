"""The ideal schedules that runs are compared with, where they can be worked out by hand."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def schedule() -> Iterator[ModuleType]:
    pytest.importorskip("ray")
    sys.path.insert(0, str(FOLDER))
    known = set(sys.modules)
    spec = importlib.util.spec_from_file_location("rlvr_schedule", FOLDER / "rlvr_schedule.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(FOLDER))
    for name in set(sys.modules) - known:
        if name in ("rlvr_schedule", "orchestration"):
            del sys.modules[name]


def load_of(schedule: ModuleType, *, sigma: float, filters: bool = False):
    latency = schedule.LognormalLatency(kind="lognormal", mean_s=1.0, sigma=sigma, longest_s=4.0)
    return schedule.Load(
        num_prompts=8, num_engines=2, places=16, train_s=1.0, num_steps=6, latency=latency, filters=filters
    )


def test_without_variation_every_synchronous_schedule_is_the_same(schedule) -> None:
    load = load_of(schedule, sigma=0.0)
    # 8 groups of 8 in 32 places: two rounds of one second, and a second of training.
    for in_waves in (False, True):
        assert schedule.simulate_whole_groups(load, in_waves=in_waves) == pytest.approx(3.0)
    for shares in (False, True):
        policy = schedule.Policy(name="", shares_prompts=shares)
        assert schedule.simulate(load, policy) == pytest.approx(3.0)
    # Generation, two seconds a batch, is all that is left when training runs beside it.
    assert schedule.simulate(load, schedule.Policy(name="", alpha=1)) == pytest.approx(2.0)


def test_each_freedom_of_the_schedule_saves_time_on_the_same_draws(schedule) -> None:
    for filters in (False, True):
        load = load_of(schedule, sigma=0.9, filters=filters)
        waves, groups = (schedule.simulate_whole_groups(load, in_waves=w) for w in (True, False))
        queue = schedule.simulate(load, schedule.Policy(name="", shares_prompts=True))
        spare = schedule.simulate(load, schedule.Policy(name="", spare=2))
        ahead = schedule.simulate(load, schedule.Policy(name="", alpha=1))
        assert waves > groups > queue > spare > ahead
