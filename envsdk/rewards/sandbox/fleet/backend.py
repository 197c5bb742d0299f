"""The `fleet` backend: sandboxes on several hosts, each a backend of any kind. Shell of `core`."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, fields
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, TypeVar

from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError, EnvsdkError, describe_error
from envsdk.rewards.sandbox import open_backend
from envsdk.rewards.sandbox.contract import (
    ExecEnd,
    ExecResult,
    Image,
    Limits,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxesFull,
    SandboxFileError,
    SandboxUnavailable,
)
from envsdk.rewards.sandbox.fleet import parts
from envsdk.rewards.sandbox.fleet.core import FleetCore
from envsdk.rewards.sandbox.settings import FleetSettings

log = logging.getLogger(__name__)

TICK_S = 0.25
END_TIMEOUT_S = 20.0
"""How long a sandbox may take to close; then it is left to its host."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What to start. Equal ones can stand in for each other."""

    identity: tuple[object, ...]
    image: Image = field(compare=False)
    limits: Limits = field(compare=False)


def _wanted(image: Image, limits: Limits) -> _Wanted:
    values = (getattr(image, each.name) for each in fields(image))
    told = (tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in values)
    return _Wanted((*told, limits), image, limits)


class FleetBackend:
    """Runs sandboxes on several hosts.

    new --first start--> beating: ticks and looks at its hosts while there are sandboxes --aclose--> new

    Raises ConfigurationError: a setting, of a host's too, is unknown or wrong.
    """

    name = "fleet"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = validated(FleetSettings, settings, "settings of sandbox backend `fleet`")
        self._hosts = self.settings.named_hosts()
        shared = self.settings.model_dump(include={"commands_at_once"}, exclude_none=True)
        self._backends = {
            name: open_backend(host.backend, {**shared, **host.settings})
            for name, host in self._hosts.items()
        }
        self._numbers = itertools.count()
        self._begin()

    def _begin(self) -> None:
        self._core = FleetCore(self._hosts.values(), self.settings)
        self._answers: dict[int, asyncio.Future[parts.Lease]] = {}
        self._inner: dict[int, Sandbox] = {}
        self._leased: dict[int, FleetSandbox] = {}
        self._starts: dict[int, asyncio.Task[None]] = {}
        self._ends: dict[int, asyncio.Task[None]] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._released: set[asyncio.Task[None]] = set()
        self._beat: asyncio.Task[None] | None = None

    async def probe(self) -> None:
        """One host that works is enough."""
        tries = {asyncio.create_task(backend.probe()): name for name, backend in self._backends.items()}
        problems = []
        try:
            async with asyncio.timeout(self.settings.start_timeout_s):
                for done in asyncio.as_completed(tries):
                    try:
                        return await done
                    except EnvsdkError as error:
                        problems.append(str(error))
        except TimeoutError:
            problems.append(f"no answer within {self.settings.start_timeout_s:g} s")
        finally:
            await _cancel(tries)
        raise SandboxUnavailable(f"no host of the fleet runs sandboxes: {'; '.join(problems)}")

    async def start(self, image: Image, *, limits: Limits | None = None) -> FleetSandbox:
        wanted = _wanted(image, limits or Limits())
        loop = asyncio.get_running_loop()
        until = loop.time() + self.settings.start_timeout_s
        while True:
            lease = await self._lease(wanted, until - loop.time())
            sandbox = self._leased[lease.sandbox]
            if not lease.was_warm or await sandbox.alive():
                return sandbox
            self.lost(lease.sandbox, "a sandbox that was kept ready is gone")
            await sandbox.close()

    async def aclose(self) -> None:
        self._do(self._core.close())
        open_tasks = {*self._ends.values(), *self._looks.values(), *self._released}
        if open_tasks:
            await asyncio.wait(open_tasks, timeout=2 * END_TIMEOUT_S)
        await _cancel({*open_tasks, *filter(None, [self._beat])})
        await asyncio.gather(*(self._let_go(*each) for each in self._backends.items()))
        self._begin()

    def drain(self, host: str) -> None:
        """Start nothing more on a host, and let go of it after its last lease."""
        del self._hosts[host]
        self._do(self._core.drain(host))

    def lost(self, number: int, why: str) -> None:
        """A leased sandbox failed."""
        self._do(self._core.lost(number, why))

    def worked(self, number: int) -> None:
        self._core.worked(number)

    def adopted(self, parent: int, copy: Sandbox) -> FleetSandbox | None:
        """Hold `copy`, on the host of a leased sandbox. None: that one is not leased any more."""
        if (number := self._core.adopted(parent)) is None:
            return None
        self._inner[number] = copy
        self._leased[number] = FleetSandbox(self, number, copy)
        return self._leased[number]

    async def give_back(self, number: int, *, waits: bool) -> None:
        """Close a leased sandbox."""
        self._do(self._core.given_back(number))
        if waits and (ending := self._ends.get(number)) is not None:
            await asyncio.shield(ending)

    async def _lease(self, wanted: _Wanted, budget_s: float) -> parts.Lease:
        """Raises SandboxError or ConfigurationError: why there is none."""
        number = next(self._numbers)
        answer: asyncio.Future[parts.Lease] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._do(self._core.request(number, wanted, budget_s))
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._do(self._core.given_back(answer.result().sandbox))
            self._do(self._core.withdraw(number))
            raise
        finally:
            del self._answers[number]

    def _do(self, commands: Iterable[parts.Command]) -> None:
        """Carry out what the core says. Its events come back from tasks, never from within."""
        for command in commands:
            match command:
                case parts.Start(number, host, wanted):
                    assert isinstance(wanted, _Wanted)
                    self._starts[number] = asyncio.create_task(self._start(number, host, wanted))
                case parts.End(number):
                    if (leased := self._leased.pop(number, None)) is not None:
                        leased.is_lost("the sandbox is closed")
                    self._ends[number] = asyncio.create_task(self._end(number))
                case parts.Lease(request, number):
                    self._leased[number] = FleetSandbox(self, number, self._inner[number])
                    if not (answer := self._answers[request]).done():
                        answer.set_result(command)
                case parts.Refuse(request, why, is_unfit):
                    error = ConfigurationError(why) if is_unfit else SandboxError(why)
                    if not (answer := self._answers[request]).done():
                        answer.set_exception(error)
                case parts.Lost(number, why):
                    self._leased[number].is_lost(why)
                case parts.Release(host):
                    self._released.add(asyncio.create_task(self._let_go(host, self._backends.pop(host))))
                case parts.News(text):
                    log.warning("%s", text)
        if not self._core.is_idle and (self._beat is None or self._beat.done()):
            self._beat = asyncio.create_task(self._ticks())

    async def _start(self, number: int, host: str, wanted: _Wanted) -> None:
        try:
            self._inner[number] = await self._backends[host].start(wanted.image, limits=wanted.limits)
        except ConfigurationError as error:
            self._do(self._core.unfit(number, str(error)))
        except SandboxesFull as error:
            self._do(self._core.full(number, str(error)))
        except Exception as error:  # noqa: BLE001 - boundary: a backend may be a plug-in
            self._do(self._core.failed(number, describe_error(error)))
        else:
            self._do(self._core.started(number))
        finally:
            del self._starts[number]

    async def _end(self, number: int) -> None:
        try:
            if (start := self._starts.get(number)) is not None:
                start.cancel()
                await asyncio.wait({start})
            if (inner := self._inner.pop(number, None)) is not None:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await inner.close()
        except Exception as error:  # noqa: BLE001 - boundary: a backend may be a plug-in
            log.warning("a sandbox is left to its host: %s", describe_error(error))
        finally:
            del self._ends[number]
        self._do(self._core.ended(number))

    async def _ticks(self) -> None:
        loop = asyncio.get_running_loop()
        looked_at = last = loop.time()
        while not self._core.is_idle:
            await asyncio.sleep(TICK_S)
            now, before = loop.time(), last
            last = now
            self._do(self._core.tick(now - before))
            if now - looked_at >= self.settings.silence_s / 4:
                looked_at = now
                for host in self._backends:
                    if host not in self._looks and self._core.up_on(host):
                        self._looks[host] = asyncio.create_task(self._look(host))

    async def _look(self, host: str) -> None:
        """Ask for the host's sandboxes until one is alive."""
        try:
            for number in self._core.up_on(host):
                if (inner := self._inner.get(number)) is not None:
                    async with asyncio.timeout(self.settings.silence_s):
                        if await inner.alive():
                            self._core.heard(host)
                            return
                    self.lost(number, "it is gone")
        except Exception as error:  # noqa: BLE001 - boundary: a backend may be a plug-in
            log.debug("host %s does not answer: %s", host, describe_error(error))
        finally:
            del self._looks[host]

    async def _let_go(self, host: str, backend: SandboxBackend) -> None:
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await backend.aclose()
        except Exception as error:  # noqa: BLE001 - boundary: a backend may be a plug-in
            log.warning("sandbox host %s was not closed: %s", host, describe_error(error))


class FleetSandbox:
    """leased --closed, or its host is taken for dead--> lost: every call fails at once"""

    def __init__(self, fleet: FleetBackend, number: int, inner: Sandbox) -> None:
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
        if not iscoroutinefunction(call):
            return call
        return lambda *args, **named: self._answer(call(*args, **named))

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
            await asyncio.wait({running}, timeout=END_TIMEOUT_S)
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


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    tasks = set(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=END_TIMEOUT_S)
