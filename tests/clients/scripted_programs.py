"""What agent programs play with: a repository, and a session of `envsdk serve --scripted` as a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

TOKEN = "a-token-that-is-long-enough"
DEADLINE_S = 240


def reply(content: str = "", **calls: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a script."""
    return {
        "content": content,
        "tool_calls": [{"name": name, "arguments": given} for name, given in calls.items()],
    }


def write_repository(folder: Path) -> Path:
    """A repository with one commit."""
    folder.mkdir()
    (folder / "sums.py").write_text("def add(a, b):\n    return a - b\n")
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "config", "user.name", "Somebody")
    git(folder, "config", "user.email", "somebody@example.com")
    git(folder, "add", "sums.py")
    git(folder, "commit", "--quiet", "--message", "Begin")
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True, slots=True)
class Session:
    """One session of the served script."""

    base_url: str
    key: str
    url: str

    def end(self) -> list[int]:
        """Ends it; returns how many turns each of its lines has."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        ended: Any = httpx2.post(f"{self.url}/end", json={}, headers=headers, timeout=60).json()
        return sorted((turns for each in ended["trajectories"] for turns in each["segments"]), reverse=True)

    def run(self, command: Sequence[str], folder: Path, **variables: str) -> str:
        """What a program prints that plays with it, in a home of its own and without any other network."""
        home = folder.parent / "home"
        home.mkdir(exist_ok=True)
        nowhere = "http://127.0.0.1:9"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "HTTP_PROXY": nowhere,
            "HTTPS_PROXY": nowhere,
            "NO_PROXY": "127.0.0.1",
            **variables,
        }
        ended = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


@contextmanager
def playing(
    script: Path, replies: Sequence[Mapping[str, Any]], *, model: str = "policy"
) -> Iterator[Session]:
    """A session of `envsdk serve --scripted` with these replies, the model by this name."""
    script.write_text("".join(json.dumps(each) + "\n" for each in replies))
    command = [
        sys.executable,
        "-m",
        "envsdk.serve",
        "--scripted",
        str(script),
        "--port",
        "0",
        "--name",
        model,
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "ENVSDK_ENDPOINT_TOKEN": TOKEN},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"at (http://127\.0\.0\.1:\d+)/v1", line)
        assert found, line + process.stdout.read()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        opened: Any = httpx2.post(f"{found[1]}/sessions", json={}, headers=headers).json()
        yield Session(opened["base_url"], opened["api_key"], f"{found[1]}/sessions/{opened['id']}")
    finally:
        process.kill()
        process.wait()
