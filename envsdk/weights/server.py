"""Weights between programs that share nothing but a network: each that asks gets a stream of its own.

    server (trainer's first rank):  hold -> (hold)* -> close          one thread for each reader meanwhile
    reader (explorer):              read = ask -> head -> buckets -> taken

A reader asks whenever it wants the newest weights. Nobody waits for it: what is held is a copy, and a reader
that is late, slow or dead has its stream to itself. The ask and the head are lines of JSON.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from typing import TYPE_CHECKING, Any

import numpy as np

from envsdk.contracts.failures import EngineError
from envsdk.weights.buckets import Bucket, UpdateInterrupted, fill_buckets, read_buckets
from envsdk.weights.folders import as_tensors
from envsdk.weights.versions import VersionGone

if TYPE_CHECKING:
    from torch import Tensor

GREETING_S = 10.0
"""How long a connection and its ask may take."""
ANSWER_S = 30.0
"""How long either side waits for the other to take or send a bucket."""
_LONGEST_ASK = 4096
_RESET = struct.pack("ii", 1, 0)
"""Value of `SO_LINGER`: a closed connection forgets what its reader has not taken."""


@dataclass(frozen=True, slots=True)
class _Held:
    version: int
    step: int
    buckets: list[Bucket]
    head: bytes


class WeightServer:
    """Owner: the process of the trainer's first rank. Its threads end with the process, or with `close`."""

    def __init__(self, address: str, key: str, *, timeout_s: float) -> None:
        """`timeout_s`: how long one stream may take."""
        self.address = address
        self._key = key
        self._timeout_s = timeout_s
        self._listener = socket.create_server((address, 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._changed = threading.Condition()
        """Guards what follows."""
        self._held: _Held | None = None
        self._news: list[str] = []
        self._open: set[socket.socket] = set()
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, version: int, step: int, weights: Iterable[tuple[str, Any]], bucket_bytes: int) -> None:
        """Copy the weights, and serve them from now on."""
        with self._changed:
            self._held = None  # the memory is needed; who asks waits
        buckets = list(fill_buckets(weights, lambda: np.empty(bucket_bytes, np.uint8)))
        indices = [bucket.index | {"crc32": zlib.crc32(_bytes(bucket))} for bucket in buckets]
        head = json.dumps({"version": version, "step": step, "buckets": indices}).encode() + b"\n"
        with self._changed:
            self._held = _Held(version, step, buckets, head)
            self._changed.notify_all()

    def take_news(self) -> list[str]:
        """Lines for the user since the last call."""
        with self._changed:
            news, self._news = self._news, []
        return news

    def close(self) -> None:
        """Serve nobody any more. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            for each in (self._listener, *self._open):
                with suppress(OSError):  # it may never have been connected
                    each.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            with self._changed:
                if self._is_closed:
                    return
                self._open.add(connection)
            try:
                self._serve(connection)
            except (OSError, ValueError, TypeError, KeyError):
                pass  # it never said who it is
            finally:
                with self._changed:
                    self._open.discard(connection)

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(GREETING_S)
        with connection.makefile("rb") as lines:
            ask = json.loads(lines.readline(_LONGEST_ASK))
        if ask["key"] != self._key:
            connection.sendall(b"{}\n")
            return
        with self._changed:
            self._changed.wait_for(lambda: self._held is not None or self._is_closed)
            held = self._held
        if held is None:
            return
        began = time.monotonic()
        try:
            self._allow(connection, began)
            connection.sendall(held.head)
            for bucket in held.buckets:
                self._allow(connection, began)
                connection.sendall(_bytes(bucket))
            self._allow(connection, began)
            if not connection.recv(1):
                raise ConnectionError("it ended")
        except OSError as error:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            seconds = time.monotonic() - began
            with self._changed:
                self._news.append(
                    f"{ask['name']} did not take the weights of version {held.version} within "
                    f"{seconds:.1f} s ({error}): the others get them without waiting for it"
                )

    def _allow(self, connection: socket.socket, began: float) -> None:
        """Set how long the next step may take. TimeoutError when there is no time left."""
        left = began + self._timeout_s - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(min(ANSWER_S, left))


class WeightReader:
    """A program's end. Used from one thread; `close` may come from any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._is_closed = False
        self._connection: socket.socket | None = None

    def read(
        self, address: str, port: int, key: str, *, patience_s: float
    ) -> tuple[int, int, dict[str, Tensor]]:
        """Version, step and tensors of what the server holds now. Blocks; VersionGone when it fails."""
        where = f"the trainer at {address}:{port}"
        try:
            with socket.create_connection((address, port), timeout=GREETING_S) as connection:
                self._use(connection)
                connection.sendall(json.dumps({"key": key, "name": self._name}).encode() + b"\n")
                with connection.makefile("rb") as stream:
                    head = self._head(connection, stream, patience_s)
                    if not head:
                        raise VersionGone(f"{where} is another job's: this job's is gone")
                    weights = dict(read_buckets(_buckets(stream, head["buckets"])))
                connection.sendall(b"!")
                return head["version"], head["step"], dict(as_tensors(weights))
        except VersionGone:
            raise
        except (EngineError, OSError, ValueError) as error:
            raise VersionGone(f"{where} gave no weights: {error}") from error
        finally:
            self._use(None)

    def close(self) -> None:
        """End a `read` that is under way. Idempotent."""
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)

    def _use(self, connection: socket.socket | None) -> None:
        with self._lock:
            self._connection = connection
            if self._is_closed and connection is not None:
                raise UpdateInterrupted("this program ends")

    def _head(self, connection: socket.socket, stream: BufferedReader, patience_s: float) -> dict[str, Any]:
        """Version, step and buckets, when the server has some; nothing when it is another job's."""
        connection.settimeout(max(patience_s, 0.001))
        try:
            line = stream.readline()
        except TimeoutError:
            raise UpdateInterrupted(f"the trainer did not send them within {patience_s:g} s") from None
        connection.settimeout(ANSWER_S)
        head: dict[str, Any] = json.loads(line or "null") or {}
        if not line.endswith(b"\n"):
            raise UpdateInterrupted("the trainer ended")
        return head


def _buckets(stream: BufferedReader, indices: Iterable[Mapping[str, Any]]) -> Iterator[Bucket]:
    for number, index in enumerate(indices):
        data = np.empty(index["num_bytes"], np.uint8)
        if stream.readinto(data.data) != len(data):
            raise UpdateInterrupted(f"the trainer ended after {number} buckets")
        bucket = Bucket.of(index, data)
        if zlib.crc32(_bytes(bucket)) != index["crc32"]:
            raise UpdateInterrupted(f"bucket {number} is not what the trainer sent")
        yield bucket


def _bytes(bucket: Bucket) -> memoryview:
    return np.asarray(bucket.data).data
