"""Several ranks of a trainer in processes of their own, for tests.

    results = run_ranks(2, body, argument)     # body(rank, argument) on each; one result per rank

`body` is a function of a test module. Ranks are forked from a server that has imported the libraries
once, never from the test process, whose autograd threads would not survive it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, Concatenate, ParamSpec, TypeVar

import pytest

from envsdk.base.net.rendezvous import free_port
from envsdk.contracts.trainer import TrainerRank

P = ParamSpec("P")
T = TypeVar("T")

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["envsdk.trainers.fsdp2_trainer", "envsdk.trainers.megatron.model"])
# Libraries ask whether there is CUDA while they are imported: asked so, it can still be used after a fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


TIMEOUT_S = 240.0
"""Above what the slowest test takes on a machine with much else to do, below the limit of a test."""


class RankError(Exception):
    """A rank failed first; the text is its traceback."""


def run_ranks(
    world_size: int,
    body: Callable[Concatenate[TrainerRank, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> list[T]:
    """`body(rank, *args)` on every rank at once, on CPUs also where there are GPUs. RankError tells what went
    wrong on the first to fail.

    No rank outlives the call, nor the test process.
    """
    return _run_ranks(world_size, False, body, args, kwargs)


def run_ranks_on_gpus(
    world_size: int,
    body: Callable[Concatenate[TrainerRank, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> list[T]:
    """`run_ranks`, each rank on its GPU. With fewer GPUs than ranks the test is skipped."""
    need_gpus(world_size)
    return _run_ranks(world_size, True, body, args, kwargs)


def need_gpus(count: int = 1) -> int:
    """How many CUDA devices there are; with fewer than `count` the test is skipped."""
    import torch

    num_gpus = torch.cuda.device_count()
    if num_gpus < count:
        pytest.skip(f"CUDA devices needed: {count}, found: {num_gpus}")
    return num_gpus


def _run_ranks(
    world_size: int, sees_gpus: bool, body: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[T]:
    deadline = time.monotonic() + TIMEOUT_S
    port = free_port("127.0.0.1")
    processes: list[ForkServerProcess] = []
    readers: dict[Connection, int] = {}
    results: dict[int, T] = {}
    try:
        for index in range(world_size):
            rank = TrainerRank(rank=index, world_size=world_size, local_rank=index, master_port=port)
            reader, writer = _context.Pipe(duplex=False)
            what = (writer, sees_gpus, body, rank, args, kwargs)
            process = _context.Process(target=_run, args=what, daemon=True)
            process.start()
            writer.close()
            processes.append(process)
            readers[reader] = index
        while readers:
            ready = wait(list(readers), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RankError(f"ranks {sorted(readers.values())} did not finish in time")
            for reader in ready:
                assert isinstance(reader, Connection)
                index = readers.pop(reader)
                try:
                    error, result = reader.recv()
                except EOFError:
                    raise RankError(f"rank {index} of {world_size} died") from None
                if error is not None:
                    raise RankError(f"rank {index} of {world_size}:\n{error}")
                results[index] = result
        return [results[index] for index in range(world_size)]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _run(
    writer: Connection,
    sees_gpus: bool,
    body: Callable[..., Any],
    rank: TrainerRank,
    args: Any,
    kwargs: Any,
) -> None:
    import torch

    if not sees_gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()  # what changes its place collects garbage, and would search all libraries' objects each time
    torch.set_num_threads(1)
    try:
        writer.send((None, body(rank, *args, **kwargs)))
    except BaseException:  # noqa: BLE001 - whatever it was, the test shows it
        writer.send((traceback.format_exc(), None))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
