"""Sandboxes of episodes: one backend for each event loop, and a sandbox that starts when it is first used.

backends = shared_backends("bubblewrap", {})        # of all environments of this process
lazy = LazySandbox(start)                           # nothing is started yet
sandbox = await lazy.started()
await lazy.close()
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import contextlib
import json
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envsdk.rewards.sandbox import Sandbox, SandboxBackend, SandboxError, open_backend

_CLOSE_TIMEOUT_S = 20.0


@dataclass(slots=True)
class _OnLoop:
    """A backend and what belongs to its event loop."""

    backend: SandboxBackend
    probing: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_probed: bool = False
    closer: AsyncGenerator[None, None] | None = None


class LoopBackends:
    """A backend of one kind for each event loop: probed once, closed as its loop ends."""

    def __init__(self, make: Callable[[], SandboxBackend]) -> None:
        self._make = make
        # Made here, so that wrong settings are refused here.
        self._unused: list[SandboxBackend] = [make()]
        self._on_loops: dict[asyncio.AbstractEventLoop, _OnLoop] = {}
        self._lock = threading.Lock()

    async def probed(self) -> SandboxBackend:
        """The backend of this event loop, which is known to work."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._on_loops:
                backend = self._unused.pop() if self._unused else self._make()
                self._on_loops[loop] = _OnLoop(backend)
        here = self._on_loops[loop]
        async with here.probing:
            if here.closer is None:
                here.closer = self._closed_with(loop)
                await anext(here.closer)
            if not here.is_probed:
                await here.backend.probe()
                here.is_probed = True
        return here.backend

    def close(self) -> None:
        """Remove every sandbox of loops that run on other threads. A loop that ends removes its own."""
        for loop, here in list(self._on_loops.items()):
            if loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(here.backend.aclose(), loop)
                with contextlib.suppress(TimeoutError):
                    closing.result(_CLOSE_TIMEOUT_S)

    async def _closed_with(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        """Removes the sandboxes of `loop` as it ends: it closes its generators then."""
        try:
            yield
        finally:
            await self._on_loops.pop(loop).backend.aclose()


class LazySandbox:
    """A sandbox of one episode: not started -> `started()` -> `close()`, which may be left out."""

    def __init__(self, start: Callable[[], Awaitable[Sandbox]]) -> None:
        self._start: Callable[[], Awaitable[Sandbox]] | None = start
        self._sandbox: asyncio.Task[Sandbox] | None = None
        self._let_go: weakref.finalize[..., Any] | None = None

    @property
    def is_started(self) -> bool:
        """Still true of one that is closed."""
        return self._start is None or self._sandbox is not None

    async def started(self) -> Sandbox:
        """The sandbox. Where starting it fails, the next call tries again.

        Raises SandboxError: it is closed, or could not be started.
        """
        if self._sandbox is None:
            if self._start is None:
                raise SandboxError("the episode's sandbox is closed")
            starting = asyncio.ensure_future(self._start())
            # One that is dropped without `close` leaves nothing either.
            self._let_go = weakref.finalize(self, _abandon, starting, asyncio.get_running_loop())
            self._let_go.atexit = False
            self._sandbox = starting
        try:
            # A caller that is cancelled does not leave a sandbox half started.
            sandbox = await asyncio.shield(self._sandbox)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._sandbox = None
            raise
        self._start = None  # what it holds, such as files to be restored, is no longer needed
        return sandbox

    async def close(self) -> None:
        """Remove the sandbox. Idempotent."""
        starting, self._sandbox = self._sandbox, None
        if self._let_go is not None:
            self._let_go.detach()
        if starting is not None:
            await _close(starting)


async def _close(starting: asyncio.Task[Sandbox]) -> None:
    await asyncio.wait({starting})
    if not starting.cancelled() and starting.exception() is None:
        await starting.result().close()


def _abandon(starting: asyncio.Task[Sandbox], loop: asyncio.AbstractEventLoop) -> None:
    """Close a sandbox without waiting for it. A loop that has ended has closed it."""
    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(_close(starting), loop)


_backends: dict[tuple[int, str, str], LoopBackends] = {}
_table_lock = threading.Lock()


def shared_backends(backend: str, settings: Mapping[str, Any] | None = None) -> LoopBackends:
    """The backends that all environments of this process with these settings share.

    Raises ConfigurationError: the backend, or a key of `settings`, is unknown.
    """
    with _table_lock:
        # A forked child has a copy of the table, but not the sandboxes.
        key = os.getpid(), backend, json.dumps(dict(settings or {}), sort_keys=True, default=str)
        if key not in _backends:
            _backends[key] = LoopBackends(lambda: open_backend(backend, settings))
        return _backends[key]


def close_backends() -> None:
    """Remove every sandbox of this process."""
    with _table_lock:
        own = [backends for (pid, *_), backends in _backends.items() if pid == os.getpid()]
        _backends.clear()
    for backends in own:
        backends.close()


# Closing needs executors, which take no work any more by `atexit`. The last registered is called first.
assert concurrent.futures.thread
getattr(threading, "_register_atexit", atexit.register)(close_backends)
