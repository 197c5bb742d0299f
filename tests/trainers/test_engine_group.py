"""Engines as processes that are killed, hang or refuse: they come back, or the run ends and says why."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from envsdk.config import RayArgs
from envsdk.failures import EngineError
from envsdk.inference.engine import EngineConfig, EngineHealth
from envsdk.inference.engine_pool import PoolConfig
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.trainers.engine_group import EngineGroup, EngineGroupSpec
from envsdk.trainers.trainer_group import TrainerGroup, TrainerSpec
from envsdk.training import TrainBatch, TrainerConfig
from tests.trainers.toy_engines import NAME as TOY_ENGINE
from tests.trainers.toy_engines import ToyEngine, read

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY), prepend=":")
        with ray_runtime(RayArgs(num_cpus=2)):
            yield


class Group(EngineGroup):
    """Writes down who joined, and with which version."""

    def __init__(self, spec: EngineGroupSpec, trainer: TrainerGroup) -> None:
        self.joined: list[tuple[str, int]] = []
        super().__init__(spec, trainer, self._note)

    async def _note(self, name: str, actor: Any) -> None:
        self.joined.append((name, (await actor.health.remote()).version))


class BreakingEngine(ToyEngine):
    """Is broken while there is a file `broken` in its folder."""

    def health(self) -> EngineHealth:
        error = "out of memory" if (self.folder / "broken").exists() else ""
        return replace(super().health(), error=error)


@asynccontextmanager
async def engine_group(
    folder: Path,
    *names: str,
    strategy: str = TOY_ENGINE,
    deeds: dict[str, str] | None = None,
    **pool: float,
) -> AsyncIterator[Group]:
    """Toy engines and a toy trainer, all started."""
    trainer = TrainerGroup(
        TrainerSpec(
            key="actor_train",
            strategy_name="tests.trainers.test_weight_update:WeighingTrainer",
            config=TrainerConfig(model=Path(), sequence_length=8, seed=0),
            device_mapping=None,
            uses_accelerators=False,
        ),
        all_mappings=[None],
    )
    spec = EngineGroupSpec(
        strategy_name=strategy,
        configs={
            name: EngineConfig(
                model=None,
                sequence_length=64,
                strategy_config={"folder": str(folder / name), **(deeds or {})},
            )
            for name in names
        },
        pool=PoolConfig(**({"first_backoff_s": 0.1} | pool)),  # type: ignore[arg-type]
        weight_update="continue",
        transport="auto",
        bucket_bytes=1 << 16,
    )
    group = Group(spec, trainer)
    try:
        await asyncio.gather(trainer.start(), group.start())
        await group.choose_transport()
        yield group
    finally:
        group.close()
        await trainer.close()
        for actor in group.actors.values():
            ray.kill(actor)


def engine_processes() -> set[int]:
    """Pids of the engines of this test."""
    return {
        process.pid
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE and process.name().startswith("ray::EngineHost")
    }


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1200):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never came true")


def one_step() -> TrainBatch:
    return TrainBatch(step=0, sequences=[])


async def test_a_killed_engine_comes_back_with_the_weights_of_the_others(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one", "two") as group:
        await group.train_step(one_step())
        assert (await group.publish(7)) is not None
        os.kill(min(engine_processes()), signal.SIGKILL)
        await until(lambda: group.joined != [])
        assert group.joined in ([("one", 7)], [("two", 7)])
        assert group.num_serving == 2
        assert group.num_restarts == 1
        one, two = read(tmp_path / "one", 7), read(tmp_path / "two", 7)
        assert all((one[key] == two[key]).all() for key in one)
        assert {look.version for look in (await group.health()).values()} == {7}


async def test_an_engine_that_comes_back_while_the_trainer_learns_waits_for_its_new_weights(
    tmp_path: Path,
) -> None:
    async with engine_group(tmp_path, "one") as group:
        await group.publish(0)
        await group.train_step(one_step())
        os.kill(min(engine_processes()), signal.SIGKILL)
        await until(lambda: group.num_restarts == 1)
        await until(lambda: group.num_running == 1)
        assert group.num_serving == 0
        await group.publish(1)
        await until(lambda: group.joined == [("one", 1)])


async def test_an_engine_that_says_that_it_is_broken_is_ended_and_started_again(tmp_path: Path) -> None:
    strategy = "tests.trainers.test_engine_group:BreakingEngine"
    async with engine_group(tmp_path, "one", strategy=strategy) as group:
        await group.publish(0)
        (tmp_path / "one" / "broken").touch()
        await until(lambda: group.num_running == 0)
        (tmp_path / "one" / "broken").unlink()
        await until(lambda: group.joined == [("one", 0)])
        assert len(engine_processes()) == 1


async def test_an_engine_that_hangs_is_ended_and_started_again(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one", silence_s=3.0) as group:
        await group.publish(0)
        (hung,) = engine_processes()
        os.kill(hung, signal.SIGSTOP)
        await until(lambda: group.joined == [("one", 0)])
        await until(lambda: not psutil.pid_exists(hung))
        assert len(engine_processes()) == 1


async def test_the_end_of_the_last_engine_says_how_often_and_why(tmp_path: Path) -> None:
    # Every life dies in the update that it would have to join with.
    async with engine_group(tmp_path, "one", deeds={"0": "die"}, max_restarts=1) as group:
        report = await group.publish(0)
        assert report is not None
        assert not report.engines
        with pytest.raises(EngineError, match=r"max_engine_restarts=1: one was lost 2 times.*process ended"):
            await asyncio.wait_for(group.failed, timeout=60)
        assert group.joined == []


async def test_an_engine_that_refuses_the_weights_when_it_comes_back_is_lost_again(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one", deeds={"0": "refuse"}, max_restarts=1) as group:
        os.kill(min(engine_processes()), signal.SIGKILL)
        await until(lambda: group.num_running == 0)
        assert await group.publish(0) is None
        with pytest.raises(EngineError, match="is not one of the model's"):
            await asyncio.wait_for(group.failed, timeout=60)
