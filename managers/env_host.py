"""Where an environment runs: in the event loop, on a thread, or in a process of its own.

    created -> reset -> step* -> reset -> ... -> close
                 \\-> EpisodeFailed -> discard -> reset builds a fresh environment

An environment that raises, hangs or dies becomes an `EpisodeFailed` here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import reprlib
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from envsdk.env import AnyTextEnv, AsyncTextEnv, EnvSpec, Info, Isolation, TextEnv
from envsdk.failures import Boundary, EnvsdkError, Failure, show_object
from envsdk.policy import EnvView
from envsdk.processes.call_watch import CALLS, EnvCall, limit_name
from envsdk.processes.interrupts import is_from_the_user
from envsdk.processes.stretches import Stretches
from envsdk.trajectory import Task

StepResult = tuple[str, float, bool, bool, Info]
Options = dict[str, Any]


class EpisodeFailed(Exception):
    """An episode has no outcome; carries why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvBlueprint:
    """How to build one environment; picklable."""

    spec: EnvSpec
    env_config: Mapping[str, Any] = field(default_factory=dict)
    isolation: Isolation = Isolation.INLINE
    start_timeout_s: float = 120.0
    """For `build`, and for starting a process before it."""
    reset_timeout_s: float = 60.0
    step_timeout_s: float = 30.0

    def build(self) -> TextEnv:
        from envsdk.registry import make

        return make(self.spec, **self.env_config)

    def build_async(self) -> AsyncTextEnv:
        from envsdk.registry import make_async

        return make_async(self.spec, **self.env_config)

    def reset_options(self, task: Task) -> Options | None:
        """What `reset` gets of a task besides its seed."""
        return {"task": task.index} if self.spec.lists_tasks else None


class EnvHost(EnvView):
    """One environment, wherever it runs. Every call raises EpisodeFailed and nothing else."""

    def __init__(self, blueprint: EnvBlueprint) -> None:
        self.blueprint = blueprint

    place: int | None = None
    """In `CALLS`, where a watcher sees the call under way; None for a process, which can be killed at a
    limit."""

    async def reset(self, seed: int, options: Options | None = None) -> tuple[str, Info]:
        arguments: Options = {"seed": seed} if options is None else {"seed": seed, "options": options}
        return reset_result(await self._call("reset", self.blueprint.reset_timeout_s, **arguments))

    async def step(self, action: str) -> StepResult:
        return step_result(await self._call("step", self.blueprint.step_timeout_s, action=action))

    async def state_hash(self) -> str:
        """`TextEnv.state_hash` of the current state."""
        return text_result("state_hash", await self._call("state_hash", self.blueprint.step_timeout_s))

    async def oracle(self) -> str:
        return text_result("oracle", await self._call("oracle", self.blueprint.step_timeout_s))

    async def legal_actions(self) -> Sequence[str]:
        return actions_result(await self._call("legal_actions", self.blueprint.step_timeout_s))

    @abstractmethod
    async def _call(self, verb: str, limit_s: float, **arguments: Any) -> Any:
        """The result of a method of the environment, which is built first where there is none."""

    @abstractmethod
    def discard(self) -> None:
        """Throw the environment away without waiting for it; the next reset builds a fresh one."""

    def close(self) -> None:
        """Free everything. Idempotent."""
        self.discard()

    async def closed(self) -> None:
        """Wait until the environments that were thrown away are closed, within their limits."""


class WatchedHost(EnvHost):
    """Runs the environment in this process, where a watcher sees its calls."""

    def __init__(self, blueprint: EnvBlueprint) -> None:
        super().__init__(blueprint)
        self.watched = CALLS.open()
        self.place = self.watched.place

    def close(self) -> None:
        super().close()
        CALLS.close(self.watched)

    def _runs_here(self, *, is_inline: bool) -> None:
        self.watched.runs_on(threading.get_native_id(), is_inline=is_inline)


def failure_of(error: BaseException, during: str) -> Failure:
    """A failure of the environment, unless the error names another boundary: the sandbox."""
    boundary = Boundary.ENVIRONMENT
    # Not isinstance, which asks the object's own `__class__`.
    if issubclass(type(error), EnvsdkError):
        boundary = type(error).boundary  # type: ignore[attr-defined]
    return Failure.from_exception(boundary, error, kind=f"{during}_raised")


def timed_out(during: str, limit_s: float) -> EpisodeFailed:
    message = f"{during} took longer than {limit_name(during)}={limit_s:g}"
    return EpisodeFailed(Failure(boundary=Boundary.ENVIRONMENT, kind=f"{during}_timeout", message=message))


