"""A rollout of verifiers, turned inside out: its questions to a model are answered by `reply`.

    rollout -> await start() -> Asked -> await reply(text) -> Asked -> ... -> Ended

The rollout runs as a task of the event loop on which it is started.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    was_cut_short: bool = False
    """It ended at a limit."""
    error: str = ""
    """What broke; then the rest says nothing."""


class Rollout(ABC):
    """Owned by one environment."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Asked | Ended | BaseException] = asyncio.Queue()
        self._waiting: asyncio.Future[str] | None = None
        """For the reply."""
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _play(self) -> Ended:
        """Run it to its end; its questions go to `answer`."""

    async def start(self) -> Asked | Ended:
        """Run until the first question. Raises what the rollout raises."""
        self._task = asyncio.create_task(self._run())
        return await self._next()

    async def reply(self, text: str) -> Asked | Ended:
        """Answer, and run until the next question or the end. Raises what the rollout raises."""
        assert self._waiting is not None
        self._waiting.set_result(text)
        return await self._next()

    async def cancel(self) -> None:
        """End it, wherever it is, and let it clean up."""
        if self._task is not None and self._task.cancel():
            await asyncio.wait({self._task}, timeout=_CLEAN_UP_S)

    def abandon(self) -> None:
        """End it without waiting, from any thread."""
        task = self._task
        if task is not None and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def answer(self, messages: Sequence[Any]) -> str:
        """Called by the rollout in place of a model."""
        self._waiting = asyncio.get_running_loop().create_future()
        self._events.put_nowait(Asked(messages=tuple(messages)))
        return await self._waiting

    async def _next(self) -> Asked | Ended:
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    async def _run(self) -> None:
        try:
            self._events.put_nowait(await self._play())
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised in the call that waits for the next event
            self._events.put_nowait(error)


def text_of(messages: Iterable[Any]) -> str:
    """The text of messages, one below the other; parts that are no text are left out."""
    return "\n\n".join(filter(None, map(_content, messages)))


def after_last_reply(messages: Iterable[Any]) -> list[Any]:
    """What came after the last message of the assistant."""
    fresh: list[Any] = []
    for message in messages:
        fresh = [] if role_of(message) == "assistant" else [*fresh, message]
    return fresh


def role_of(message: Any) -> Any:
    return _field(message, "role")


def _content(message: Any) -> str:
    content = _field(message, "content")
    if isinstance(content, str):
        return content
    parts = [part if isinstance(part, str) else _field(part, "text") for part in content or ()]
    return "\n".join(part for part in parts if isinstance(part, str))


def shows_more_than_text(messages: Iterable[Any]) -> bool:
    """Whether a message has a part that is no text, such as an image."""
    contents = [_field(message, "content") for message in messages]
    parts = [part for content in contents if not isinstance(content, str) for part in content or ()]
    return any(not isinstance(part, str) and _field(part, "text") is None for part in parts)


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)
