"""One leased sandbox of a fleet: the host's, until either is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Protocol, TypeVar

from envsdk.rewards.sandbox.contract import (
    ExecEnd,
    ExecResult,
    Sandbox,
    SandboxError,
    SandboxFileError,
)

T = TypeVar("T")
_CANCEL_TIMEOUT_S = 20.0


class Holder(Protocol):
    """The fleet, as its sandboxes see it."""

    def lost(self, number: int, why: str) -> None: ...
    def worked(self, number: int) -> None: ...
    def adopted(self, parent: int, copy: Sandbox) -> FleetSandbox | None: ...
    async def give_back(self, number: int, *, waits: bool) -> None: ...


class FleetSandbox:
    """leased --closed, or its host is taken for dead--> lost: every call fails at once"""

    def __init__(self, fleet: Holder, number: int, inner: Sandbox) -> None:
        self._fleet = fleet
        self._number = number
        self._inner = inner
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def is_lost(self, why: str) -> None:
        """End all calls."""
        if not self._lost.done():
            self._lost.set_result(why)

    async def exec(self, script: str, *, timeout_s: float, **how: Any) -> ExecResult:
        running = self._inner.exec(script, timeout_s=timeout_s, **how)
        try:
            result = await self._answer(running)
        except SandboxError as error:
            return ExecResult.infrastructure(str(error))
        if result.reason is ExecEnd.INFRASTRUCTURE:
            self._fleet.lost(self._number, result.output)
        return result

    def __getattr__(self, name: str) -> Any:
        """The contract's other methods, none of which needs more than the host's answer."""
        call = getattr(self._inner, name)
        return partial(self._passed_on, call) if iscoroutinefunction(call) else call

    async def _passed_on(self, call: Callable[..., Coroutine[Any, Any, T]], *args: Any, **named: Any) -> T:
        return await self._answer(call(*args, **named))

    async def fork(self, *, binds: Mapping[str, Path] | None = None) -> FleetSandbox:
        copy = await self._answer(self._inner.fork(binds=binds))
        if (adopted := self._fleet.adopted(self._number, copy)) is None:
            await copy.close()
            raise SandboxError(f"sandbox {self.id}: {self._lost.result()}")
        return adopted

    async def alive(self) -> bool:
        try:
            return not self._lost.done() and await self._answer(self._inner.alive())
        except SandboxError:
            return False

    async def close(self) -> None:
        # Of one that is lost, nobody waits for the end.
        await self._fleet.give_back(self._number, waits=not self._lost.done())

    async def _answer(self, call: Coroutine[Any, Any, T]) -> T:
        """The host's answer.

        Raises SandboxError: it failed, or the sandbox was lost meanwhile.
        """
        if self._lost.done():
            call.close()
            raise SandboxError(f"sandbox {self.id}: {self._lost.result()}")
        running: asyncio.Future[T] = asyncio.ensure_future(call)
        try:
            await asyncio.wait([running, self._lost], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait({running}, timeout=_CANCEL_TIMEOUT_S)
            raise
        if not running.done():
            running.cancel()
            raise SandboxError(f"sandbox {self.id}: {self._lost.result()}")
        try:
            answer = running.result()
        except SandboxError as error:
            self._fleet.lost(self._number, str(error))
            raise
        except SandboxFileError:
            self._fleet.worked(self._number)
            raise
        self._fleet.worked(self._number)
        return answer
