"""What a process prints reaches each of its followers in order, and is acknowledged once."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from envsdk.rewards.sandbox.sandboxd.guest import Event, Exited, Printed, Running
from envsdk.rewards.sandbox.sandboxd.inside import server as wire

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("print"), st.binary(min_size=1, max_size=5)),
        st.just(("follow", 0)),
        st.tuples(st.sampled_from(["take", "leave"]), st.integers(0, 3)),
    ),
    max_size=30,
)


class Follower:
    def __init__(self, running: Running, begins: int) -> None:
        self.stack = contextlib.ExitStack()
        self.events = self.stack.enter_context(running.events())
        self.begins = begins
        self.seen: list[bytes] = []

    async def waiting(self) -> list[Event]:
        """The events that are there."""
        return [await self.events.next() for _ in range(self.events._queue.qsize())]


@given(STEPS)
def test_every_follower_sees_all_from_its_start_and_each_byte_is_acknowledged_once(steps: list[Any]) -> None:
    asyncio.run(follow(steps))


async def follow(steps: list[Any]) -> None:
    acknowledged: list[int] = []

    def send(kind: int, number: int, payload: bytes) -> None:
        assert (kind, number) == (wire.ACKNOWLEDGE, 7)
        acknowledged.append(int(payload))

    running = Running(SimpleNamespace(send=send), 7, {})  # type: ignore[arg-type]
    printed: list[bytes] = []
    followers: list[Follower] = []
    was_followed = False
    for what, value in steps:
        if what == "print":
            running.tell(Printed(wire.OUTPUT, value))
            printed.append(value)
        elif what == "follow":
            followers.append(Follower(running, len(printed) if was_followed else 0))
            was_followed = True
        elif value < len(followers):
            follower = followers[value]
            if what == "take":
                follower.seen += [
                    event.data for event in await follower.waiting() if isinstance(event, Printed)
                ]
                assert follower.seen == printed[follower.begins :]
            else:
                followers.remove(follower)
                follower.stack.close()
        assert sum(acknowledged) <= sum(map(len, printed))
    running.tell(Exited(3))
    for follower in followers:
        follower.seen += [event.data async for event in follower.events if isinstance(event, Printed)]
        assert follower.seen == printed[follower.begins :]
    late = Follower(running, len(printed))
    assert (await late.waiting())[-1] == Exited(3)
    late.stack.close()


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=20))
def test_what_nobody_follows_is_acknowledged_at_once(chunks: list[bytes]) -> None:
    acknowledged: list[int] = []

    async def run() -> None:
        guest = SimpleNamespace(send=lambda kind, number, payload: acknowledged.append(int(payload)))
        running = Running(guest, 1, {})  # type: ignore[arg-type]
        with running.events():
            pass
        for chunk in chunks:
            running.tell(Printed(wire.OUTPUT, chunk))

    asyncio.run(run())
    assert acknowledged == list(map(len, chunks))
