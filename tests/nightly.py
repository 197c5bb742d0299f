"""Runs every test that `make test` leaves out, one make target after another, and prints one table.

    python -m tests.nightly                          # all: `make test-nightly`
    python -m tests.nightly test-postgres docs       # these
    python -m tests.nightly --list

What a target needs of the system's packages is installed where this user may. A target that fails does not
stop the others; the exit code is 1 if one did.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build/nightly"
TARGETS: Mapping[str, Sequence[str]] = {
    "docs": (),
    "test-slow": (),
    "test-properties": (),
    "test-mutations": (),
    "test-postgres": ("postgresql",),
    "test-browser": ("chromium-headless-shell",),
    "test-alfworld": ("g++", "make"),
    "test-datasets": (),
    "test-models": (),
    "test-peers": (),
    "test-openenv": (),
    "test-verifiers": (),
    "test-adapters": ("gcc",),
    "test-trackers": (),
    "test-kubernetes": ("bubblewrap", "git"),
    "test-clients": ("nodejs", "npm"),
    "test-vllm": (),
    "test-podman": ("podman", "crun", "runc"),
    "test-cluster": ("redis-server", "iproute2"),
    "test-soak": (),
    "test-image": ("podman", "runc", "debootstrap"),
}
"""Make targets with the packages of Debian that they need."""

_COUNTS = re.compile(r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    target: str
    code: int
    seconds: float
    counts: str
    """What pytest counted in each of its runs, `120 passed, 2 skipped`; empty where none ran."""


def counted(output: str) -> str:
    """The last lines of each run of pytest, joined."""
    return " + ".join(_COUNTS.findall(output))


def install(packages: Sequence[str]) -> None:
    if packages and shutil.which("apt-get") and os.getuid() == 0:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "-qq", "install", "--yes", "--no-install-recommends", *packages]
        if subprocess.run(command, env=quiet, capture_output=True, check=False).returncode:
            subprocess.run(["apt-get", "-qq", "update"], env=quiet, capture_output=True, check=False)
            subprocess.run(command, env=quiet, capture_output=True, check=False)


def run(target: str) -> Outcome:
    """Make `target`; what it prints goes to build/nightly/TARGET.log."""
    install(TARGETS[target])
    log, began = LOGS / f"{target}.log", time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(
            ["make", target],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    output = log.read_text(encoding="utf-8", errors="replace")
    return Outcome(target, code, time.monotonic() - began, counted(output))


def table(outcomes: Sequence[Outcome]) -> str:
    rows = ["| target | outcome | minutes | tests |", "| --- | --- | --- | --- |"]
    for each in outcomes:
        said = "passed" if each.code == 0 else f"FAILED ({each.code})"
        rows.append(f"| {each.target} | {said} | {each.seconds / 60:.1f} | {each.counts or '-'} |")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--list"]:
        print("\n".join(TARGETS))
        return 0
    if unknown := set(arguments) - set(TARGETS):
        print(
            f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}", file=sys.stderr
        )
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for target in arguments or TARGETS:
        print(f"make {target} ...", flush=True)
        outcomes.append(run(target))
        print(f"make {target}: exit {outcomes[-1].code}, {outcomes[-1].counts}", flush=True)
    print(f"\n{table(outcomes)}\n\nOutput: {LOGS}")
    return int(any(each.code for each in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
