"""A rollout of verifiers, turned inside out: it asks its model, and the caller of `reply` answers.

    rollout -> start() -> Asked -> reply(text) -> Asked -> ... -> Ended

The rollout runs as a task of an event loop on a thread that all of a process share; `start` and `reply` wait
for its next question on the caller's thread.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

_CLEAN_UP_S = 10.0
"""For a rollout that is cancelled, to close what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The rollout waits for a reply."""

    messages: Sequence[Any]
    """The conversation so far, as messages of verifiers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The rollout is over and scored."""

    reward: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    last_messages: Sequence[Any] = ()
    """Those after the last reply."""
    stop_condition: str = ""
    """`cut_short`, or verifiers' name, such as `max_turns_reached`."""
    error: str = ""
    """What broke; then the rest says nothing."""


class Rollout(ABC):
    """Owned by one environment; used from one thread at a time."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Asked | Ended | BaseException] = queue.SimpleQueue()
        self._waiting: asyncio.Future[str] | None = None
        """For the reply; belongs to the loop."""
        self._task: Any = None
        self._finished = threading.Event()
        self._is_over = False
        """No further question is answered."""

    @abstractmethod
    async def _play(self) -> Ended:
        """Run it to its end; its questions go to `answer`."""

    def start(self) -> Asked | Ended:
        """Run until the first question. Raises what the rollout raises."""
        self._task = asyncio.run_coroutine_threadsafe(self._run(), background_loop())
        return self._next()

    def reply(self, text: str, *, is_last: bool = False) -> Asked | Ended:
        """Answer, and run until the next question or the end. Raises what the rollout raises.

        Args:
            is_last: No further question is answered: the rollout ends as one that was cut short.
        """
        self._is_over = is_last
        waiting = self._waiting
        assert waiting is not None
        background_loop().call_soon_threadsafe(waiting.set_result, text)
        return self._next()

    def cancel(self) -> None:
        """End it, wherever it is, and let it clean up."""
        if self._task is not None and self._task.cancel() and not _is_on(background_loop()):
            self._finished.wait(_CLEAN_UP_S)

    async def answer(self, messages: Sequence[Any]) -> str:
        """Called by the rollout in place of a model, on its loop."""
        self._waiting = asyncio.get_running_loop().create_future()
        self._events.put(Asked(messages=tuple(messages)))
        return await self._waiting

    def _next(self) -> Asked | Ended:
        event = self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    async def _run(self) -> None:
        try:
            self._events.put(await self._play())
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, the thread that waits gets it
            self._events.put(error)
        finally:
            self._finished.set()


def _is_on(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process, running on a daemon thread; another after a fork."""
    return _loop_of(os.getpid())


@lru_cache(maxsize=1)
def _loop_of(process: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="verifiers rollouts", daemon=True).start()
    return loop
