"""Weights by broadcast between programs that share nothing but a network.

    server (trainer's first rank):  hold -> (hold)* -> close      rounds meanwhile, in threads
    reader (explorer):              ask -> plan -> index -> buckets -> got

Readers ask whenever they want the newest weights: those that ask at about the same time receive one
broadcast, a late one receives one of its own. Training waits for none of them: what is held is a copy. One
that holds up the others has its rounds alone from then on.

Asks and plans are JSON in a store of `torch.distributed`, weights travel in a group that lasts for one round.
"""

from __future__ import annotations

import json
import queue
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from envsdk.failures import EngineError
from envsdk.inference.weight_buckets import (
    Bucket,
    Buffer,
    Chunk,
    UpdateInterrupted,
    fill_buckets,
    read_buckets,
)
from envsdk.job.version_folders import VersionGone
from envsdk.net.rendezvous import host_store, join_store

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import TCPStore

    from envsdk.inference.weight_group import WeightGroup

LOOK_S = 0.005
"""How often both sides look for the other's answer."""
GATHER_S = 1.0
"""How long those that ask wait for others that took part in the round before."""
MEET_S = 10.0
"""How long a round waits for those that asked."""
ANSWER_S = 30.0
"""How long one broadcast of a bucket waits for a member, unless a full round has less time."""
NOTICE_S = 1.0
"""How long a program that lives takes to notice that its round broke."""
STORE_TIMEOUT = timedelta(seconds=10)
_WORDS = ("ask", "plan", "at", "got", "lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    number: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What one that asked is told about its round."""

    port: int
    rank: int
    world_size: int
    version: int
    step: int
    index_bytes: int
    timeout_s: float
    """How long a member waits for one that does not answer."""


@dataclass(frozen=True, slots=True)
class _Held:
    version: int
    step: int
    buckets: list[Bucket]
    index: Buffer


class WeightServer:
    """Owner: the process of the trainer's first rank. Its threads end with the process, or with `close`."""

    def __init__(self, address: str, key: str, *, timeout_s: float) -> None:
        """`timeout_s`: how long one round may take."""
        self.address = address
        self._key = key
        self._timeout_s = timeout_s
        self._store = host_store(address, 0, 1, timeout=STORE_TIMEOUT, wait_for_all=False)
        self.port = int(self._store.port)
        self._store.set(f"key/{key}", "")
        self._lock = threading.Lock()
        self._held: _Held | None = None
        self._news: list[str] = []
        self._slow: set[str] = set()
        self._expected: set[str] = set()
        """Readers of the version before."""
        self._served: set[str] = set()
        """Readers of this version."""
        self._is_closed = threading.Event()
        self._lanes: dict[bool, queue.SimpleQueue[list[_Ask] | None]] = {
            is_slow: queue.SimpleQueue() for is_slow in (False, True)
        }
        work: list[Callable[[], None]] = [self._listen, *(lambda s=s: self._work(s) for s in self._lanes)]
        self._threads = [threading.Thread(target=each, daemon=True) for each in work]
        for thread in self._threads:
            thread.start()

    def hold(self, version: int, step: int, weights: Iterable[tuple[str, Any]], bucket_bytes: int) -> None:
        """Copy the weights, and serve them from now on."""
        with self._lock:
            self._held = None  # the memory is needed; who asks waits
        buckets = list(fill_buckets(weights, lambda: np.empty(bucket_bytes, np.uint8)))
        index = json.dumps(
            [
                {
                    "num_bytes": len(bucket.data),
                    "crc32": zlib.crc32(np.asarray(bucket.data).data),
                    "chunks": [asdict(chunk) for chunk in bucket.chunks],
                }
                for bucket in buckets
            ]
        )
        with self._lock:
            self._held = _Held(version, step, buckets, np.frombuffer(index.encode(), np.uint8).copy())
            self._expected, self._served = self._served or self._expected, set()

    def take_news(self) -> list[str]:
        """Lines for the user since the last call."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def close(self) -> None:
        """Serve nobody any more. Idempotent."""
        self._is_closed.set()
        for lane in self._lanes.values():
            lane.put(None)
        for thread in self._threads:
            thread.join(timeout=MEET_S)
        del self._store  # and with it the port

    def _listen(self) -> None:
        """Collect those that ask into rounds."""
        last, announced, waiting, since = 0, dict[int, float](), list[_Ask](), 0.0
        while not self._is_closed.wait(LOOK_S):
            now = time.monotonic()
            newest = int(self._store.add("asks", 0))
            announced |= dict.fromkeys(range(last + 1, newest + 1), now)
            last = newest
            for number in [number for number in announced if self._store.check([f"ask/{number}"])]:
                del announced[number]
                ask = _Ask(number=number, name=self._store.get(f"ask/{number}").decode())
                with self._lock:
                    is_slow = ask.name in self._slow
                if is_slow:
                    self._lanes[True].put([ask])
                    continue
                since = since if waiting else now
                waiting.append(ask)
            # One that counted itself and then ended never says who it is.
            announced = {number: at for number, at in announced.items() if now - at < MEET_S}
            with self._lock:
                missing = self._expected - self._served - self._slow - {ask.name for ask in waiting}
                is_held = self._held is not None
            if waiting and is_held and (not missing or now - since > GATHER_S):
                self._lanes[False].put(waiting)
                waiting = []

    def _work(self, is_slow: bool) -> None:
        while (asks := self._lanes[is_slow].get()) is not None:
            with self._lock:
                held = self._held
                self._served |= {ask.name for ask in asks}
            if held is None:
                time.sleep(LOOK_S)
                self._lanes[is_slow].put(asks)
                continue
            began = time.monotonic()
            try:
                self._serve(held, asks)
                with self._lock:
                    self._slow -= {ask.name for ask in asks}
            except (UpdateInterrupted, RuntimeError) as error:
                self._blame(held.version, asks, time.monotonic() - began, error)
            for ask in asks:
                for word in _WORDS:
                    self._store.delete_key(f"{word}/{ask.number}")

    def _serve(self, held: _Held, asks: list[_Ask]) -> None:
        from envsdk.inference.weight_group import WeightGroup

        answer_s = min(ANSWER_S, self._timeout_s)
        world_size, timeout = len(asks) + 1, timedelta(seconds=answer_s)
        group = WeightGroup.host(self.address, world_size=world_size, timeout=timeout)
        deadline = time.monotonic() + self._timeout_s
        try:
            for rank, ask in enumerate(asks, start=1):
                plan = _Plan(
                    port=group.port,
                    rank=rank,
                    world_size=world_size,
                    version=held.version,
                    step=held.step,
                    index_bytes=len(held.index),
                    timeout_s=answer_s,
                )
                self._store.set(f"plan/{ask.number}", json.dumps(asdict(plan)))
            self._until(group.gather, min(MEET_S, self._timeout_s))
            for data in (held.index, *(bucket.data for bucket in held.buckets)):
                if time.monotonic() > deadline:
                    raise UpdateInterrupted(f"it took more than {self._timeout_s:g} s")
                if len(data):
                    group.broadcast(data).wait()
            self._until(lambda: all(self._says("got", ask) for ask in asks), deadline - time.monotonic())
        finally:
            group.close()

    def _until(self, holds: Callable[[], bool], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while not holds():
            if self._is_closed.is_set() or time.monotonic() > deadline:
                raise UpdateInterrupted(f"no answer within {max(0.0, patience_s):.0f} s")
            time.sleep(LOOK_S)

    def _says(self, word: str, ask: _Ask) -> bool:
        return bool(self._store.check([f"{word}/{ask.number}"]))

    def _has_ended(self, ask: _Ask) -> bool:
        return self._says("got", ask) or self._says("lost", ask)

    def _blame(self, version: int, asks: list[_Ask], seconds: float, error: Exception) -> None:
        """A round broke. Those that do not notice held it up, or else those that came least far."""
        with suppress(UpdateInterrupted):
            self._until(
                lambda: all(self._says("got", ask) or self._says("lost", ask) for ask in asks), NOTICE_S
            )
        behind = [ask for ask in asks if not self._says("got", ask)]
        guilty = [ask for ask in behind if not self._says("lost", ask)]
        if not guilty and behind:
            reached = [self._progress(ask) for ask in behind]
            guilty = [ask for ask, far in zip(behind, reached, strict=True) if far == min(reached)]
        with self._lock:
            self._served -= {ask.name for ask in behind}
            self._slow |= {ask.name for ask in guilty}
            if guilty:
                names = ", ".join(sorted(ask.name for ask in guilty))
                self._news.append(
                    f"{names} did not take the weights of version {version} within {seconds:.1f} s "
                    f"({_first_line(error)}): the others get them without waiting for it"
                )

    def _progress(self, ask: _Ask) -> int:
        return int(self._store.get(f"at/{ask.number}")) if self._says("at", ask) else -1


class WeightReader:
    """A program's end. Used from one thread; `close` may come from any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_closed = threading.Event()
        self._group: WeightGroup | None = None

    def read(
        self, address: str, port: int, key: str, *, patience_s: float
    ) -> tuple[int, int, dict[str, Tensor]]:
        """Version, step and tensors of what the server holds now. Blocks; VersionGone when it fails."""
        from envsdk.inference.weight_tensors import as_tensors

        where = f"the trainer at {address}:{port}"
        try:
            # A store that is not there would be waited for, with a page of warnings.
            with socket.create_connection((address, port), timeout=STORE_TIMEOUT.total_seconds()):
                pass
            store = join_store(address, port, 1, timeout=STORE_TIMEOUT, wait_for_all=False)
            if not store.check([f"key/{key}"]):
                raise VersionGone(f"{where} is another job's: this job's is gone")
            number = int(store.add("asks", 1))
            store.set(f"ask/{number}", self._name)
            plan = self._plan(store, number, patience_s)
            try:
                weights = dict(as_tensors(read_buckets(self._buckets(store, number, address, plan))))
            except EngineError:
                store.set(f"lost/{number}", "")
                raise
            finally:
                self.close_group()
            store.set(f"got/{number}", "")
        except VersionGone:
            raise
        except (EngineError, RuntimeError, OSError) as error:
            raise VersionGone(f"{where} gave no weights: {_first_line(error)}") from error
        return plan.version, plan.step, weights

    def close(self) -> None:
        """End a `read` that is under way. Idempotent."""
        self._is_closed.set()
        self.close_group()

    def close_group(self) -> None:
        """Leave the round."""
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _plan(self, store: TCPStore, number: int, patience_s: float) -> _Plan:
        deadline = time.monotonic() + patience_s
        while not store.check([f"plan/{number}"]):
            if self._is_closed.wait(LOOK_S) or time.monotonic() > deadline:
                raise UpdateInterrupted(f"the trainer did not send them within {patience_s:g} s")
        return _Plan(**json.loads(store.get(f"plan/{number}")))

    def _buckets(self, store: TCPStore, number: int, address: str, plan: _Plan) -> Iterator[Bucket]:
        from envsdk.inference.weight_group import WeightGroup

        timeout = timedelta(seconds=plan.timeout_s)
        group = WeightGroup.join(
            address, plan.port, rank=plan.rank, world_size=plan.world_size, timeout=timeout
        )
        self._group = group
        index = json.loads(group.receive(plan.index_bytes).tobytes())
        for reached, entry in enumerate(index):
            data = group.receive(entry["num_bytes"]) if entry["num_bytes"] else np.empty(0, np.uint8)
            if zlib.crc32(data.data) != entry["crc32"]:
                raise UpdateInterrupted(f"bucket {reached} is not what the trainer sent")
            store.set(f"at/{number}", str(reached))
            yield Bucket(tuple(Chunk(**{**c, "shape": tuple(c["shape"])}) for c in entry["chunks"]), data)


def _first_line(error: Exception) -> str:
    """Without the source position that libraries write before it, and the advice after it."""
    line = str(error).strip().partition("\n")[0].partition(". This is typically")[0]
    return re.sub(r"\[/[^]]*\] ", "", line)
