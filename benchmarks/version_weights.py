"""Weights from a trainer's first rank to explorers that are programs of their own, by each sync method.

    python benchmarks/version_weights.py --parameters 1e6 1e8 --explorers 1 2 --json figures.json

Random float32 weights in the shapes of a decoder are published several times. *publish* is how long the
trainer waits; *fetch* is how long the slowest of the explorers takes until it holds checked weights, counted
from the row in the buffer. `memcpy` copies the same bytes once, `write` writes and syncs them into one file:
what memory and disk can do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from benchmarks.weight_update import decoder_weights
from envsdk.buffer.contract import PublishedVersion
from envsdk.config.loading import load_config
from envsdk.config.models import RunConfig
from envsdk.explorers.weights import VersionPublisher, VersionReader
from envsdk.weights.source import OutletReport, WeightOutlet

MB = 1e6
METHODS = ("checkpoint", "memory", "nccl")


class Rank:
    """A trainer's first rank, in this process."""

    def __init__(self, weights: dict[str, NDArray[Any]]) -> None:
        self._weights = weights

    async def give_weights(self, outlet: WeightOutlet) -> OutletReport:
        copies = ((name, array.copy()) for name, array in self._weights.items())
        return OutletReport(location=outlet.take(copies))


def config_of(folder: Path, method: str) -> RunConfig:
    keys = ["mode=train", f"output_dir={folder / 'runs'}", f"synchronizer.sync_method={method}"]
    return load_config("agentic_async.yaml", keys).config


def explorer(folder: Path, method: str, name: str, rows: Connection) -> None:
    """Fetch each version whose row comes; answer when it is here."""
    config = config_of(folder, method)
    reader = VersionReader(config, config.run_folder / "explorers" / name, folder / "model", say=print)
    rows.send("ready")
    while (row := rows.recv()) is not None:
        fetched = asyncio.run(reader.fetch(row))
        assert fetched.version == row.version
        rows.send(fetched.version)


async def measure(
    folder: Path, model: Path, weights: dict[str, NDArray[Any]], method: str, num_explorers: int, repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds of each publication and of each fetch; those of the first are left out."""
    publisher = VersionPublisher(config_of(folder, method), Rank(weights), model=model, say=print)
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for index in range(num_explorers):
        here, there = context.Pipe()
        process = context.Process(target=explorer, args=(folder, method, f"explorer{index}", there))
        process.start()
        pipes.append(here)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    published, fetched = [], []
    for version in range(repeats + 1):
        began = time.perf_counter()
        location = await publisher.publish(version)
        between = time.perf_counter()
        row = PublishedVersion(version=version, step=version, location=location, published_at=0.0)
        for pipe in pipes:
            pipe.send(row)
        for pipe in pipes:
            pipe.recv()
        ended = time.perf_counter()
        if version:
            published.append(between - began)
            fetched.append(ended - between)
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join()
    await publisher.close()
    return published, fetched


def median_s(work: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def write_synced(file: Path, data: NDArray[np.uint8]) -> None:
    with file.open("wb") as target:
        target.write(data.data)
        target.flush()
        os.fsync(target.fileno())


def floors(file: Path, size: int, repeats: int) -> dict[str, float]:
    """What memory and disk can do."""
    data, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    return {
        "memcpy": median_s(lambda: np.copyto(target, data), repeats),
        "write": median_s(lambda: write_synced(file, data), repeats),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parameters", type=float, nargs="+", default=[1e6, 1e8])
    parser.add_argument("--explorers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk that is measured; default: a temporary one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs; medians of {options.repeats}")
    print("parameters        MB  method      explorers  publish s   MB/s   fetch s   MB/s")
    for parameters in options.parameters:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            folder = Path(name)
            weights = dict(decoder_weights(int(parameters * 4)))
            model = folder / "model"
            model.mkdir()
            save_file(weights, model / "model.safetensors")
            (model / "config.json").write_text("{}")
            size = sum(array.nbytes for array in weights.values())
            for what, seconds in floors(folder / "file", size, options.repeats).items():
                print(
                    f"{parameters:10.0e} {size / MB:9.1f}  {what:10}            {seconds:9.3f} "
                    f"{size / MB / seconds:6.0f}"
                )
                rows.append({"parameters": parameters, "bytes": size, "method": what, "publish_s": seconds})
            for method in options.methods:
                for count in options.explorers:
                    published, fetched = asyncio.run(
                        measure(folder, model, weights, method, count, options.repeats)
                    )
                    publish_s, fetch_s = statistics.median(published), statistics.median(fetched)
                    print(
                        f"{parameters:10.0e} {size / MB:9.1f}  {method:10} {count:9}  {publish_s:9.3f} "
                        f"{size / MB / publish_s:6.0f} {fetch_s:9.3f} {size * count / MB / fetch_s:6.0f}",
                        flush=True,
                    )
                    rows.append(
                        {
                            "parameters": parameters,
                            "bytes": size,
                            "method": method,
                            "explorers": count,
                            "publish_s": publish_s,
                            "fetch_s": fetch_s,
                        }
                    )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
