"""What SWE's sandboxes cost in real containers, beside plain subprocesses and bubblewrap in the same run.

    python benchmarks/swe_containers.py podman --image localhost/mine:1 [--commands N]

Measured by turns: a command that reads one file, plain, in a bubblewrap sandbox, in a container, and in a
container whose disk use is not asked for after each command; then making and deleting a container with a
repository of 200 files, and the comparison that makes the patch.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from swe_sandbox import SCRIPT, make_repository, plain, timed

from envsdk.rewards.sandbox import Image, Sandbox, open_backend


async def sandboxed(sandbox: Sandbox) -> float:
    """Milliseconds of one command, by the caller's clock."""
    started = time.perf_counter()
    result = await sandbox.exec(SCRIPT, timeout_s=300)
    assert result.ok, result
    return 1000 * (time.perf_counter() - started)


async def measure(program: str, image: str, repository: Path, num_commands: int) -> dict[str, float]:
    """Medians in milliseconds."""
    backends = {
        "bubblewrap": open_backend("bubblewrap"),
        program: open_backend(program, {"image": image}),
        f"{program}, checks_disk: false": open_backend(program, {"image": image, "checks_disk": False}),
    }
    sandboxes = {name: await backend.start(Image(tree=repository)) for name, backend in backends.items()}
    taken: dict[str, list[float]] = {"plain": []} | {name: [] for name in sandboxes}
    for _ in range(num_commands):
        taken["plain"].append(await plain(repository))
        for name, sandbox in sandboxes.items():
            taken[name].append(await sandboxed(sandbox))
    container = sandboxes[program]
    await container.exec("sed -i s/1/2/ lib.py; echo new > new", timeout_s=300)
    taken["diff()"] = [await timed(container.diff) for _ in range(num_commands)]
    taken["start"], taken["close"] = [], []
    for _ in range(num_commands):
        started = time.perf_counter()
        made = await backends[program].start(Image(tree=repository))
        taken["start"].append(1000 * (time.perf_counter() - started))
        taken["close"].append(await timed(made.close))
    for backend in backends.values():
        await backend.aclose()
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", nargs="?", choices=("podman", "docker"))
    parser.add_argument("--image", default="python:3.11")
    parser.add_argument("--commands", type=int, default=20, help="how often each thing is timed")
    options = parser.parse_args()
    if options.program is None:
        print("nothing measured: name podman or docker")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        repository = make_repository(Path(folder))
        figures = asyncio.run(measure(options.program, options.image, repository, options.commands))
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    for name, value in figures.items():
        print(f"  {name:<32} {value:8.1f} ms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
