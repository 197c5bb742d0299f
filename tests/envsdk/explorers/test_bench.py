"""`mode: bench` before a cluster that only counts: what is evaluated, said, and continued."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from envsdk.buffer.contract import PublishedVersion
from envsdk.config import load_config
from envsdk.config.models import RunConfig
from envsdk.contracts.failures import EnvsdkError
from envsdk.contracts.trajectory import RolloutBatch
from envsdk.explorers.bench import Bench
from envsdk.explorers.published import PublishedVersions
from envsdk.explorers.weights import FetchedVersion, VersionReader
from envsdk.tracking import JsonlTracker, read_metrics
from tests.envsdk.explorers.trainer_stand_in import TrainerStandIn
from tests.envsdk.view.view_runs import make_trajectory

LAST = 9


class Held:
    """Stands for the weights of the engines."""

    weights: Any = None

    def hold(self, weights: Any) -> None:
        self.weights = weights


class NumberReader(VersionReader):
    """The weights of a version are its number."""

    def __init__(self) -> None: ...

    async def fetch(self, published: PublishedVersion) -> FetchedVersion:
        weights: Any = {"number": published.version}
        return FetchedVersion(version=published.version, step=published.step, weights=weights, seconds=0.0)

    async def close(self) -> None:
        return


class Cluster:
    """While it evaluates, the trainer goes on by some steps, and ends after the last one."""

    def __init__(self, trainer: TrainerStandIn, *, steps_meanwhile: int) -> None:
        self.engines = Held()
        self.played: list[tuple[int, int]] = []
        self._trainer = trainer
        self._steps_meanwhile = steps_meanwhile
        self._step = 0

    async def start(self) -> None:
        self._trainer.publish(0, Path("0"))

    @asynccontextmanager
    async def weights_moving(self) -> AsyncIterator[None]:
        yield

    async def give_weights(self, version: int) -> None:
        assert self.engines.weights == {"number": version}

    async def validate(self, version: int, step: int) -> RolloutBatch:
        self.played.append((version, step))
        for _ in range(self._steps_meanwhile):
            if self._step < LAST:
                self._step += 1
                self._trainer.publish(self._step, Path(str(self._step)))
                if self._step == LAST:
                    self._trainer.finish()
        return RolloutBatch(version=version, groups=[[make_trajectory(step, success=step > 4)]])


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    keys = [f"output_dir={tmp_path}", "exp_name=job", "eval_steps=2"]
    return load_config("agentic_trainer.yaml", keys).config


@pytest.fixture
def trainer(config: RunConfig) -> Iterator[TrainerStandIn]:
    stand_in = TrainerStandIn(config)
    yield stand_in
    stand_in.leave()


def bench(config: RunConfig, cluster: Any, tracker: JsonlTracker, evaluated: int | None = None) -> Bench:
    versions = PublishedVersions(config, NumberReader(), say=print)
    return Bench(config, cluster, versions, cluster.engines, tracker=tracker, evaluated=evaluated)


@pytest.mark.parametrize(
    ("steps_meanwhile", "steps", "left_out"), [(2, [0, 2, 4, 6, 8, 9], []), (3, [0, 3, 6, 9], [2, 4, 8])]
)
async def test_due_versions_are_evaluated_up_to_the_last_and_those_left_out_are_named(
    config: RunConfig,
    trainer: TrainerStandIn,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    steps_meanwhile: int,
    steps: list[int],
    left_out: list[int],
) -> None:
    cluster = Cluster(trainer, steps_meanwhile=steps_meanwhile)
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    await bench(config, cluster, tracker).run()
    tracker.close()
    assert cluster.played == [(step, step) for step in steps]
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(row["step"], row["val/success/mean"]) for row in rows] == [(s, float(s > 4)) for s in steps]
    said = capsys.readouterr().out
    assert [int(number) for number in re.findall(r"in place of (\d+),", said)] == left_out


async def test_one_that_is_started_again_goes_on_with_the_newest_version(
    config: RunConfig, trainer: TrainerStandIn, tmp_path: Path
) -> None:
    cluster, tracker = Cluster(trainer, steps_meanwhile=LAST), JsonlTracker(tmp_path / "metrics.jsonl")
    await bench(config, cluster, tracker).run()
    cluster.start = nothing  # type: ignore[method-assign]
    await bench(config, cluster, tracker, evaluated=LAST).run()
    tracker.close()
    assert cluster.played == [(0, 0), (LAST, LAST)]


async def test_it_waits_for_a_trainer_as_long_as_configured(
    config: RunConfig,
    trainer: TrainerStandIn,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("envsdk.explorers.published.LOOK_AGAIN_S", 0.01)
    trainer.leave()
    impatient = config.buffer.model_copy(update={"patience_s": 1e-9})
    config = config.model_copy(update={"buffer": impatient})
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    cluster = Cluster(trainer, steps_meanwhile=1)
    cluster.start = nothing  # type: ignore[method-assign]
    with pytest.raises(EnvsdkError, match=r"buffer\.patience_s"):
        await bench(config, cluster, tracker).run()
    tracker.close()
    assert "no trainer is running" in capsys.readouterr().out


async def nothing() -> None:
    """Starts nothing and publishes nothing."""
