"""Engines as processes that are killed, hang, are slow or refuse come back, or the run ends and says why.
Their number follows their queue.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from envsdk.config import RayArgs
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.held import Held
from envsdk.contracts.trainer import TrainBatch, TrainerConfig
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_pace import DemandConfig
from envsdk.engines.engine_pool import EngineState, PoolConfig
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.runs.engine_group import EngineGroup, EngineGroupSpec
from envsdk.runs.trainer_group import TrainerGroup, TrainerSpec
from envsdk.weights.transports import Transport
from tests.trainers.counted_gpus import REPOSITORY, counted_gpus
from tests.trainers.toy_engines import BLIND, BREAKING, BUSY, SEEING, read
from tests.trainers.toy_engines import NAME as TOY_ENGINE
from tests.trainers.toy_trainers import WEIGHING

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY), prepend=":")
        with ray_runtime(RayArgs(num_cpus=2)):
            yield


class Group(EngineGroup):
    """Writes down who joined, and with which version; who left, and what users are told."""

    def __init__(self, spec: EngineGroupSpec, trainer: TrainerGroup) -> None:
        self.joined: list[tuple[str, int]] = []
        self.left: list[str] = []
        self.said: list[str] = []
        self.trainer = trainer
        super().__init__(spec, trainer, self._note, self.said.append)

    async def _note(self, name: str, actor: Any | None) -> None:
        if actor is None:
            self.left.append(name)
        else:
            self.joined.append((name, (await actor.health.remote()).version))


@asynccontextmanager
async def engine_group(
    folder: Path,
    *names: str,
    strategy: str = TOY_ENGINE,
    deeds: dict[str, str] | None = None,
    num_started: int | None = None,
    device_mapping: Sequence[int] | None = None,
    **pool: Any,
) -> AsyncIterator[Group]:
    """Toy engines and a toy trainer, all started."""
    trainer = TrainerGroup(
        TrainerSpec(
            key="actor_train",
            strategy_name=WEIGHING,
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
        num_started=num_started,
        pool=PoolConfig(**({"first_backoff_s": 0.1} | pool)),
        weight_update="continue",
        transport="auto",
        bucket_bytes=1 << 16,
        device_mapping=device_mapping,
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


async def put_on_cards(group: Group, trainer: str, **engines: str) -> None:
    """As if trainer and engines had their weights on these cards."""

    async def card() -> str:
        return trainer

    group.trainer.card = card  # type: ignore[method-assign]
    for name, which in engines.items():
        group._way.came(name, group._way.nodes[name], which)
    await group.choose_transport()


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
        async with group.weights_moving():
            await group.trainer.train_step(one_step())
        assert (await group.publish(7)) is not None
        os.kill(min(engine_processes()), signal.SIGKILL)
        await until(lambda: group.joined != [])
        assert group.joined in ([("one", 7)], [("two", 7)])
        [(lost, _)] = group.joined
        [said] = group.said
        assert said.startswith(f"{lost} was lost, it is started again; the reason: its process ended: ")
        assert group.pool.num_serving == 2
        assert group.pool.num_restarts == 1
        one, two = read(tmp_path / "one", 7), read(tmp_path / "two", 7)
        assert all((one[key] == two[key]).all() for key in one)
        assert {look.version for look in (await group.health()).values()} == {7}


async def test_an_engine_that_comes_back_while_the_trainer_learns_waits_for_its_new_weights(
    tmp_path: Path,
) -> None:
    async with engine_group(tmp_path, "one") as group:
        await group.publish(0)
        async with group.weights_moving():
            await group.trainer.train_step(one_step())
        os.kill(min(engine_processes()), signal.SIGKILL)
        await until(lambda: group.pool.num_restarts == 1)
        await until(lambda: len(group.pool.incarnations) == 1)
        assert group.pool.num_serving == 0
        await group.publish(1)
        await until(lambda: group.joined == [("one", 1)])


async def test_an_engine_that_dies_while_others_have_its_device_waits_for_its_turn(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one") as group:
        await group.publish(0)
        await group.hold(Held.NOTHING)
        os.kill(min(engine_processes()), signal.SIGKILL)
        await until(lambda: group.pool.state("one") is EngineState.DOWN)
        assert group.pool.num_restarts == 0
        await group.hold(Held.WEIGHTS)
        await group.publish(1)
        await group.hold(Held.ALL)
        await until(lambda: group.joined == [("one", 1)])
        await group.hold(Held.NOTHING)


@pytest.mark.slow
@pytest.mark.parametrize("error", [ray.exceptions.RayActorError(), ray.exceptions.OutOfMemoryError("low")])
async def test_an_engine_that_dies_before_it_says_where_it_runs_is_started_again(
    tmp_path: Path, error: Exception
) -> None:
    class Died:
        """Started, and gone when it is asked where."""

        class start:
            @staticmethod
            async def remote() -> None: ...

        class node_id:
            @staticmethod
            async def remote() -> str:
                raise error

    async with engine_group(tmp_path, "one") as group:
        await group.publish(0)
        group._way.in_memory = Transport.OBJECT_STORE
        make = group._new_actor

        def first_dies(name: str) -> Any:
            group._new_actor = make  # type: ignore[method-assign]
            ray.kill(make(name))
            return Died()

        group._new_actor = first_dies  # type: ignore[method-assign]
        group._end = lambda actor, **_: None  # type: ignore[method-assign,assignment]
        os.kill(min(engine_processes()), signal.SIGKILL)
        await until(lambda: group.joined == [("one", 0)] or group.failed.done())
        assert not group.failed.done()
        assert group.pool.num_restarts == 2


@pytest.mark.slow
async def test_weights_stay_on_the_card_that_all_share(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one", "two") as group:
        await put_on_cards(group, "GPU-1", one="GPU-1", two="GPU-1")
        assert group.said == ["weights reach the engines by cuda_ipc, in memory of the card"]
        await group.publish(1)
        one, two = read(tmp_path / "one", 1), read(tmp_path / "two", 1)
        assert all((one[key] == two[key]).all() for key in one)
        # One that is started again says itself what it has, which here is main memory.
        os.kill(min(engine_processes()), signal.SIGKILL)
        await until(lambda: group.joined != [])
        assert len(set(group._way._cards.values())) == 2


@pytest.mark.slow
async def test_weights_go_from_card_to_card_where_each_has_its_own(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one", "two") as group:
        await put_on_cards(group, "GPU-1", one="GPU-2", two="GPU-3")
        assert group.said == ["weights reach the engines by nccl, in memory of the card"]
        report = await group.publish(1)
        assert report is not None
        assert sorted(report.engines) == ["one", "two"]


@pytest.mark.slow
async def test_weights_go_through_main_memory_where_cards_are_shared_by_some(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one", "two") as group:
        await put_on_cards(group, "GPU-1", one="GPU-1", two="GPU-2")
        [said] = group.said
        assert said.startswith("weights reach the engines by shared_memory, in main memory: two of the")
        assert (await group.publish(1)) is not None


async def test_a_way_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one") as group:
        group._way._asked_for = "cuda_ipc"
        with pytest.raises(ConfigurationError, match="cuda_ipc, but the trainer has its weights in main mem"):
            await group.choose_transport()


@pytest.mark.slow
async def test_where_the_card_cannot_be_shared_weights_go_through_main_memory(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one", strategy=BLIND) as group:
        await put_on_cards(group, "GPU-1", one="GPU-1")
        group.said.clear()
        await group.publish(1)
        [said] = group.said
        assert said.startswith("weights cannot go by cuda_ipc, and go by shared_memory: the trainer's memory")
        assert "invalid resource handle" in said
        await group.publish(2)
        assert len(group.said) == 1
        assert {look.version for look in (await group.health()).values()} == {2}


async def test_where_nccl_fails_weights_go_through_main_memory(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one", "two", strategy=BLIND) as group:
        await put_on_cards(group, "GPU-1", one="GPU-2", two="GPU-3")
        group.said.clear()
        await group.publish(1)
        [said] = group.said
        assert said.startswith("weights cannot go by nccl, and go by shared_memory: the weights cannot be")
        assert said.endswith("; unhandled system error")
        assert {look.version for look in (await group.health()).values()} == {1}


@pytest.mark.slow
async def test_an_engine_that_dies_in_a_broadcast_between_cards_leaves_the_others_on_them(
    tmp_path: Path,
) -> None:
    async with engine_group(tmp_path, "one", "two") as group:
        await put_on_cards(group, "GPU-1", one="GPU-2", two="GPU-3")
        group.said.clear()
        os.kill(min(engine_processes()), signal.SIGKILL)
        report = await group.publish(1)
        assert report is not None
        assert len(report.engines) == 1
        assert not any("cannot go" in line for line in group.said)


@pytest.mark.slow
async def test_an_engine_that_says_that_it_is_broken_is_ended_and_started_again(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one", strategy=BREAKING) as group:
        await group.publish(0)
        (tmp_path / "one" / "broken").touch()
        await until(lambda: not group.pool.incarnations)
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
    # Every incarnation dies in the update that it would have to join with.
    async with engine_group(tmp_path, "one", deeds={"0": "die"}, max_restarts=1) as group:
        report = await group.publish(0)
        assert report is not None
        assert not report.engines
        with pytest.raises(EngineError, match=r"max_engine_restarts=1: one was lost 2 times.*process ended"):
            await asyncio.wait_for(group.failed, timeout=60)
        assert group.joined == []


@pytest.mark.slow
async def test_an_engine_that_refuses_the_weights_when_it_comes_back_is_lost_again(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one", deeds={"0": "refuse"}, max_restarts=1) as group:
        os.kill(min(engine_processes()), signal.SIGKILL)
        await until(lambda: not group.pool.incarnations)
        assert await group.publish(0) is None
        with pytest.raises(EngineError, match="is not one of the model's"):
            await asyncio.wait_for(group.failed, timeout=60)


@pytest.mark.slow  # by day, another one hangs
async def test_an_engine_that_answers_but_computes_nothing_is_started_again(tmp_path: Path) -> None:
    async with engine_group(tmp_path, "one", strategy=BUSY, stall_s=2.0) as group:
        await group.publish(0)
        (stalled,) = engine_processes()
        (tmp_path / "one" / "stalled").touch()
        await until(lambda: group.pool.num_serving == 0)
        (tmp_path / "one" / "stalled").unlink()
        await until(lambda: group.joined == [("one", 0)])
        assert group.left == []
        assert stalled not in engine_processes()


@pytest.mark.slow
async def test_a_slow_engine_is_drained_and_comes_back_with_the_weights_of_the_others(tmp_path: Path) -> None:
    limits = {"slow_s": 2.0, "stretch_s": 2.0}
    async with engine_group(tmp_path, "one", "two", strategy=BUSY, **limits) as group:
        await group.publish(4)
        before = engine_processes()
        (tmp_path / "two" / "slow").touch()
        await until(lambda: group.left == ["two"])
        assert group.pool.num_serving == 1
        assert engine_processes() == before  # its turns may end
        (tmp_path / "two" / "idle").touch()
        await until(lambda: group.pool.num_restarts == 1)
        (tmp_path / "two" / "slow").unlink()
        await until(lambda: group.joined == [("two", 4)])
        await until(lambda: len(engine_processes()) == 2)
        assert len(engine_processes() & before) == 1


async def test_engines_come_with_the_queue_and_go_with_it(tmp_path: Path) -> None:
    demand = DemandConfig(places=4, grow_s=1.0, idle_s=3.0)
    async with engine_group(tmp_path, "one", "two", strategy=BUSY, num_started=1, demand=demand) as group:
        await group.publish(0)
        async with group.weights_moving():
            await group.trainer.train_step(one_step())
        await group.publish(1)
        assert len(engine_processes()) == 1
        (tmp_path / "one" / "crowded").touch()
        await until(lambda: group.joined == [("two", 1)])
        assert group.pool.num_serving == 2
        assert len(engine_processes()) == 2
        (tmp_path / "one" / "crowded").unlink()
        await until(lambda: group.left == ["two"])
        (tmp_path / "two" / "idle").touch()
        await until(lambda: len(engine_processes()) == 1)
        assert group.pool.num_serving == group.pool.num_engines == 1
        assert group.pool.num_restarts == 0


@pytest.fixture
def four_counted_gpus() -> Iterator[None]:
    with counted_gpus(4):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("four_counted_gpus")
async def test_each_engine_sees_the_accelerators_mapped_to_it_also_when_it_comes_back(tmp_path: Path) -> None:
    async with engine_group(
        tmp_path, "one", "two", strategy=SEEING, device_mapping=[3, 1, 0, 2], num_started=1
    ) as group:
        await group.publish(0)
        assert (tmp_path / "one" / "sees").read_text() == "3,1"
        assert ray.available_resources().get("GPU", 0) == 0  # those of the other one are kept for it
        (tmp_path / "one" / "sees").unlink()
        for process in psutil.Process().children(recursive=True):
            if process.name().startswith("ray::PlacedEngin"):
                process.kill()
        await until(lambda: group.joined == [("one", 0)])
        assert (tmp_path / "one" / "sees").read_text() == "3,1"
    with pytest.raises(
        ConfigurationError,
        match=r"actor_infer asked for 6 GPU \(2 engines of 3\), and Ray has 4 GPU: shorten "
        r"actor_infer\.device_mapping",
    ):
        async with engine_group(tmp_path, "one", "two", device_mapping=range(6)):
            raise AssertionError("there was no room")
