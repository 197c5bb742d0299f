"""A weight update in buckets against copying the weights, from one process to an engine in another.

    python benchmarks/weight_update.py --sizes 50 500 --json figures.json

Random float32 weights in the shapes of a decoder go from an actor to engine hosts in processes of their own,
whose engine keeps a copy of every weight, as one does that goes on with the old ones meanwhile. Right before
each update the sender copies the same arrays by itself: `memcpy` into memory that is there already, which is
the bound, and `copy` into new memory, which is what the engine must do. An update copies twice at least: into
the buckets, and out of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from envsdk.config.ray_models import RayArgs
from envsdk.engines.engine import EngineConfig, WeightReference
from envsdk.engines.engine_host import EngineHost
from envsdk.engines.mock import MockEngine
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.weights.transports import Transport
from envsdk.weights.update import TransferReport, WeightSender, WeightTransfer, update_engines

IN_MAIN_MEMORY = [transport for transport in Transport if not transport.is_on_device]
"""The others are measured on cards: `python -m benchmarks.gpu --only transfer`."""
MB = 1024**2
GOAL = 3.0
"""The fastest transport at its best bucket size, over one copy into new memory, for the largest model."""


class CopyingEngine(MockEngine):
    """Keeps what it is given."""

    async def load_weights(self, weights: WeightReference, version: int) -> None:
        assert not isinstance(weights, Path | Mapping)
        self.weights = await asyncio.to_thread(lambda: {name: array.copy() for name, array in weights})
        await super().load_weights({}, version)


class CopyingHost(EngineHost):
    """An engine host around it."""

    async def start(self) -> None:
        self._engine = CopyingEngine.create(self._config)
        await self._engine.start()


class Sender:
    """Stands for the trainer's first rank."""

    def __init__(self, num_bytes: int) -> None:
        self._weights = dict(decoder_weights(num_bytes))
        self._copies = [array.copy() for array in self._weights.values()]

    def memcpy_and_copy_s(self) -> tuple[float, float]:
        began = time.perf_counter()
        for target, array in zip(self._copies, self._weights.values(), strict=True):
            np.copyto(target, array)
        between = time.perf_counter()
        copies = [array.copy() for array in self._weights.values()]
        ended = time.perf_counter()
        del copies
        return between - began, ended - between

    def send(self, transfer: WeightTransfer) -> TransferReport:
        return WeightSender(transfer).send(self._weights.items())


def decoder_weights(num_bytes: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Matrices of a decoder of about this size, an embedding that is a sixth of it and some norms."""
    width = 128 if num_bytes < 20 * MB else 512 if num_bytes < 200 * MB else 1024
    rng = np.random.default_rng(0)
    per_layer = (4 * width * width + 3 * width * 4 * width + 2 * width) * 4
    yield "model.embed_tokens.weight", rng.random((num_bytes // 6 // width // 4, width), np.float32)
    for layer in range(num_bytes * 5 // 6 // per_layer + 1):
        prefix = f"model.layers.{layer}."
        for part in "qkvo":
            yield f"{prefix}self_attn.{part}_proj.weight", rng.random((width, width), np.float32)
        for part in ("gate", "up", "down"):
            yield f"{prefix}mlp.{part}_proj.weight", rng.random((width, 4 * width), np.float32)
        for part in ("input", "post_attention"):
            yield f"{prefix}{part}_layernorm.weight", rng.random(width, np.float32)


async def measure(size_mb: int, bucket_mb: int, num_engines: int, repeats: int) -> list[dict[str, Any]]:
    """Interleaved repeats over the transports: one row each."""
    sender: Any = ray.remote(num_cpus=0)(Sender).remote(size_mb * MB)
    host: Any = ray.remote(num_cpus=0)(CopyingHost)
    config = EngineConfig(model=None, sequence_length=64)
    engines: dict[str, Any] = {
        f"engine-{index}": host.remote("copying", config) for index in range(num_engines)
    }
    await asyncio.gather(*(engine.start.remote() for engine in engines.values()))

    async def send(transfer: WeightTransfer) -> TransferReport:
        report: TransferReport = await sender.send.remote(transfer)
        return report

    copies: list[tuple[float, float]] = []
    seconds: dict[Transport, list[float]] = {transport: [] for transport in IN_MAIN_MEMORY}
    reports: dict[Transport, TransferReport] = {}
    for version in range(1, repeats + 2):  # the first round loads libraries and is not counted
        for transport in IN_MAIN_MEMORY:
            copied_s = await sender.memcpy_and_copy_s.remote()
            started = time.perf_counter()
            report = await update_engines(
                engines,
                send,
                version=version,
                mode="continue",
                transport=transport,
                bucket_bytes=bucket_mb * MB,
            )
            elapsed = time.perf_counter() - started
            assert report is not None
            reports[transport] = report
            if version > 1:
                copies.append(copied_s)
                seconds[transport].append(elapsed)
    for engine in engines.values():
        ray.kill(engine)
    ray.kill(sender)
    memcpy_s, copy_s = (statistics.median(times) for times in zip(*copies, strict=True))
    return [
        {
            "size_mb": round(reports[transport].num_bytes / MB),
            "bucket_mb": bucket_mb,
            "engines": num_engines,
            "transport": str(transport),
            "buckets": reports[transport].num_buckets,
            "memcpy_s": memcpy_s,
            "copy_s": copy_s,
            "update_s": statistics.median(times),
            "over_memcpy": statistics.median(times) / memcpy_s,
            "over_copy": statistics.median(times) / copy_s,
        }
        for transport, times in seconds.items()
    ]


async def measure_all(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    names = ("MB", "bucket", "buckets", "memcpy s", "copy s", "update s", "/ memcpy", "/ copy")
    print(f"{'transport':<14}" + "".join(f"{name:>10}" for name in names))
    for size_mb in args.sizes:
        for bucket_mb in args.buckets:
            for row in await measure(size_mb, bucket_mb, args.engines, args.repeats):
                rows.append(row)
                print(
                    f"{row['transport']:<14}{row['size_mb']:>10}{bucket_mb:>10}{row['buckets']:>10}"
                    f"{row['memcpy_s']:>10.3f}{row['copy_s']:>10.3f}{row['update_s']:>10.3f}"
                    f"{row['over_memcpy']:>10.2f}{row['over_copy']:>10.2f}",
                    flush=True,
                )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 500], help="MB of weights")
    parser.add_argument("--buckets", type=int, nargs="+", default=[8, 32, 128], help="MB of one bucket")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with ray_runtime(RayArgs()):
        rows = asyncio.run(measure_all(args))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))
    best = min(row["over_copy"] for row in rows if row["size_mb"] >= max(args.sizes))
    print(f"best at {max(args.sizes)} MB: {best:.2f} times one copy (goal: at most {GOAL:g})")
    return 0 if best <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
