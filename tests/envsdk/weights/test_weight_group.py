"""A group for one broadcast of weights, whose members may vanish at any time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from envsdk.base.net.rendezvous import join_store
from envsdk.weights.buckets import UpdateInterrupted
from envsdk.weights.group import WeightGroup

HERE = "127.0.0.1"
AN_HOUR = timedelta(hours=1)


def host(num_engines: int, timeout: timedelta = AN_HOUR) -> WeightGroup:
    return WeightGroup.host(HERE, world_size=num_engines + 1, timeout=timeout)


def say_here_and_vanish(group: WeightGroup, rank: int, world_size: int) -> None:
    store = join_store(HERE, group.port, world_size, timeout=AN_HOUR, wait_for_all=False)
    store.set(f"here/{rank}", "")


def wait_for(holds: Callable[[], bool]) -> None:
    while not holds():
        pass


@pytest.mark.parametrize("device", [None, "cpu"])
def test_every_engine_receives_what_rank_0_broadcasts(device: str | None) -> None:
    group = WeightGroup.host(HERE, world_size=3, timeout=AN_HOUR, device=device)
    data = np.arange(1000, dtype=np.uint8)
    with ThreadPoolExecutor() as pool:

        def receive(rank: int) -> list[bytes]:
            engine = WeightGroup.join(
                HERE, group.port, rank=rank, world_size=3, timeout=AN_HOUR, device=device
            )
            received = []
            for size in (1000, 10):
                received.append(engine.receive(size).numpy().tobytes())
            engine.close()
            return received

        received = [pool.submit(receive, rank) for rank in (1, 2)]
        wait_for(group.gather)
        for part in (data, data[:10]):
            group.broadcast(part if device is None else torch.from_numpy(part)).wait()
        assert [each.result() for each in received] == [[data.tobytes(), data[:10].tobytes()]] * 2
    group.close()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_an_engine_gives_up_when_nothing_comes(device: str | None) -> None:
    timeout = timedelta(seconds=1)
    group = WeightGroup.host(HERE, world_size=2, timeout=timeout, device=device)
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(
            WeightGroup.join, HERE, group.port, rank=1, world_size=2, timeout=timeout, device=device
        )
        wait_for(group.gather)
        engine = joining.result()
        with pytest.raises(UpdateInterrupted, match="the broadcast of weights broke"):
            engine.receive(10)
        engine.close()
    group.close()


@pytest.mark.skipif(dist.is_nccl_available(), reason="NCCL is here")
def test_cards_without_nccl_are_an_interrupted_update() -> None:
    group = host(1)
    group._device = "cuda:0"  # the constructor asks CUDA for memory there
    say_here_and_vanish(group, 1, world_size=2)
    with pytest.raises(UpdateInterrupted, match="comes without NCCL"):
        wait_for(group.gather)
    group.close()


def engine_on_card(port: int, rank: int, sizes: list[int], results: Any) -> None:
    """An engine's process, on the card of its rank."""
    torch.cuda.set_device(rank)
    group = WeightGroup.join(HERE, port, rank=rank, world_size=2, device=f"cuda:{rank}")
    for size in sizes:
        results.put(group.receive(size).cpu().numpy().tobytes())
    group.close()


@pytest.mark.gpu
def test_nccl_broadcasts_from_card_to_card() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL takes one rank for each card: two cards are needed")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    group = WeightGroup.host(HERE, world_size=2, device="cuda:0")
    process = context.Process(target=engine_on_card, args=(group.port, 1, [1 << 20, 10], results))
    process.start()
    wait_for(group.gather)
    data = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8, device="cuda:0")
    for part in (data, data[:10]):
        group.broadcast(part)
        assert results.get(timeout=60) == part.cpu().numpy().tobytes()
    process.join(timeout=60)
    assert process.exitcode == 0
    group.close()


@pytest.mark.gpu
def test_an_engine_that_dies_ends_nccl_for_all_and_no_process() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL takes one rank for each card: two cards are needed")
    context = multiprocessing.get_context("spawn")
    timeout = timedelta(seconds=5)
    group = WeightGroup.host(HERE, world_size=2, device="cuda:0", timeout=timeout)
    results = context.Queue()
    process = context.Process(target=engine_on_card, args=(group.port, 1, [10], results))
    process.start()
    wait_for(group.gather)
    group.broadcast(torch.zeros(10, dtype=torch.uint8, device="cuda:0"))
    results.get(timeout=60)
    process.join(timeout=60)
    group.broadcast(torch.zeros(1 << 26, dtype=torch.uint8, device="cuda:0"))
    group.close()
    torch.cuda.synchronize()
    assert int(torch.ones(3, device="cuda:0").sum()) == 3


def test_rank_0_is_not_held_up_by_an_engine_that_vanished_on_the_way() -> None:
    group = host(1)
    say_here_and_vanish(group, 1, world_size=2)
    for _ in range(3):
        assert not group.gather()
    group.close()
    group.close()


def test_rank_0_gives_an_engine_up_that_does_not_connect_in_time() -> None:
    group = host(1, timedelta(seconds=0.2))
    say_here_and_vanish(group, 1, world_size=2)
    with pytest.raises(UpdateInterrupted, match="an engine was lost on the way"):
        wait_for(group.gather)
    group.close()


def test_an_engine_that_waits_for_one_that_vanished_hears_that_rank_0_gave_up() -> None:
    group = host(2)
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(WeightGroup.join, HERE, group.port, rank=1, world_size=3, timeout=AN_HOUR)
        say_here_and_vanish(group, 2, world_size=3)
        for _ in range(1000):
            assert not group.gather()
        group.close()
        with pytest.raises(UpdateInterrupted, match="the trainer cannot be met"):
            joining.result()