def reset_result(answer: Any) -> tuple[str, Info]:
    """What `reset` returned, if it is what the contract says."""
    try:
        observation, info = answer
        if isinstance(observation, str) and isinstance(info, dict):
            tools = info.get("tools")
            return str.__str__(observation), {**info, "tools": _functions(tools)} if tools else {**info}
    except BaseException as error:  # noqa: BLE001 - boundary: environment, whose objects are looked at
        _raise_if_from_the_user(error)
    raise _breach("reset", "(observation: str, info: dict, whose tools are a list of JSON objects)", answer)


def step_result(answer: Any) -> StepResult:
    """What `step` returned as plain Python types, if it is what the contract says."""
    try:
        observation, reward, terminated, truncated, info = answer
        reward = float(reward)
        if isinstance(observation, str) and math.isfinite(reward) and isinstance(info, dict):
            return str.__str__(observation), reward, bool(terminated), bool(truncated), _plain(info)
    except BaseException as error:  # noqa: BLE001 - boundary: environment, whose objects are looked at
        _raise_if_from_the_user(error)
    expected = "(observation: str, reward: a finite number, terminated, truncated, info: dict)"
    raise _breach("step", f"{expected} with info['metrics'] a dict of finite numbers", answer)


def text_result(during: str, answer: Any) -> str:
    """What `state_hash` or `oracle` returned, if it is what the contract says."""
    if issubclass(type(answer), str):
        return str.__str__(answer)
    raise _breach(during, "a str", answer)


def actions_result(answer: Any) -> Sequence[str]:
    """What `legal_actions` returned, if it is what the contract says."""
    try:
        actions = list(answer) if isinstance(answer, Sequence) and not isinstance(answer, str) else []
        if actions and all(isinstance(action, str) for action in actions):
            return [str.__str__(action) for action in actions]
    except BaseException as error:  # noqa: BLE001 - boundary: environment, whose objects are looked at
        _raise_if_from_the_user(error)
    raise _breach("legal_actions", "replies that parse, as a list of str that is not empty", answer)


def _raise_if_from_the_user(error: BaseException) -> None:
    if is_from_the_user(error):
        raise error


def _functions(tools: Any) -> list[dict[str, Any]]:
    """`tools` as plain JSON objects; raises what they do not allow."""
    plain = json.loads(json.dumps(tools))
    if not isinstance(plain, list) or not all(isinstance(tool, dict) for tool in plain):
        raise TypeError
    return plain


def _plain(info: Info) -> Info:
    """With `success` and `metrics` as plain Python types; raises where they are not what they should be."""
    plain = {**info, "success": bool(info.get("success", False))}
    if metrics := info.get("metrics"):
        plain["metrics"] = {str.__str__(str(name)): _finite(float(value)) for name, value in metrics.items()}
    return plain


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError
    return number


def _breach(during: str, expected: str, answer: Any) -> EpisodeFailed:
    message = f"{during} must return {expected}, not {show_object(answer, _SHORT.repr)}"[:500]
    return EpisodeFailed(Failure(boundary=Boundary.ENVIRONMENT, kind=f"{during}_invalid", message=message))


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


class InlineHost(WatchedHost):
    """Runs in the event loop: no hand-over, so microseconds per step.

    A call that does not return in time cannot be ended, only its process, from outside: see `call_watch`.
    """

    def __init__(self, blueprint: EnvBlueprint) -> None:
        super().__init__(blueprint)
        self._env: TextEnv | None = None
        self._runs_here(is_inline=True)

    async def _call(self, verb: str, limit_s: float, **arguments: Any) -> Any:
        if self._env is None:
            self._env = self._run("start", self.blueprint.start_timeout_s, self.blueprint.build)
        env = self._env
        return self._run(verb, limit_s, lambda: getattr(env, verb)(**arguments))

    def _run(self, during: str, limit_s: float, function: Callable[[], Any]) -> Any:
        self.watched.enter(during, limit_s)
        try:
            return function()
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: they would end the event loop
            _raise_if_from_the_user(error)
            raise EpisodeFailed(failure_of(error, during)) from error
        finally:
            self.watched.leave()

    def discard(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            with contextlib.suppress(EpisodeFailed):
                self._run("close", self.blueprint.step_timeout_s, lambda: env.close())


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
        call = self._last_call = asyncio.create_task(self._run(self._env, verb, limit_s, arguments))
        self.watched.enter(verb, limit_s)
        try:
            await asyncio.wait({call}, timeout=limit_s)
        finally:
            self.watched.leave()
            call.cancel()
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
            _raise_if_from_the_user(error)
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
    # Brings what starts processes, which others do without.
    from envsdk.managers.process_host import ProcessHost

    return ProcessHost(blueprint)
