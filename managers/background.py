"""Background work of an actor: the first error of a task is that of the whole actor.

start(work)* -> close
an error, of a task or by `fail` -> `error`, which every waiting call raises
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from envsdk.contracts.failures import EnvsdkError, as_envsdk_error


class Background:
    """Owner: the actor."""

    def __init__(self, failed: str) -> None:
        """`failed` begins the message of an error that is not an EnvsdkError."""
        self._failed = failed
        self._error: EnvsdkError | None = None
        self.changed = asyncio.Event()
        """Set after an error, and by the owner when a call that waits should look again."""
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this beside everything else."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self.tasks.add(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(as_envsdk_error(error, self._failed))

    def fail(self, error: EnvsdkError) -> None:
        """The run cannot continue; the first error counts."""
        self._error = self._error or error
        self.changed.set()

    def raise_if_failed(self) -> None:
        """Raises the first error."""
        if self._error is not None:
            raise self._error

    async def next_change(self) -> None:
        """Wait until `changed` is set, and clear it. Raises the first error."""
        self.raise_if_failed()
        await self.changed.wait()
        self.changed.clear()
        self.raise_if_failed()

    def close(self) -> None:
        """Cancel what still runs."""
        for task in self.tasks:
            task.cancel()
