"""A long poll between two processes: many messages in few calls.

    client                                   server
    LongPoll.send(item) --+
    LongPoll.send(item) --+-- call(number, items) -> handle(items); return await outbox.collect(number)
    on_reply(reply)   <-----------------------+      (when there are items for this client)

All messages that a client sends within one turn of its event loop travel in one call. One call stays open so
that the server can send at any time. A newer call ends the open one with an empty reply; there are never more
than two calls at a time.

Calls are numbered because they may overtake each other (Ray's asynchronous actors run them in any order).
Only the newest call receives items, so items arrive in the order they were sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Sent = TypeVar("Sent")
Reply = TypeVar("Reply")


class Outbox(Generic[Item]):
    """Server side: the items that one client has not yet fetched."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._waiter: asyncio.Future[None] | None = None
        self._newest = -1
        self._is_due = False

    def put(self, item: Item) -> None:
        """Add an item and end the open call with it."""
        self._items.append(item)
        self._is_due = True
        self.wake()

    def put_quietly(self, item: Item) -> None:
        """Add an item that can wait: it travels with the next `put`, or after `flush`."""
        self._items.append(item)

    def flush(self) -> None:
        """Send the items added by `put_quietly`."""
        if self._items:
            self._is_due = True
            self.wake()

    def close(self) -> None:
        """The client is gone: end its open call and drop its items."""
        self._items.clear()
        self.wake()

    def wake(self) -> None:
        """End the open call now, with the present items."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def collect(self, number: int) -> list[Item]:
        """Wait for the first due item, then for one turn of the event loop, and take all items.

        Ends the `collect` of any earlier call with an empty list. A call that comes twice gets nothing for
        the second time.
        """
        if number <= self._newest:
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
    """Client side: keeps one call open and sends the messages that gather meanwhile.

    `run` ends with the first error of a call.
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
        """Queue one message; it is sent with all others queued in this turn of the loop."""
        self._items.append(item)
        self._something_to_send.set()

    async def run(self) -> None:
        """Exchange messages until cancelled or until a call fails."""
        calls: deque[asyncio.Future[Reply]] = deque()
        sending = asyncio.ensure_future(self._something_to_send.wait())
        try:
            while True:
                if (self._items and len(calls) < 2) or not calls:
                    items, self._items = self._items, []
                    self._something_to_send.clear()
                    calls.append(asyncio.ensure_future(self._call(self.num_calls, items)))
                    self.num_calls += 1
                if sending.done():
                    sending = asyncio.ensure_future(self._something_to_send.wait())
                # With two open calls, messages gather until one of the calls is answered.
                waited_for: set[asyncio.Future[Any]] = {calls[0]}
                if len(calls) < 2:
                    waited_for.add(sending)
                elif not calls[1].done():
                    waited_for.add(calls[1])
                await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
                # In the order of the calls, so that the server's items stay in order.
                while calls and calls[0].done():
                    self._on_reply(calls.popleft().result())
                # The first is answered when the second arrives: where that is lost, nothing ends it.
                if calls and calls[-1].done():
                    calls[-1].result()
                # Managers woken by the reply queue their messages before the next call is sent.
                await asyncio.sleep(0)
        finally:
            sending.cancel()
            for call in calls:
                call.cancel()
