"""A harness: an agent program, how it is installed, what a sandbox shows for it, and how it is started.

Those that ship are the files `NAME.toml` beside this module.

env_config: {harness: mini-swe-agent}
env_config: {harness: {name: mini-swe-agent, variables: {MSWEA_COST_TRACKING: default}}}
env_config: {harness: {command: '"$HARNESS/bin/mine" < "$HARNESS_TASK"', folder: /opt/mine}}
"""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from envsdk.base.settings.nearest import did_you_mean
from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import validated
from envsdk.contracts.agent_door import AgentDoor, agent_variables
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.tasks.runtime import swe_cache
from envsdk.rewards.sandbox.bubblewrap.system import interpreter
from envsdk.rewards.sandbox.scratch import scratch_folder

INSTALLED = ".installed"
"""File in an installation's folder that is written last."""
_MERGED = ("variables", "files")
"""Keys whose entries are overridden one by one."""
_SHIPPED = Path(__file__).parent
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Harness(StrictSettings):
    """One agent program. Its keys in a tag's `harness` override those of the harness called `name`."""

    name: str = "harness"
    """What messages call it; the name of one that ships, whose other keys it then has."""
    install: str = ""
    """Bash script that installs it into the current folder, with this Python as `$PYTHON`."""
    folder: Path | None = None
    """Where it is installed; a folder of the cache, made by `install`, when absent."""
    command: str = Field(min_length=1)
    """Bash script that plays one episode, in the repository. `$HARNESS` is the installation, `$HARNESS_TASK`
    a file with the issue, `$HARNESS_FILES` the folder of `files`, `$ENVSDK_MODEL` the model."""
    variables: Mapping[str, str] = Field(default_factory=dict)
    """More environment variables. OpenAI's and Anthropic's clients find the policy by theirs."""
    files: Mapping[str, str] = Field(default_factory=dict)
    """Files that it is given, such as its configuration: contents by name."""
    result: str = ""
    """File that it leaves its patch in; when absent, or not written, the changed files are the patch."""

    @property
    def place(self) -> Path:
        """The folder of its installation, which may not be there."""
        if self.folder is not None:
            return self.folder.expanduser().absolute()
        digest = hashlib.sha256(f"{self.install}\0{sys.version}".encode()).hexdigest()[:12]
        return (swe_cache() / "harnesses" / f"{self.name}-{digest}").absolute()

    @property
    def lacks(self) -> str:
        """Why it cannot be started here; empty where it can."""
        if self.folder is not None:
            return "" if self.place.is_dir() else f"harness {self.name}: there is no folder {self.place}"
        if not self.install or (self.place / INSTALLED).is_file():
            return ""
        ships = _shipped(self.name).get("install") == self.install
        which, run = (self.name, "") if ships else ("CONFIG.yaml", ", CONFIG.yaml being the run's file")
        how = f"`python -m envsdk.envs.swe.harness {which}`{run}"
        return f"harness {self.name} is not installed: run {how}, or name its `folder`"

    @property
    def shown(self) -> dict[str, Path]:
        """The folders that its sandbox shows for it, by their place inside."""
        if self.folder is None and not self.install:
            return {}
        python = self.place / "bin" / "python"
        folders = [self.place, *(interpreter(python).outside_usr if python.exists() else ())]
        return {str(folder): folder for folder in folders}


def read_harness(given: str | Mapping[str, Any]) -> Harness:
    """The harness that a tag's `harness` names or describes. ConfigurationError for one that is none."""
    if not isinstance(given, str | Mapping):
        raise ConfigurationError(f"harness: must be a name, or a mapping of its keys, and not {given!r}")
    values: dict[str, Any] = {"name": given} if isinstance(given, str) else dict(given)
    name = values.get("name")
    if base := _shipped(name):
        inner = {
            key: {**base.get(key, {}), **values[key]}
            for key in _MERGED
            if isinstance(values.get(key), Mapping)
        }
        values = {**base, **values, **inner}
    elif "command" not in values:
        known = sorted(path.stem for path in _SHIPPED.glob("*.toml"))
        raise ConfigurationError(
            f"harness: there is no harness {name!r}; give its `command`, or one of {', '.join(known)}."
            f"{did_you_mean(str(name), known)}"
        )
    harness = validated(Harness, values, "harness")
    if wrong := [name for name in harness.files if not _FILE_NAME.fullmatch(name)]:
        raise ConfigurationError(f"harness: files: {wrong[0]!r} is not the name of a file")
    return harness


def _shipped(name: object) -> dict[str, Any]:
    """The keys of the one that ships under this name; empty where none does."""
    file = _SHIPPED / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file in _SHIPPED.glob("*.toml") else {}


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
