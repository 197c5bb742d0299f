"""What the tests of sandboxes share."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

from envsdk.rewards.sandbox import ExecResult, Sandbox
from envsdk.rewards.sandbox.bubblewrap.leases import MARK
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox

Start = Callable[..., Awaitable[BubblewrapSandbox]]


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def said(result: ExecResult) -> str:
    """What a command that was to succeed printed."""
    assert result.ok, result
    return result.output.strip()


def processes_of(lease: str) -> list[int]:
    """Processes a backend has started that run on this machine, those inside its sandboxes left out."""
    mark = f"{MARK}={lease}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what happens outside this program."""
    while not condition():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)


async def check_restoring(sandbox: Sandbox, *, after: str) -> None:
    """A snapshot is what the files are again, whatever was done to them."""
    await sandbox.exec("echo one > a", timeout_s=60)
    kept = await sandbox.snapshot()
    await sandbox.exec(after, timeout_s=60)
    await sandbox.restore(kept)
    files = said(await sandbox.exec("cat a; ls -A", timeout_s=60)).split()
    assert files == ["one", ".git", "a", "lib.py", "tests"]
