"""Runs an environment in a process of its own, which is killed when a call exceeds its limit.

no process -> starting -> up -> (call -> answer)* -> killed
"""

from __future__ import annotations

import asyncio
import os
import pickle
from functools import partial
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from envsdk.base.processes.forked import ForkedProcesses
from envsdk.base.processes.killable import KillableProcess
from envsdk.contracts.failures import Boundary, Failure
from envsdk.managers.env_host import EnvBlueprint, EnvHost, EpisodeFailed, timed_out

ENV_PROCESSES = ForkedProcesses(preload=partial(import_module, "envsdk.managers.env_host"))
"""The one of this process."""
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def _place_to_start() -> asyncio.Semaphore:
    """Limits how many environments start at a time: all at once would slow each other down."""
    loop = asyncio.get_running_loop()
    return _places.setdefault(loop, asyncio.Semaphore(max(2, os.cpu_count() or 1)))


class ProcessHost(EnvHost):
    """The host of one process. When the process dies, the episode has failed."""

    def __init__(self, blueprint: EnvBlueprint) -> None:
        super().__init__(blueprint)
        self._process: KillableProcess | None = None

    async def _call(self, verb: str, limit_s: float, **arguments: Any) -> Any:
        if self._process is None:
            async with _place_to_start():
                await self._start()
        return await self._answer(verb, limit_s, arguments)

    async def _start(self) -> None:
        self._process = await KillableProcess.fork(ENV_PROCESSES)
        await self._answer("start", self.blueprint.start_timeout_s, {"blueprint": self.blueprint})

    async def _answer(self, verb: str, limit_s: float, arguments: dict[str, Any]) -> Any:
        assert self._process is not None
        try:
            async with asyncio.timeout(limit_s):
                pickled = await self._process.ask(verb, arguments)
        except TimeoutError as error:
            raise timed_out(verb, limit_s) from error
        except (EOFError, OSError) as error:
            message = f"the environment's process ended during {verb}"
            failure = Failure(boundary=Boundary.ENVIRONMENT, kind="process_died", message=message)
            raise EpisodeFailed(failure) from error
        try:
            well, answer = pickle.loads(pickled)
        except BaseException as error:
            failure = Failure.from_exception(Boundary.ENVIRONMENT, error, kind=f"{verb}_unreadable")
            raise EpisodeFailed(failure) from error
        if not well:
            raise EpisodeFailed(answer)
        return answer

    def discard(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()
