"""Where an environment runs: awaited in the event loop, on a thread, or in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from envsdk.base.processes.call_watch import EnvCall
from envsdk.base.processes.stretches import Stretches
from envsdk.contracts.env import AnyTextEnv, AsyncTextEnv, Isolation
from envsdk.contracts.failures import Failure, show_object
from envsdk.managers.env_host import (
    EnvBlueprint,
    EnvHost,
    EpisodeFailed,
    InlineHost,
    WatchedHost,
    failure_of,
    raise_if_from_the_user,
    timed_out,
)


class AsyncHost(WatchedHost):
    """Awaits an `AsyncTextEnv` in the event loop. A call past its deadline is cancelled.

    The environment is built on a thread, since constructors load modules and data and cannot await.
    """

    def __init__(self, blueprint: EnvBlueprint) -> None:
        super().__init__(blueprint)
        self._env: AsyncTextEnv | None = None
        self._last_call: asyncio.Task[Any] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def _call(self, verb: str, limit_s: float, **arguments: Any) -> Any:
        if self._env is None:
            self._env = await self._built()
            self._runs_here(is_inline=False)
        env = self._env
        call = self._last_call = asyncio.create_task(self._run(env, verb, limit_s, arguments))
        self.watched.enter(verb, limit_s)
        try:
            await asyncio.wait({call}, timeout=limit_s)
        finally:
            self.watched.leave()
            call.cancel()
            self.task_name = show_object(env, lambda env: env.task_name) or self.task_name
        if not call.done():
            raise timed_out(verb, limit_s)
        result, failure = call.result()
        if failure is not None:
            raise EpisodeFailed(failure)
        return result

    async def _built(self) -> AsyncTextEnv:
        calls = _start_thread(self.blueprint.build_async, close=lambda env: None)
        try:
            env: AsyncTextEnv = await _answer(self, calls, "start", self.blueprint.start_timeout_s, {})
        finally:
            calls.put(None)
        return env

    async def _run(
        self, env: AsyncTextEnv, verb: str, limit_s: float, arguments: Mapping[str, Any]
    ) -> tuple[Any, Failure | None]:
        """Body of a call's task, which ends with the environment's own exceptions, and with no other's."""

        async def called() -> Any:
            return await getattr(env, verb)(**arguments)

        try:
            return await _Watched(called(), self.watched, verb, limit_s), None
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: they would end the event loop
            raise_if_from_the_user(error)
            task = asyncio.current_task()
            if issubclass(type(error), asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            return None, failure_of(error, verb)

    def discard(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            closing = asyncio.get_running_loop().create_task(self._end(env, self._last_call))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def closed(self) -> None:
        while self._closing:
            await asyncio.wait(set(self._closing))

    async def _end(self, env: AsyncTextEnv, last_call: asyncio.Task[Any] | None) -> None:
        """Close the environment, after its last call if that ends within the limit."""
        limit_s = self.blueprint.step_timeout_s
        if last_call is not None:
            await asyncio.wait({last_call}, timeout=limit_s)
        close = asyncio.create_task(self._run(env, "close", limit_s, {}))
        await asyncio.wait({close}, timeout=limit_s)
        close.cancel()


class _Watched(Stretches):
    """Has each stretch of a call watched as a call in the event loop.

    A call that waits is ended by the loop. One that blocks the loop cannot be: see `call_watch`.
    """

    def __init__(self, work: Awaitable[Any], call: EnvCall, verb: str, limit_s: float) -> None:
        super().__init__(work)
        self._call = call
        self._verb = verb
        self._limit_s = limit_s

    def begin(self) -> list[float]:
        return self._call.resume(self._verb, self._limit_s)

    def end(self, began: list[float]) -> None:
        self._call.suspend(began)


class ThreadHost(WatchedHost):
    """Runs on a thread of its own. A call past its deadline is abandoned with its thread."""

    def __init__(self, blueprint: EnvBlueprint) -> None:
        super().__init__(blueprint)
        self._calls: SimpleQueue[_Call | None] | None = None

    async def _call(self, verb: str, limit_s: float, **arguments: Any) -> Any:
        if self._calls is None:
            self._calls = _start_thread(self.blueprint.build, close=lambda env: env.close())
            await _answer(self, self._calls, "start", self.blueprint.start_timeout_s, {})
        return await _answer(self, self._calls, verb, limit_s, arguments)

    def discard(self) -> None:
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(None)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call on its way to an environment's thread."""

    verb: str
    arguments: Mapping[str, Any]
    watched: EnvCall
    limit_s: float
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]

    def resolve(self, result: Any, failure: Failure | None) -> None:
        def on_loop() -> None:
            if not self.answer.done():
                if failure is None:
                    self.answer.set_result(result)
                else:
                    self.answer.set_exception(EpisodeFailed(failure))

        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self.loop.call_soon_threadsafe(on_loop)


def _start_thread(build: Callable[[], AnyTextEnv], close: Callable[[Any], None]) -> SimpleQueue[_Call | None]:
    """A thread that builds an environment at its first call and then carries out calls until it gets None."""
    calls: SimpleQueue[_Call | None] = SimpleQueue()
    # A daemon: an abandoned call must not keep the process from ending.
    threading.Thread(target=_work, args=(build, close, calls), name="envsdk-env", daemon=True).start()
    return calls


async def _answer(
    host: WatchedHost,
    calls: SimpleQueue[_Call | None],
    verb: str,
    limit_s: float,
    arguments: Mapping[str, Any],
) -> Any:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    calls.put(_Call(verb, arguments, host.watched, limit_s, loop, answer))
    try:
        await asyncio.wait({answer}, timeout=limit_s)
    finally:
        is_late = answer.cancel()
        if is_late:
            host.watched = host.watched.abandoned()
    if is_late:
        raise timed_out(verb, limit_s)
    return answer.result()


def _work(
    build: Callable[[], AnyTextEnv], close: Callable[[Any], None], calls: SimpleQueue[_Call | None]
) -> None:
    env: AnyTextEnv | None = None
    while (call := calls.get()) is not None:
        call.watched.runs_on(threading.get_native_id(), is_inline=False)
        call.watched.enter(call.verb, call.limit_s)
        result, failure = None, None
        try:
            if env is None:
                result = env = build()
            else:
                result = getattr(env, call.verb)(**call.arguments)
        except BaseException as error:  # noqa: BLE001 - boundary: environment, raised in the caller
            failure = failure_of(error, call.verb)
        call.watched.leave()
        call.resolve(result, failure)
    if env is not None:
        with contextlib.suppress(BaseException):
            close(env)


def open_host(blueprint: EnvBlueprint) -> EnvHost:
    """A host for the blueprint's isolation; builds nothing before its first reset."""
    if blueprint.isolation is Isolation.INLINE:
        return InlineHost(blueprint)
    if blueprint.isolation is Isolation.THREAD:
        return ThreadHost(blueprint)
    if blueprint.isolation is Isolation.ASYNC:
        return AsyncHost(blueprint)
    # Inside the function: it loads what starts processes, which the other hosts do without.
    from envsdk.managers.process_host import ProcessHost

    return ProcessHost(blueprint)
