"""Weights go over the network between real processes that come, die and hang."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from envsdk.weights.server import WeightReader, WeightServer
from envsdk.weights.versions import VersionGone

ROOT = Path(__file__).parents[3]
ADDRESS, KEY = "127.0.0.1", "a job"
BUCKET_BYTES = 1 << 16

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def weights_at(step: int) -> Iterator[tuple[str, NDArray[Any]]]:
    rng = np.random.default_rng(step)
    for index in range(8):
        yield f"layer.{index}", rng.standard_normal((50, 20 * index + 1)).astype(np.float32)
    yield "large", rng.standard_normal(40_000).astype(np.float32)
    yield "scalar", np.array(step, np.float32)
    yield "empty", np.zeros((0, 3), np.float16)


def total(step: int) -> float:
    return float(sum(np.float64(array).sum() for _, array in weights_at(step)))


_READER = """
import json, os, signal, sys
import torch
from envsdk.weights import server
from envsdk.weights.versions import VersionGone

original, deed = server.read_buckets, ""

def read_buckets(buckets):
    def counted():
        for index, bucket in enumerate(buckets):
            if index == 2 and deed:
                print(json.dumps("now"), flush=True)
                os.kill(os.getpid(), getattr(signal, deed))
            yield bucket
    return original(counted())

server.read_buckets = read_buckets
reader = server.WeightReader(sys.argv[1])
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    port, key, deed = json.loads(line)
    try:
        version, step, weights = reader.read("127.0.0.1", port, key, patience_s=30)
        total = float(sum(tensor.double().sum() for tensor in weights.values()))
        print(json.dumps([version, step, len(weights), total]), flush=True)
    except VersionGone as error:
        print(json.dumps(str(error)), flush=True)
