"""Several ranks of a trainer in processes of their own, for tests.

    results = run_ranks(2, body, argument)     # body(rank, argument) on each; one result per rank

`body` is a function of a test module. Ranks are forked from a server that has imported the libraries
once, never from the test process, whose autograd threads would not survive it.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, Concatenate, ParamSpec, TypeVar

from envsdk.training import TrainerRank

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
    """`body(rank, *args)` on every rank at once. RankError tells what went wrong on the first to fail.

    No rank outlives the call, nor the test process.
    """
    deadline = time.monotonic() + TIMEOUT_S
    port = _free_port()
    processes: list[ForkServerProcess] = []
    readers: dict[Connection, int] = {}
    results: dict[int, T] = {}
    try:
        for index in range(world_size):
            rank = TrainerRank(rank=index, world_size=world_size, local_rank=index, master_port=port)
            reader, writer = _context.Pipe(duplex=False)
            process = _context.Process(target=_run, args=(writer, body, rank, args, kwargs), daemon=True)
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


def _run(writer: Connection, body: Callable[..., Any], rank: TrainerRank, args: Any, kwargs: Any) -> None:
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
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


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
