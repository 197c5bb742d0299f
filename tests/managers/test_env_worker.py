"""A worker without Ray around it, whose scheduler or engine stops answering: nothing piles up."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, RayError, RaySystemError, RayTaskError
from toy_envs import CountingEnv

from envsdk.base.processes.call_watch import CALLS
from envsdk.contracts.env import EnvSpec
from envsdk.contracts.trajectory import Task
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_host import EngineHost
from envsdk.engines.sampling import SamplingParams
from envsdk.managers import env_worker
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.env_worker import EnvWorker, Finished, FromWorker, Play, ToWorker, WorkerId, WorkerSetup
from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.traj_env_manager import TagSetup
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer

NUM_SLOTS = 24
SLOTS = tuple(f"train/a/{number}" for number in range(NUM_SLOTS))
SPEC = EnvSpec(id="toy/Counting-v0", entry_point=CountingEnv)


def actor(exchange: Callable[..., Any]) -> Any:
    """Looks like an actor's handle."""
    return SimpleNamespace(exchange=SimpleNamespace(remote=exchange))


async def never() -> Any:
    await asyncio.get_running_loop().create_future()


def order(lease_id: int) -> EpisodeOrder:
    task = Task(tag="a", split="train", index=lease_id)
    return EpisodeOrder(
        lease_id=lease_id, group_id=lease_id, member=0, task=task, seed=1, policy_seed=lease_id
    )


class SilentScheduler:
    """Leases every slot once, and answers no call after that."""

    def __init__(self) -> None:
        self.heard: list[FromWorker] = []

    async def exchange(
        self, worker_id: WorkerId, number: int, messages: Sequence[FromWorker]
    ) -> list[ToWorker]:
        self.heard += messages
        if number == 0:
            return [Play(slot_id, order(number)) for number, slot_id in enumerate(SLOTS)]
        await never()
        raise AssertionError


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Also keeps the worker from what only an actor has."""
    monkeypatch.setattr(env_worker, "_kill_report_path", lambda worker_id: tmp_path / "report")
    monkeypatch.setattr(CALLS, "start_watcher", lambda *_: None)
    monkeypatch.setattr(env_worker, "collect_rarely", lambda: None)
    write_tokenizer(tmp_path, build_tokenizer(["seed turn 0 1 2 3 go"] * 2), sequence_length=512)
    return tmp_path


def worker_with(model: Path, engine: Any) -> EnvWorker:
    setup = TagSetup(tag="a", blueprint=EnvBlueprint(spec=SPEC), max_turns=3, max_new_tokens=8)
    return EnvWorker(
        WorkerId("train-0", 0),
        WorkerSetup(
            slots=dict.fromkeys(SLOTS, "a"),
            setups={"a": setup},
            model=model,
            generating=SamplingParams(max_new_tokens=8),
            sequence_length=512,
            turn_timeout_s=600.0,
            engines={"engine": engine},
        ),
    )


async def run_until(worker: EnvWorker, scheduler: SilentScheduler, is_reached: Callable[[], bool]) -> None:
    """Then look on for a while, and end."""
    running = asyncio.ensure_future(worker.run(actor(scheduler.exchange)))
    turns_left = 100_000
    while turns_left:
        await asyncio.sleep(0)
        turns_left = min(turns_left - 1, 50) if is_reached() else turns_left - 1
    assert is_reached()
    assert not running.done()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_slot_says_one_thing_until_the_scheduler_answers(model: Path) -> None:
    engine = EngineHost("mock", EngineConfig(model=None, sequence_length=512))
    await engine.start()
    scheduler = SilentScheduler()
    worker = worker_with(model, actor(engine.exchange))

    def said() -> list[FromWorker]:
        return [*scheduler.heard, *(worker._poll._items if worker._poll else ())]

    await run_until(worker, scheduler, lambda: len(said()) >= NUM_SLOTS)
    assert Counter(message.slot_id for message in said()) == Counter(SLOTS)
    assert all(isinstance(message, Finished) for message in said())
    assert all(orders.empty() for orders in worker._orders.values())
    await engine.close()


async def test_a_slot_asks_a_silent_engine_for_one_reply(model: Path) -> None:
    asked: list[str] = []

    async def exchange(client: str, number: int, packed: Any, aborts: Sequence[str]) -> Any:
        asked.extend(row[0] for row in packed.rows)
        await never()

    scheduler = SilentScheduler()
    worker = worker_with(model, actor(exchange))

    def open_turns() -> int:
        return len(worker._proxies[""]._pending) if worker._proxies else 0

    seen: list[int] = []

    def is_reached() -> bool:
        seen.append(open_turns())
        return seen[-1] >= NUM_SLOTS

    await run_until(worker, scheduler, is_reached)
    assert max(seen) == NUM_SLOTS
    assert len(set(asked)) == len(asked) <= NUM_SLOTS


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        ActorUnavailableError("the network lost a call", bytes(16)),
        RaySystemError("the reply could not be read"),
    ],
)
def test_a_worker_that_cannot_go_on_ends_its_process_and_not_the_run(
    model: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The scheduler then starts another one, as after a crash."""

    class Ended(BaseException):
        pass

    async def exchange(*_: object) -> list[ToWorker]:
        raise error

    def end(code: int) -> None:
        assert code == 1
        raise Ended

    monkeypatch.setattr(env_worker.os, "_exit", end)
    worker = worker_with(model, actor(never))
    with pytest.raises(Ended):
        asyncio.run(worker.run(actor(exchange)))


def test_an_error_of_the_scheduler_itself_is_not_taken_for_a_lost_message(model: Path) -> None:
    async def exchange(*_: object) -> list[ToWorker]:
        raise RayTaskError("exchange", "Traceback: a slot is unknown", KeyError("slot"))

    worker = worker_with(model, actor(never))
    with pytest.raises(RayError, match="a slot is unknown"):
        asyncio.run(worker.run(actor(exchange)))
