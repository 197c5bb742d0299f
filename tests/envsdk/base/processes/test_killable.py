"""Forked processes that answer calls: large answers, death, and answers that stop half way."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import stat
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import pytest
import pytest_asyncio

from envsdk.base.processes.forked import ForkedProcesses
from envsdk.base.processes.killable import KillableProcess
from envsdk.contracts.failures import Boundary, Failure


class Served:
    def repeat(self, text: str, times: int) -> str:
        return text * times

    def die(self, code: int) -> None:
        os._exit(code)

    def stop_half_way(self, length: int) -> None:
        """Announce an answer of this length and send two bytes of it."""
        for name in os.listdir("/proc/self/fd"):
            if os.path.exists(f"/proc/self/fd/{name}") and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    connection.send(struct.pack("!i", length) + b"ab")
        time.sleep(3600)


@dataclass(frozen=True)
class ServedBlueprint:
    def build(self) -> Served:
        return Served()

    def failure_of(self, error: BaseException, verb: str) -> Failure:
        return Failure.from_exception(Boundary.ENVIRONMENT, error, kind=verb)


@pytest_asyncio.fixture
async def process() -> AsyncIterator[KillableProcess]:
    processes = ForkedProcesses(preload=partial(import_module, __name__))
    process = await KillableProcess.fork(processes)
    assert pickle.loads(await process.ask("start", {"blueprint": ServedBlueprint()})) == (True, None)
    yield process
    process.end()
    process.end()
    await asyncio.to_thread(processes.close)


async def test_answers_of_any_size_come_one_after_another(process: KillableProcess) -> None:
    for times in (1, 1 << 21, 1, 0):
        answer = pickle.loads(await process.ask("repeat", {"text": "abc", "times": times}))
        assert answer == (True, "abc" * times)
    assert not process.has_ended


@pytest.mark.parametrize("code", [0, 3])
async def test_a_process_that_dies_tells_its_exit_code(process: KillableProcess, code: int) -> None:
    with pytest.raises(EOFError):
        await process.ask("die", {"code": code})
    assert await process.exit_code() == code
    with pytest.raises(EOFError):
        await process.ask("repeat", {"text": "", "times": 1})


async def test_an_answer_that_stops_half_way_blocks_nobody_else(process: KillableProcess) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.ask("stop_half_way", {"length": 100}), 1.0)


async def test_what_is_no_answer_counts_as_death(process: KillableProcess) -> None:
    with pytest.raises(EOFError):
        await process.ask("stop_half_way", {"length": -1})
