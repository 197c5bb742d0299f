"""What SWE's bubblewrap sandboxes cost, beside plain subprocesses of the same run.

    python benchmarks/swe_sandbox.py [--json FILE] [--commands N] [--at-once N] [--lives N]

Measured: one command, alone and from 64 sandboxes that all have work to do; making and deleting a sandbox;
a snapshot, a restore and a fork; a file in and out; the comparison that makes the patch; processes and memory
of 64 idle sandboxes; sandboxes that are started all at once. With `--lives`, so many sandboxes live one after
another, some at a time, and what is left of them is counted: processes, mounts, control groups and folders.
Plain commands and sandboxed ones take turns, so that both meet the same load, and as many plain ones run at
once as there are slots for sandboxed ones. CPU time, which other work on the machine changes little, is
counted where a control group for it can be made (version 1, as root). The exit code is 1 when a goal is
missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from envsdk.rewards.sandbox import Image
from envsdk.rewards.sandbox.bubblewrap import BubblewrapBackend
from envsdk.rewards.sandbox.bubblewrap.leases import MARK
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox

NUM_SANDBOXES = 64
SCRIPT = "cat lib.py > /dev/null"
MAX_OVERHEAD_MS = 30.0
FILE = bytes(range(256)) * 256
LIVES_AT_ONCE = 8
LEFT_BEHIND_S = 100043
"""Of a process that a command leaves behind; tells it from others."""
NUM_FILES = 200
"""Of the repository: what a comparison reads."""


def make_repository(folder: Path) -> Path:
    """One commit of NUM_FILES small modules."""
    for number in range(NUM_FILES):
        (folder / f"module{number}.py").write_text(f"VALUE = {number}\n" * 50)
    (folder / "lib.py").write_text("def one():\n    return 1\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "base"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


async def plain(folder: Path) -> float:
    """Milliseconds of one command without a sandbox."""
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", SCRIPT), cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    await process.communicate()
    assert process.returncode == 0
    return 1000 * (time.perf_counter() - started)


async def sandboxed(sandbox: BubblewrapSandbox) -> float:
    """Milliseconds of one command in a sandbox, by the caller's clock."""
    started = time.perf_counter()
    result = await sandbox.exec(SCRIPT, timeout_s=120)
    assert result.ok, result
    return 1000 * (time.perf_counter() - started)


