"""Shell: hears of nodes of the cluster that are being drained, before they go.

A node is drained by `ray drain-node`, by an autoscaler, and by SIGTERM to its `ray start --block`. Ray starts
nothing there any more; what runs there goes on until the machine is taken away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import ray
from ray._private.state import state

LOOK_S = 1.0
DEFAULT_GRACE_S = 30.0
"""Grace of a node that is drained without a deadline, or with one that passed before it was seen: the clocks
of the two machines differ then."""

NodeLeaves = Callable[[str, float], Awaitable[None]]
"""Called with a node's id and the seconds it still has."""


class NodeWatch:
    """Owner: the process that must act. `run` until cancelled."""

    def __init__(self, leaves: NodeLeaves) -> None:
        self._leaves = leaves
        self._known: set[str] = set()

    async def run(self) -> None:
        """Tell of each node once."""
        while True:
            try:
                draining = await asyncio.to_thread(state.get_draining_nodes)
            except Exception:  # noqa: BLE001 - boundary: Ray's head may be away for a moment
                draining = {}
            for node, deadline_ms in draining.items():
                if node not in self._known:
                    self._known.add(node)
                    left_s = deadline_ms / 1000 - time.time()
                    await self._leaves(node, left_s if left_s > 0 else DEFAULT_GRACE_S)
            await asyncio.sleep(LOOK_S)


async def watch_nodes(needed: Mapping[str, str], give_way: Callable[[str], None]) -> None:
    """Call `give_way`, with a sentence for people, when one of these nodes is to go. Ends when cancelled.

    `needed` says by node id what runs there.
    """

    async def leaves(node: str, grace_s: float) -> None:
        if node in needed:
            give_way(f"node {address_of(node)}, where {needed[node]} runs, goes away in {grace_s:.0f} s")

    await NodeWatch(leaves).run()


def address_of(node: str) -> str:
    """How people know a node."""
    found = [each["NodeManagerAddress"] for each in ray.nodes() if each["NodeID"] == node]
    return str(found[0]) if found else node[:8]
