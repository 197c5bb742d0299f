"""A group for one broadcast of weights, whose members may vanish at any time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest

from envsdk.inference.weight_buckets import UpdateInterrupted
from envsdk.inference.weight_group import WeightGroup
from envsdk.net.rendezvous import join_store

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


def test_every_engine_receives_what_rank_0_broadcasts() -> None:
    group, data = host(2), np.arange(1000, dtype=np.uint8)
    with ThreadPoolExecutor() as pool:

        def receive(rank: int) -> bytes:
            engine = WeightGroup.join(HERE, group.port, rank=rank, world_size=3, timeout=AN_HOUR)
            received = engine.receive(len(data)).tobytes()
            engine.close()
            return received

        received = [pool.submit(receive, rank) for rank in (1, 2)]
        wait_for(group.gather)
        group.broadcast(data).wait()
        assert [each.result() for each in received] == [data.tobytes()] * 2
    group.close()


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
