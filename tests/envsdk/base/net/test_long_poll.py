from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.net.long_poll import LongPoll, Outbox


class Server:
    """One client's server over a network that delays calls and replies at random."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.outbox: Outbox[int] = Outbox()
        self.received: list[int] = []
        self.num_open = self.most_open = 0

    async def call(self, number: int, items: list[int]) -> list[int]:
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            await self._delay()
            self.received += items
            for item in items:
                self.outbox.put(item)
            reply = await self.outbox.collect(number)
            await self._delay()
            return reply
        finally:
            self.num_open -= 1

    async def _delay(self) -> None:
        for _ in range(self._random.randrange(6)):
            await asyncio.sleep(0)


async def exchange(
    server: Server, said_by_server: Iterable[tuple[int, int]], sent: Iterable[tuple[int, int]]
) -> tuple[list[int], LongPoll[int, list[int]]]:
    """Let both sides talk: `(pause, item)` each, the pause in turns of the loop."""
    heard: list[int] = []
    poll: LongPoll[int, list[int]] = LongPoll(server.call, heard.extend)
    running = asyncio.ensure_future(poll.run())

    async def talk(what: Iterable[tuple[int, int]], say: object) -> None:
        for pause, item in what:
            for _ in range(pause):
                await asyncio.sleep(0)
            say(item)  # type: ignore[operator]

    said_by_server, sent = list(said_by_server), list(sent)
    await asyncio.gather(talk(said_by_server, server.outbox.put), talk(sent, poll.send))
    for _ in range(400):
        if len(heard) == len(said_by_server) + len(sent):
            break
        await asyncio.sleep(0)
    assert not running.done() or running.exception() is None
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return heard, poll


pauses = st.integers(0, 4)


@given(
    seed=st.integers(0, 2**32),
    server_pauses=st.lists(pauses, max_size=12),
    client_pauses=st.lists(pauses, max_size=12),
)
def test_everything_arrives_once_and_what_the_server_says_is_heard_in_order(
    seed: int, server_pauses: list[int], client_pauses: list[int]
) -> None:
    server = Server(seed)
    said = [(pause, i) for i, pause in enumerate(server_pauses)]
    sent = [(pause, 1000 + i) for i, pause in enumerate(client_pauses)]
    heard, _ = asyncio.run(exchange(server, said, sent))
    assert sorted(server.received) == [item for _, item in sent]
    assert sorted(heard) == [item for _, item in said + sent]
    assert [item for item in heard if item < 1000] == [item for _, item in said]
    assert server.most_open <= 2


async def test_what_is_sent_in_one_turn_of_the_loop_travels_in_one_call() -> None:
    _, poll = await exchange(Server(0), [], [(0, i) for i in range(100)])
    assert poll.num_calls <= 2


async def test_a_call_overtaken_by_a_newer_one_gets_nothing_and_ends_at_once() -> None:
    outbox: Outbox[str] = Outbox()
    newer = asyncio.ensure_future(outbox.collect(1))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(outbox.collect(0), timeout=1) == []
    outbox.put("first")
    assert await asyncio.wait_for(newer, timeout=1) == ["first"]


async def test_an_item_goes_to_the_newest_call_though_an_older_one_was_woken_for_it() -> None:
    outbox: Outbox[str] = Outbox()
    older = asyncio.ensure_future(outbox.collect(0))
    await asyncio.sleep(0)
    outbox.put("first")
    newer = asyncio.ensure_future(outbox.collect(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    outbox.put("second")
    assert await older == []
    assert await newer == ["first"]
    assert await outbox.collect(2) == ["second"]


async def test_what_is_left_quietly_goes_with_the_next_item_or_when_it_has_waited_long_enough() -> None:
    outbox: Outbox[str] = Outbox()
    waiting = asyncio.ensure_future(outbox.collect(0))
    await asyncio.sleep(0)
    outbox.flush()
    outbox.put_quietly("quiet")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    outbox.put("loud")
    assert await asyncio.wait_for(waiting, timeout=1) == ["quiet", "loud"]
    outbox.put_quietly("again")
    newer = asyncio.ensure_future(outbox.collect(1))
    await asyncio.sleep(0)
    assert not newer.done()
    outbox.flush()
    assert await asyncio.wait_for(newer, timeout=1) == ["again"]


async def test_closing_an_outbox_ends_the_open_call() -> None:
    outbox: Outbox[str] = Outbox()
    waiting = asyncio.ensure_future(outbox.collect(0))
    await asyncio.sleep(0)
    outbox.close()
    assert await asyncio.wait_for(waiting, timeout=1) == []


async def test_the_first_error_of_a_call_ends_the_exchange() -> None:
    async def call(number: int, items: list[int]) -> list[int]:
        raise ConnectionError("the other end is gone")

    with pytest.raises(ConnectionError, match="the other end is gone"):
        await LongPoll[int, list[int]](call, lambda reply: None).run()


async def test_a_call_that_comes_twice_takes_nothing_from_itself() -> None:
    outbox: Outbox[int] = Outbox()
    call = asyncio.ensure_future(outbox.collect(0))
    await asyncio.sleep(0)
    assert await outbox.collect(0) == []
    outbox.put(1)
    assert await call == [1]


async def test_a_second_call_that_is_lost_ends_the_poll_though_the_first_stays_open() -> None:
    outbox: Outbox[int] = Outbox()

    async def call(number: int, items: list[int]) -> list[int]:
        if items:
            raise ConnectionError("the network was away")
        return await outbox.collect(number)

    poll: LongPoll[int, list[int]] = LongPoll(call, lambda items: None)
    running = asyncio.ensure_future(poll.run())
    await asyncio.sleep(0)
    poll.send(1)
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(running, 10)
