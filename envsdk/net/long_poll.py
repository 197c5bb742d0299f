"""Few calls for many messages: both ends of a long poll between two processes.

    client                                   server
    LongPoll.send(item) --+
    LongPoll.send(item) --+-- call(number, items) -> handle(items); return await outbox.collect(number)
    on_reply(reply)   <-----------------------+      (when something is there for this client)

Everything a client sends within one turn of its event loop travels in one call, and one call is
kept open so that the server can speak at any time. A newer call ends an older open one with
nothing; there are never more than two under way.

Calls are numbered because they may overtake each other (Ray's asynchronous actors run them in any
order): only the newest call is ever given items, so what is said first is heard first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Sent = TypeVar("Sent")
Reply = TypeVar("Reply")


class Outbox(Generic[Item]):
    """Server side: what one client has yet to fetch."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._waiter: asyncio.Future[None] | None = None
        self._newest = -1
        self._is_due = False

    def put(self, item: Item) -> None:
        """Leave an item; wakes the open call."""
        self._items.append(item)
        self._is_due = True
        self.wake()

    def put_quietly(self, item: Item) -> None:
        """Leave an item that can wait: it travels with the next one that is `put`, or after `flush`."""
        self._items.append(item)

    def flush(self) -> None:
        """What was left quietly has waited long enough."""
        if self._items:
            self._is_due = True
            self.wake()

    def close(self) -> None:
        """The client is gone: end its open call and drop what it has not fetched."""
        self._items.clear()
        self.wake()

    def wake(self) -> None:
        """End the open call now, with whatever is there."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def collect(self, number: int) -> list[Item]:
        """Wait for the first item that is due and take all that are there once the event loop has had a turn.

        Ends the `collect` of any earlier call with an empty list.
        """
        if number < self._newest:
            return []
        self._newest = number
        self.wake()
        if not self._is_due:
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            await waiter
        await asyncio.sleep(0)
        if number != self._newest:
            return []
        items, self._items = self._items, []
        self._is_due = False
        return items


class LongPoll(Generic[Sent, Reply]):
    """Client side: keeps one call open and sends what has gathered meanwhile.

    Owner: whoever holds the remote end; `run` ends with the first error of a call.
    """

    def __init__(
        self, call: Callable[[int, list[Sent]], Awaitable[Reply]], on_reply: Callable[[Reply], None]
    ) -> None:
        self._call = call
        self._on_reply = on_reply
        self._items: list[Sent] = []
        self._something_to_send = asyncio.Event()
        self.num_calls = 0

    def send(self, item: Sent) -> None:
        """Queue one message; it leaves with everything else queued in this turn of the loop."""
        self._items.append(item)
        self._something_to_send.set()

    async def run(self) -> None:
        """Exchange messages until cancelled or until a call fails."""
        calls: deque[asyncio.Task[Reply]] = deque()
        sending = asyncio.ensure_future(self._something_to_send.wait())
        try:
            while True:
                if (self._items and len(calls) < 2) or not calls:
                    items, self._items = self._items, []
                    self._something_to_send.clear()
                    calls.append(asyncio.ensure_future(_awaited(self._call(self.num_calls, items))))
                    self.num_calls += 1
                if sending.done():
                    sending = asyncio.ensure_future(self._something_to_send.wait())
                # With two calls under way, what is sent gathers until one of them is answered.
                waited_for = {calls[0], sending} if len(calls) < 2 else {calls[0]}
                await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
                # In the order of the calls: what the server said first is heard first.
                while calls and calls[0].done():
                    self._on_reply(calls.popleft().result())
                # Managers woken by the reply queue their messages before the next call leaves.
                await asyncio.sleep(0)
        finally:
            sending.cancel()
            for call in calls:
                call.cancel()


async def _awaited(awaitable: Awaitable[Reply]) -> Reply:
    return await awaitable