class CpuClock:
    """Milliseconds of CPU time of this program and all that it starts, from now on; NaN where uncounted."""

    def __init__(self) -> None:
        self._group = Path(f"/sys/fs/cgroup/cpuacct/envsdk-benchmark-{os.getpid()}")
        try:
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            self._group = Path("/nowhere")

    def ms(self) -> float:
        try:
            return int((self._group / "cpuacct.usage").read_text()) / 1e6
        except OSError:
            return math.nan

    def close(self) -> None:
        if self._group.is_dir():
            (self._group.parent / "cgroup.procs").write_text(str(os.getpid()))
            self._group.rmdir()


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of anything."""
    started = time.perf_counter()
    await work()
    return 1000 * (time.perf_counter() - started)


async def in_turns(repository: Path, sandbox: BubblewrapSandbox, num_commands: int) -> dict[str, float]:
    plain_ms, sandboxed_ms = [], []
    for _ in range(num_commands):
        plain_ms.append(await plain(repository))
        sandboxed_ms.append(await sandboxed(sandbox))
    clock = CpuClock()
    began = clock.ms()
    for _ in range(num_commands):
        await plain(repository)
    between = clock.ms()
    for _ in range(num_commands):
        await sandboxed(sandbox)
    ended = clock.ms()
    clock.close()
    overheads = [inside - outside for inside, outside in zip(sandboxed_ms, plain_ms, strict=True)]
    return {
        "plain_ms": statistics.median(plain_ms),
        "sandboxed_ms": statistics.median(sandboxed_ms),
        "overhead_ms": statistics.median(overheads),
        "overhead_best_ms": min(sandboxed_ms) - min(plain_ms),
        "plain_cpu_ms": (between - began) / num_commands,
        "sandboxed_cpu_ms": (ended - between) / num_commands,
    }


async def at_once(repository: Path, sandboxes: list[BubblewrapSandbox], slots: int) -> dict[str, float]:
    """Commands per second when every sandbox has four to run, and the same number of plain ones."""
    limit = asyncio.Semaphore(slots)

    async def one_plain() -> None:
        async with limit:
            await plain(repository)

    async def four(sandbox: BubblewrapSandbox) -> None:
        for _ in range(4):
            await sandboxed(sandbox)

    num_commands = 4 * len(sandboxes)
    inside_ms = await timed(lambda: asyncio.gather(*map(four, sandboxes)))
    outside_ms = await timed(lambda: asyncio.gather(*(one_plain() for _ in range(num_commands))))
    return {
        "sandboxed_per_s": 1000 * num_commands / inside_ms,
        "plain_per_s": 1000 * num_commands / outside_ms,
        "ms_per_command": inside_ms / num_commands,
    }


def processes_of(lease: str) -> int:
    mark = f"{MARK}={lease}".encode()
    environments = (read_or_nothing(path) for path in Path("/proc").glob("[0-9]*/environ"))
    return sum(mark in environment.split(b"\0") for environment in environments)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure(repository: Path, num_commands: int) -> dict[str, dict[str, float]]:
    backend = BubblewrapBackend({})
    image = Image(tree=repository)
    first = await backend.start(image)
    await sandboxed(first)
    alone = await in_turns(repository, first, num_commands)

    starts, ends = [], []
    for _ in range(num_commands):
        started = time.perf_counter()
        sandbox = await backend.start(image)
        starts.append(1000 * (time.perf_counter() - started))
        await sandbox.exec("echo x > new", timeout_s=60)
        ends.append(await timed(sandbox.close))

    before = resident_bytes()
    sandboxes = [await backend.start(image) for _ in range(NUM_SANDBOXES)]
    many = await at_once(repository, sandboxes, backend.settings.commands_at_once)
    idle = {
        "processes": float(processes_of(first.shared.lease)),
        "kilobytes_each": max(0, resident_bytes() - before) / 1024 / NUM_SANDBOXES,
    }

    await first.exec("sed -i s/1/2/ lib.py; echo new > new", timeout_s=60)
    diffs = [await timed(first.diff) for _ in range(num_commands)]
    snapshots, restores, forks, writes, reads = [], [], [], [], []
    for _ in range(num_commands):
        snapshot = await first.snapshot()
        snapshots.append(await timed(first.snapshot))
        restores.append(await timed(lambda kept=snapshot: first.restore(kept)))  # type: ignore[misc]
        forks.append(await timed(first.fork))
        writes.append(await timed(lambda: first.write("file", FILE)))
        reads.append(await timed(lambda: first.read("file")))
    await backend.aclose()
    plain_ms = alone["plain_ms"]
    return {
        "one sandbox": alone,
        f"{NUM_SANDBOXES} sandboxes": many,
        "episode": {
            "start_ms": statistics.median(starts),
            "close_ms": statistics.median(ends),
            "snapshot_ms": statistics.median(snapshots),
            "restore_ms": statistics.median(restores),
            "fork_ms": statistics.median(forks),
            "diff_ms": statistics.median(diffs),
            f"write_{len(FILE) >> 10}_kb_ms": statistics.median(writes),
            f"read_{len(FILE) >> 10}_kb_ms": statistics.median(reads),
        },
        "in plain commands of the same run": {
            "a start": statistics.median(starts) / plain_ms,
            "a command": alone["sandboxed_ms"] / plain_ms,
            "a fork": statistics.median(forks) / plain_ms,
            "a restore": statistics.median(restores) / plain_ms,
            "a file in": statistics.median(writes) / plain_ms,
            "a file out": statistics.median(reads) / plain_ms,
        },
        f"{NUM_SANDBOXES} idle sandboxes": idle,
    }


async def started_at_once(repository: Path, number: int) -> dict[str, float]:
    """Sandboxes that are started, and run a command, all at once."""
    backend = BubblewrapBackend({})
    image = Image(tree=repository)
    await (await backend.start(image)).close()
    started = time.perf_counter()
    sandboxes = await asyncio.gather(*(backend.start(image) for _ in range(number)))
    up = time.perf_counter()
    results = await asyncio.gather(*(sandbox.exec(SCRIPT, timeout_s=600) for sandbox in sandboxes))
    ran = time.perf_counter()
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    ended = time.perf_counter()
    await backend.aclose()
    return {
        "lost": float(sum(not result.ok for result in results)),
        "starts_per_s": number / (up - started),
        "with_command_per_s": number / (ran - started),
        "ends_per_s": number / (ended - ran),
    }


async def lives(repository: Path, number: int) -> dict[str, float]:
    """Sandboxes that start, write a file and leave a process behind, and end; and what is left of them."""
    backend = BubblewrapBackend({})
    state = backend.settings.state_dir
    image = Image(tree=repository)
    first = await backend.start(image)
    lease = first.shared.lease
    waiting = iter(range(number))
    lost = 0

    async def live() -> None:
        nonlocal lost
        for _ in waiting:
            sandbox = await backend.start(image)
            result = await sandbox.exec(f"echo x > new; sleep {LEFT_BEHIND_S} & true", timeout_s=600)
            lost += not result.ok
            await sandbox.close()

    took_ms = await timed(lambda: asyncio.gather(*(live() for _ in range(LIVES_AT_ONCE))))
    await first.close()
    left = left_of(lease, state / lease)
    await backend.aclose()
    left["folders"] += (state / lease).exists()
    return {"lost": float(lost), "lives_per_s": 1000 * number / took_ms, "took_s": took_ms / 1000, **left}


def left_of(lease: str, folder: Path) -> dict[str, float]:
    """What sandboxes of a backend have left, which are all closed."""
    inside = f"sleep\0{LEFT_BEHIND_S}\0".encode()
    commands = [read_or_nothing(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    groups = [path for path in Path("/sys/fs/cgroup").rglob(f"envsdk.{lease}.*") if path.is_dir()]
    return {
        "processes": float(processes_of(lease) + sum(command == inside for command in commands)),
        "mounts": float(Path("/proc/self/mountinfo").read_text().count(lease)),
        "control_groups": float(len(groups)),
        "folders": float(sum((path / "stage").is_dir() for path in folder.iterdir())),
    }


def read_or_nothing(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--commands", type=int, default=40, help="how often each thing is timed")
    parser.add_argument("--at-once", type=int, default=256, help="how many sandboxes are started at once")
    parser.add_argument("--lives", type=int, default=0, help="how many sandboxes live one after another")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = make_repository(Path(folder))
        if options.lives:
            figures = {f"{options.lives} lives": asyncio.run(lives(repository, options.lives))}
        else:
            figures = asyncio.run(measure(repository, options.commands))
            figures[f"{options.at_once} at once"] = asyncio.run(started_at_once(repository, options.at_once))
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores, load average {load:.1f}, {'root' if os.geteuid() == 0 else 'a normal user'}"
    )
    for part, values in figures.items():
        print(part)
        for name, value in values.items():
            print(f"  {name:<20} {value:10.2f}")
    if options.json:
        options.json.write_text(json.dumps({"load_average": load, **figures}, indent=2) + "\n")
    missed = []
    if "one sandbox" in figures and figures["one sandbox"]["overhead_ms"] >= MAX_OVERHEAD_MS:
        missed.append(f"a command costs {MAX_OVERHEAD_MS:g} ms or more over a plain one")
    for part, values in figures.items():
        for name in ("lost", "processes", "mounts", "control_groups", "folders"):
            if values.get(name):
                missed.append(f"{part}: {values[name]:g} {name.replace('_', ' ')}, not 0")
    for problem in missed:
        print(f"missed: {problem}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
