"""Hosts of a fleet that work, fail or hang as a test says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import (
    ExecEnd,
    ExecResult,
    Image,
    Limits,
    SandboxError,
    SandboxesFull,
    SandboxUnavailable,
    Snapshot,
)
from envsdk.rewards.sandbox.bubblewrap import BubblewrapBackend
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox

FAKE = f"{__name__}:FakeBackend"
SLOW = f"{__name__}:SlowBubblewrap"
_NUMBERS = itertools.count()


@dataclass
class FakeHost:
    """One host's behavior, and what it holds."""

    starts: str = "at once"
    """`at once`, `never`, `fails`, `is full`, `refuses`."""
    answers: bool = True
    """Whether its sandboxes do; otherwise calls hang."""
    is_open: bool = False
    sandboxes: set[str] = field(default_factory=set)
    num_started: int = 0

    async def answer(self) -> None:
        if not self.answers:
            await asyncio.Event().wait()


HOSTS: dict[str, FakeHost] = {}


@dataclass(eq=False)
class FakeSandbox:
    host: FakeHost
    image: Image
    id: str = field(default_factory=lambda: f"fake-{next(_NUMBERS)}")

    def __post_init__(self) -> None:
        self.host.sandboxes.add(self.id)
        self.host.num_started += 1

    async def exec(self, script: str, **_: Any) -> ExecResult:
        await self.host.answer()
        if script == "break":
            return ExecResult.infrastructure("broken")
        if script == "wait":
            await asyncio.Event().wait()
        return ExecResult(output=script, returncode=0, reason=ExecEnd.EXIT, elapsed_s=0, total_bytes=0)

    async def read(self, path: str, *, max_bytes: int = 0) -> bytes:
        await self.host.answer()
        raise SandboxError(f"{path}: the connection was reset")

    async def write(self, path: str, data: bytes) -> None: ...
    async def diff(self) -> str:
        return ""

    async def pack(self, *, max_bytes: int = 0) -> bytes:
        return b""

    async def unpack(self, archive: bytes) -> None: ...
    async def snapshot(self) -> Snapshot:
        return object()

    async def restore(self, snapshot: Snapshot) -> None: ...
    async def fork(self, *, binds: Mapping[str, Path] | None = None) -> FakeSandbox:
        return FakeSandbox(self.host, self.image)

    async def is_full(self) -> bool:
        return False

    async def alive(self) -> bool:
        await self.host.answer()
        return self.id in self.host.sandboxes

    async def close(self) -> None:
        await self.host.answer()
        self.host.sandboxes.discard(self.id)


class FakeBackend:
    name = "fake"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.host = HOSTS[settings["host"]]

    async def probe(self) -> None:
        if self.host.starts != "at once":
            raise SandboxUnavailable(f"it {self.host.starts}")

    async def start(self, image: Image, *, limits: Limits | None = None) -> FakeSandbox:
        self.host.is_open = True
        match self.host.starts:
            case "never":
                await asyncio.Event().wait()
            case "fails":
                raise SandboxError("no disk")
            case "is full" if len(self.host.sandboxes) == 1:
                raise SandboxesFull("one sandbox, and no more")
            case "refuses":
                raise ConfigurationError("no containers here")
        return FakeSandbox(self.host, image)

    async def aclose(self) -> None:
        self.host.is_open = False


class SlowBubblewrap(BubblewrapBackend):
    """Takes a second for each start."""

    async def start(self, image: Image, *, limits: Limits | None = None) -> BubblewrapSandbox:
        await asyncio.sleep(1.0)
        return await super().start(image, limits=limits)
