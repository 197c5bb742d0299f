"""A backend that isolates nothing, for tests of what stands around the sandbox: bash in a copy of the tree.

A command that begins with `#toy` ends as it says: `#toy timeout`, `#toy infrastructure` ...
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envsdk.rewards.sandbox import ExecEnd, ExecResult, Image, Limits, SandboxFileError

NAME = "tests.envs.swe.toy_sandbox:ToyBackend"


class ToySandbox:
    def __init__(self, image: Image, folder: Path) -> None:
        assert image.tree is not None
        self.image = image
        self.id = folder.name
        self._folder = folder
        self._tree = folder / "testbed"
        shutil.copytree(image.tree, self._tree, symlinks=True)
        (folder / "tmp").mkdir()

    async def exec(
        self,
        script: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        if script.startswith("#toy "):
            reason = ExecEnd(script.removeprefix("#toy ").strip())
            return self._result("half an output", None if reason is ExecEnd.INFRASTRUCTURE else 137, reason)
        script = re.sub(r"(?<![.\w])/tmp", f"{self._folder}/tmp", script)
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            script,
            cwd=self._tree,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self._folder), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        output, _ = await asyncio.wait_for(process.communicate(), timeout_s)
        return self._result(output.decode(errors="replace"), process.returncode, ExecEnd.EXIT)

    def _result(self, output: str, returncode: int | None, reason: ExecEnd) -> ExecResult:
        return ExecResult(
            output=output, returncode=returncode, reason=reason, elapsed_s=0.1, total_bytes=len(output)
        )

    def _inside(self, path: str) -> Path:
        return self._folder / path.lstrip("/") if path.startswith("/tmp/") else self._tree / path

    async def read(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        return self._inside(path).read_bytes()

    async def write(self, path: str, data: bytes) -> None:
        self._inside(path).write_bytes(data)

    async def diff(self) -> str:
        if not self._tree.is_dir():
            raise SandboxFileError("there is no folder")
        process = await asyncio.create_subprocess_shell(
            "git add -A && git diff --cached --binary $(git rev-list --max-parents=0 HEAD)",
            cwd=self._tree,
            stdout=subprocess.PIPE,
        )
        return (await process.communicate())[0].decode(errors="surrogateescape")

    async def pack(self, *, max_bytes: int = 1 << 30) -> bytes:
        command = ["tar", "-cz", "testbed", "tmp"]
        done = await asyncio.to_thread(subprocess.run, command, cwd=self._folder, stdout=subprocess.PIPE)
        return bytes(done.stdout)

    async def unpack(self, archive: bytes) -> None:
        shutil.rmtree(self._tree)
        await asyncio.to_thread(subprocess.run, ["tar", "-xz"], cwd=self._folder, input=archive, check=True)

    async def alive(self) -> bool:
        return self._folder.is_dir()

    async def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class ToyBackend:
    """Settings: `folder`, where the sandboxes are; `broken`, what `start` raises."""

    name = "toy"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._folder = Path(settings["folder"])

    async def probe(self) -> None: ...

    async def start(self, image: Image, *, limits: Limits | None = None) -> ToySandbox:
        return ToySandbox(image, Path(tempfile.mkdtemp(dir=self._folder)))

    async def aclose(self) -> None:
        for folder in self._folder.glob("*"):
            shutil.rmtree(folder)
