"""Weight updates from the node of this program to engines on others, with the bytes that each node received.

python -m tests.cluster.weight_updates ADDRESS MB TRANSPORT ADDRESS_OF_ENGINE...
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import ray

from benchmarks.weight_update import CopyingHost, Sender
from envsdk.engines.engine import EngineConfig
from envsdk.managers.ray_nodes import NODE_LABEL, cluster_nodes, this_node
from envsdk.weights.transports import choose_transport
from envsdk.weights.update import TransferReport, WeightTransfer, update_engines

MB = 1024**2
NUM_UPDATES = 3


class Meter:
    """Body of an actor on each node with engines."""

    def received(self) -> int:
        """Bytes that came over its links."""
        lines = Path("/proc/net/dev").read_text().splitlines()[2:]
        links = dict(line.split(":") for line in lines)
        return sum(int(numbers.split()[0]) for name, numbers in links.items() if name.strip() != "lo")


def on(node: str, body: type[Any]) -> Any:
    return ray.remote(num_cpus=0, label_selector={NODE_LABEL: node})(body)


async def measure(size_mb: int, asked_for: str, addresses: list[str]) -> dict[str, Any]:
    ids = {node.address: node.node_id for node in cluster_nodes()}
    nodes = {f"engine-{index}": ids[address] for index, address in enumerate(addresses)}
    config = EngineConfig(model=None, sequence_length=64)
    engines = {name: on(node, CopyingHost).remote("copying", config) for name, node in nodes.items()}
    sender = on(this_node(), Sender).remote(size_mb * MB)
    meters = {address: on(ids[address], Meter).remote() for address in addresses}
    await asyncio.gather(*(engine.start.remote() for engine in engines.values()))
    transport = choose_transport(
        asked_for, trainer_node=this_node(), engine_nodes=nodes, can_share_memory=True
    )

    async def send(transfer: WeightTransfer) -> TransferReport:
        report: TransferReport = await sender.send.remote(transfer)
        return report

    async def received() -> dict[str, int]:
        return {address: await meter.received.remote() for address, meter in meters.items()}

    found: dict[str, Any] = {"transport": str(transport), "seconds": []}
    for version in range(1, NUM_UPDATES + 1):
        before, begun = await received(), time.monotonic()
        report = await update_engines(
            engines, send, version=version, mode="continue", transport=transport, bucket_bytes=16 * MB
        )
        assert report is not None
        assert len(report.engines) == len(engines)
        found["seconds"].append(time.monotonic() - begun)
        after = await received()
        found["copies"] = {each: (after[each] - before[each]) / report.num_bytes for each in after}
    return found


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    result = asyncio.run(measure(int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
    sys.stdout.write(json.dumps(result) + "\n")
