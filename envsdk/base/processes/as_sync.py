"""`as_sync`: an `AsyncTextEnv` as a `TextEnv`, for callers that cannot await.

    env = as_sync(MyAsyncEnv())
    env.reset(seed=0)       # on the event loop of a thread that all such environments of the process share

The calling thread waits for each call. Works inside a running event loop too, which stands still meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from envsdk.base.processes.stretches import outcome
from envsdk.contracts.agent_door import AgentDoor
from envsdk.contracts.env import AsyncTextEnv, Info, TextEnv

T = TypeVar("T")

_STUCK_AFTER_S = 0.5
"""A loop that runs answers sooner."""


class LoopThread:
    """An event loop on a daemon thread.

    running -> stuck: a call that was given up blocks it; `loop_thread` starts another
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_stuck = False
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="envsdk-as-sync", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The result of `work`. Raises what it raises, and TimeoutError after `timeout_s`.

        `work` is cancelled when the caller is interrupted, or the time is over.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("waiting here would block the event loop that this call needs: await it")
        future = asyncio.run_coroutine_threadsafe(outcome(work), self.loop)
        try:
            result, error = future.result(timeout_s)
        except BaseException:
            future.cancel()
            # Until the loop answers; the wait for that may be interrupted too.
            self.is_stuck = True
            answered = threading.Event()
            self.loop.call_soon_threadsafe(answered.set)
            self.is_stuck = not answered.wait(_STUCK_AFTER_S)
            raise
        if error is not None:
            raise error
        return result  # type: ignore[return-value]


_lock = threading.Lock()
_shared: LoopThread | None = None


def loop_thread() -> LoopThread:
    """The one of this process, started when it is first asked for."""
    global _shared
    with _lock:
        # A forked child has a copy of the object, but not the thread.
        if _shared is None or _shared.is_stuck or _shared.pid != os.getpid():
            _shared = LoopThread()
        return _shared


def as_sync(env: AsyncTextEnv) -> TextEnv:
    """`env` with methods that wait for its coroutines. What else it has (`max_steps`) is there too."""
    return SyncEnv(env)


class SyncEnv(TextEnv):
    """What `as_sync` returns."""

    def __init__(self, env: AsyncTextEnv) -> None:
        self.asynchronous = env
        self.metadata = env.metadata
        self.render_mode = env.render_mode
        # Of the instance: what the environment inside can do.
        vars(self)["abilities"] = env.abilities
        self._thread: LoopThread | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "asynchronous":  # asked for while it is unpickled
            raise AttributeError(name)
        return getattr(self.asynchronous, name)

    @property
    def _np_random(self) -> np.random.Generator | None:
        return self.asynchronous._np_random

    @_np_random.setter
    def _np_random(self, value: np.random.Generator | None) -> None:
        self.asynchronous._np_random = value

    @property
    def _np_random_seed(self) -> int | None:
        return self.asynchronous._np_random_seed

    @_np_random_seed.setter
    def _np_random_seed(self, value: int | None) -> None:
        self.asynchronous._np_random_seed = value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        if options is None:
            return self._run(self.asynchronous.reset(seed=seed))
        return self._run(self.asynchronous.reset(seed=seed, options=options))

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return self._run(self.asynchronous.step(action))

    def play(self, door: AgentDoor) -> tuple[str, float, bool, bool, Info]:
        """As `AsyncTextEnv.play`."""
        return self._run(self.asynchronous.play(door))

    def close(self) -> None:
        if self._thread is None or not self._thread.is_stuck:
            self._run(self.asynchronous.close())

    def render(self) -> Any:
        return self.asynchronous.render()

    def snapshot(self) -> Any:
        return self._run(self.asynchronous.snapshot())

    def restore(self, snapshot: Any) -> str:
        return self._run(self.asynchronous.restore(snapshot))

    def oracle(self) -> str:
        return self._run(self.asynchronous.oracle())

    def legal_actions(self) -> Sequence[str]:
        return self._run(self.asynchronous.legal_actions())

    def state_hash(self) -> str:
        return self._run(self.asynchronous.state_hash())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        # Always the same loop: what the environment holds may belong to it.
        self._thread = self._thread or loop_thread()
        if self._thread.is_stuck:
            call.close()
            raise RuntimeError("an earlier call blocks the event loop of this environment")
        return self._thread.run(call)