"""


class Explorer:
    """A process that reads when it is asked to."""

    def __init__(self, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _READER, name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.is_ready = False

    def ask(self, server: WeightServer, deed: str = "") -> None:
        assert self.process.stdin is not None
        print(json.dumps([server.port, KEY, deed]), file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


Start = Callable[..., list[Explorer]]


@pytest.fixture(scope="module")
def explorers() -> Iterator[Start]:
    """Processes that take long to start: those that live are used again."""
    started: dict[str, Explorer] = {}

    def start(*names: str) -> list[Explorer]:
        for name in names:
            if name not in started or started[name].process.poll() is not None:
                started[name] = Explorer(name)
        for name in names:
            explorer = started[name]
            explorer.is_ready = explorer.is_ready or explorer.answer() == "ready"
        return [started[name] for name in names]

    for name in ("a", "b", "c"):
        started[name] = Explorer(name)
    yield start
    for explorer in started.values():
        explorer.process.kill()
        explorer.process.communicate()


@contextmanager
def serving(*, timeout_s: float = 20) -> Iterator[WeightServer]:
    server = WeightServer(ADDRESS, KEY, timeout_s=timeout_s)
    try:
        yield server
    finally:
        server.close()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_got(answer: Any, version: int) -> None:
    assert answer == [version, 10 * version, 11, pytest.approx(total(version))]


def answer_in_the_end(explorer: Explorer, server: WeightServer) -> Any:
    """Of one that asks again when its round broke."""
    while isinstance(answer := explorer.answer(), str):
        assert "gave no weights" in answer
        explorer.ask(server)
    return answer


def hold(server: WeightServer, version: int) -> None:
    server.hold(version, 10 * version, weights_at(version), BUCKET_BYTES)


def test_all_that_ask_get_every_weight_and_a_late_one_gets_the_newest(explorers: Start) -> None:
    a, b, late = explorers("a", "b", "c")
    with serving() as server:
        for explorer in (a, b):
            explorer.ask(server)
        hold(server, 1)
        for explorer in (a, b):
            assert_got(explorer.answer(), 1)
        hold(server, 2)
        for explorer in (a, b):
            explorer.ask(server)
        for explorer in (a, b):
            assert_got(explorer.answer(), 2)
        late.ask(server)
        assert_got(late.answer(), 2)
        assert server.take_news() == []


@pytest.mark.parametrize("deed", ["SIGSTOP", "SIGKILL"])
def test_one_that_hangs_or_dies_while_it_reads_is_named_and_the_other_gets_the_weights(
    deed: str, explorers: Start
) -> None:
    a, bad = explorers("a", "b")
    with serving(timeout_s=1) as server:
        news: list[str] = []
        hold(server, 1)
        bad.ask(server, deed)
        a.ask(server)
        assert bad.answer() == "now"
        assert_got(answer_in_the_end(a, server), 1)
        until(lambda: bool(news.extend(server.take_news()) or news))
        assert any(line.startswith("b did not take the weights of version 1 within") for line in news)
        hold(server, 2)
        a.ask(server)
        assert_got(answer_in_the_end(a, server), 2)
        if deed == "SIGSTOP":
            os.kill(bad.process.pid, signal.SIGCONT)
            assert "gave no weights" in bad.answer()
            bad.ask(server)
            assert_got(answer_in_the_end(bad, server), 2)
        else:
            bad.process.wait()


def test_those_that_end_before_there_are_weights_or_never_ask_hold_up_nobody(explorers: Start) -> None:
    a, gone = explorers("a", "c")
    with serving() as server, socket.create_connection((ADDRESS, server.port)) as silent:
        silent.sendall(b"not JSON\n")
        gone.ask(server)
        gone.process.kill()
        gone.process.wait()
        with socket.create_connection((ADDRESS, server.port)):
            hold(server, 1)
            a.ask(server)
            assert_got(a.answer(), 1)


def test_a_reader_says_so_when_the_trainer_is_gone_or_another_job_is_in_its_place() -> None:
    with serving() as server:
        with pytest.raises(VersionGone, match="did not send them within 0"):
            WeightReader("a").read(ADDRESS, server.port, KEY, patience_s=0)
        hold(server, 1)
        with pytest.raises(VersionGone, match=r"at 127\.0\.0\.1:\d+ is another job's"):
            WeightReader("a").read(ADDRESS, server.port, "other", patience_s=5)
        port = server.port
    with pytest.raises(VersionGone, match=rf"the trainer at 127\.0\.0\.1:{port} gave no weights"):
        WeightReader("a").read(ADDRESS, port, KEY, patience_s=5)


def test_a_trainer_that_ends_ends_those_that_wait_for_its_weights() -> None:
    with serving() as server, ThreadPoolExecutor() as pool:
        waiting = pool.submit(WeightReader("a").read, ADDRESS, server.port, KEY, patience_s=60)
        with socket.create_connection((ADDRESS, server.port)):  # accepted after the one that waits
            server.close()
        with pytest.raises(VersionGone, match="gave no weights"):
            waiting.result()


def test_a_reader_that_is_closed_stops_waiting() -> None:
    with serving() as server, ThreadPoolExecutor() as pool:
        reader = WeightReader("a")
        waiting = pool.submit(reader.read, ADDRESS, server.port, KEY, patience_s=60)
        reader.close()
        with pytest.raises(VersionGone, match="gave no weights"):
            waiting.result()


def test_bytes_that_are_not_what_the_trainer_sent_are_refused() -> None:
    with serving() as server, socket.create_server((ADDRESS, 0)) as between:
        hold(server, 1)

        def damage() -> None:
            reader, _ = between.accept()
            with reader, socket.create_connection((ADDRESS, server.port)) as trainer:
                trainer.sendall(reader.recv(4096))
                with trainer.makefile("rb") as stream:
                    head = stream.readline()
                    data = bytearray(stream.read(json.loads(head)["buckets"][0]["num_bytes"]))
                data[-1] ^= 1
                reader.sendall(head + data)

        with ThreadPoolExecutor() as pool:
            pool.submit(damage)
            with pytest.raises(VersionGone, match="bucket 0 is not what the trainer sent"):
                WeightReader("a").read(ADDRESS, between.getsockname()[1], KEY, patience_s=5)
