"""How long a node that is drained still has."""

from __future__ import annotations

import asyncio

import pytest

from envsdk.runs import node_watch
from envsdk.runs.node_watch import DEFAULT_GRACE_S, NodeWatch


@pytest.mark.parametrize(
    ("deadline_s", "left_s"),
    [(1060.0, 60.0), (0.0, DEFAULT_GRACE_S), (940.0, DEFAULT_GRACE_S)],
    ids=["as_it_says", "it_says_nothing", "the_clock_here_is_ahead"],
)
async def test_a_node_that_is_drained_has_time_for_its_episodes(
    monkeypatch: pytest.MonkeyPatch, deadline_s: float, left_s: float
) -> None:
    told: asyncio.Future[tuple[str, float]] = asyncio.get_running_loop().create_future()

    async def leaves(node: str, grace_s: float) -> None:
        told.set_result((node, grace_s))

    monkeypatch.setattr(node_watch.state, "get_draining_nodes", lambda: {"node": int(deadline_s * 1000)})
    monkeypatch.setattr("envsdk.runs.node_watch.time.time", lambda: 1000.0)
    watching = asyncio.ensure_future(NodeWatch(leaves).run())
    assert await asyncio.wait_for(told, 60) == ("node", left_s)
    watching.cancel()
