"""What a sandbox shows for its harness, and the script that starts it."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from envsdk.contracts.agent_door import AgentDoor, agent_variables
from envsdk.envs.swe.harness.record import Harness
from envsdk.rewards.sandbox.scratch import scratch_folder

PORT = 18423
"""Port of the endpoint, on the sandbox's own loopback."""
FOLDER, SOCKET = "/run/harness", "/run/policy.socket"
_PROGRAMS = [Path(__file__).with_name(name) for name in ("connect.py", "play_acp.py")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One episode of a harness, ready to be played."""

    binds: Mapping[str, Path]
    """Shown read-only, by their places inside."""
    script: str
    env: Mapping[str, str]


@asynccontextmanager
async def staged(harness: Harness, task: str, door: AgentDoor) -> AsyncIterator[Stage]:
    """The stage of a task, whose files are there while the block runs. It is readable for every user."""
    async with scratch_folder() as folder:
        folder.chmod(0o755)
        (folder / "files").mkdir(mode=0o755)
        given = {"command": harness.command, "task": task}
        given |= {program.name: program.read_text(encoding="utf-8") for program in _PROGRAMS}
        given |= {f"files/{name}": content for name, content in harness.files.items()}
        for name, content in given.items():
            (folder / name).write_text(content, encoding="utf-8", errors="replace")
            (folder / name).chmod(0o644)
        command = ["python", "-I", f"{FOLDER}/connect.py", str(PORT), SOCKET, "bash", f"{FOLDER}/command"]
        yield Stage(
            binds={**harness.shown, FOLDER: folder, SOCKET: door.socket},
            script=f"exec {shlex.join(command)}",
            env={
                **agent_variables(f"http://127.0.0.1:{PORT}", door.api_key, door.model),
                "HARNESS": str(harness.place),
                "HARNESS_TASK": f"{FOLDER}/task",
                "HARNESS_FILES": f"{FOLDER}/files",
                **harness.variables,
            },
        )
