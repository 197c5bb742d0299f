"""The modal backend, against a stand-in of its SDK that records calls and runs commands in bubblewrap."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from envsdk.rewards.sandbox import ExecEnd, Image, Limits, SandboxError, SandboxUnavailable
from envsdk.rewards.sandbox.containers import this_process
from envsdk.rewards.sandbox.modal_backend import ModalBackend
from tests.envsdk.rewards.sandbox.boxes import check_restoring, said
from tests.envsdk.rewards.sandbox.test_container_sandboxes import Standin

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Both:
    """A function of the SDK: called as `f.aio(...)`."""

    def __init__(self, aio: Any) -> None:
        self.aio = aio


class Error(Exception):
    pass


class Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin = types.SimpleNamespace(
            write=process.stdin.write, write_eof=process.stdin.close, drain=Both(self._drained)
        )
        self.stdout = process.stdout
        self.wait = Both(process.wait)

    async def _drained(self) -> None:
        await asyncio.sleep(0)


class Sandbox:
    def __init__(self, sdk: Sdk, name: str, tags: dict[str, str]) -> None:
        self.sdk, self.name, self.tags = sdk, name, tags
        self.exec, self.poll = Both(self._exec), Both(self._poll)
        self.terminate, self.get_tags = Both(self._terminate), Both(self._get_tags)
        self.snapshot_filesystem = Both(self._snapshot)
        self.processes: list[asyncio.subprocess.Process] = []

    async def _exec(self, *argv: str, env: dict[str, str], **options: object) -> Process:
        assert options.keys() == {"timeout", "text"}
        assert options["text"] is False
        if argv[:2] == ("bash", "-c") and "/tmp/.waiting" in argv[2]:
            argv = ("echo", "1")
        if argv[2:] and argv[2].startswith("keep="):
            # What cleans up sees the other commands inside; in the stand-in each is alone.
            await self._end_processes()
        variables = [option for name, value in env.items() for option in ("--env", f"{name}={value}")]
        if not await self._is_there():
            raise Error(f"sandbox {self.name} has ended")
        command = [self.sdk.standin.program, "exec", "--interactive", *variables, self.name, *argv]
        pipe = asyncio.subprocess.PIPE
        self.processes.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
        return Process(self.processes[-1])

    async def _end_processes(self) -> None:
        """Kill those that run and read what they printed: a pipe is closed when its end is seen."""
        while self.processes:
            process = self.processes.pop()
            assert process.stdin is not None
            assert process.stdout is not None
            if process.returncode is None:
                process.kill()
            process.stdin.close()
            await process.stdout.read()
            await process.wait()

    async def _is_there(self) -> bool:
        return self.name in self.sdk.standin.containers()

    async def _poll(self) -> int | None:
        return None if await self._is_there() else 0

    async def _terminate(self) -> None:
        await self._end_processes()
        if await self._is_there():
            command = [self.sdk.standin.program, "rm", self.name]
            await asyncio.to_thread(subprocess.run, command, check=True)

    async def _get_tags(self) -> dict[str, str]:
        return self.tags

    async def _snapshot(self) -> str:
        image = f"image-{next(self.sdk.numbers)}"
        command = [self.sdk.standin.program, "commit", self.name, image]
        await asyncio.to_thread(subprocess.run, command, check=True)
        return image


class Sdk(types.ModuleType):
    """Stands in for the package `modal`."""

    def __init__(self, standin: Standin) -> None:
        super().__init__("modal")
        self.standin = standin
        self.numbers = itertools.count()
        self.created: list[dict[str, Any]] = []
        self.sandboxes: list[Sandbox] = []
        self.lost: str | None = None
        self.exception = types.SimpleNamespace(Error=Error)
        self.App = types.SimpleNamespace(lookup=Both(self._lookup))
        self.Image = types.SimpleNamespace(from_registry=lambda name: name)
        self.Sandbox = types.SimpleNamespace(create=Both(self._create), list=Both(self._list))

    async def _lookup(self, name: str, *, create_if_missing: bool) -> Any:
        assert create_if_missing
        if self.lost:
            raise Error(self.lost)
        return types.SimpleNamespace(app_id=f"ap-{name}")

    async def _create(self, *command: str, image: str, tags: dict[str, str], **options: Any) -> Sandbox:
        assert command[:2] == ("bash", "-c")
        self.created.append({"image": image, "tags": tags, **options})
        name = f"sb-{next(self.numbers)}"
        run = [self.standin.program, "run", "--name", name, "--label", "a=b", image]
        await asyncio.to_thread(subprocess.run, run, check=True, capture_output=True)
        self.sandboxes.append(Sandbox(self, name, tags))
        return self.sandboxes[-1]

    async def _list(self, *, app_id: str, tags: dict[str, str]) -> AsyncIterator[Sandbox]:
        for sandbox in list(self.sandboxes):
            if tags.items() <= sandbox.tags.items():
                yield sandbox


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sdk:
    (tmp_path / "standin").mkdir()
    sdk = Sdk(Standin(tmp_path / "standin"))
    monkeypatch.setitem(sys.modules, "modal", sdk)
    return sdk


@pytest_asyncio.fixture(loop_scope="module")
async def backend(sdk: Sdk) -> AsyncIterator[ModalBackend]:
    backend = ModalBackend({"app": "trials"})
    yield backend
    await backend.aclose()
    assert sdk.standin.containers() == []


async def test_a_sandbox_is_shut_off_and_limited(backend: ModalBackend, sdk: Sdk) -> None:
    await backend.start(Image(container="swebench/one:latest"), limits=Limits(memory_mb=2000))
    options = dict(sdk.created[-1])
    assert options.pop("app").app_id == "ap-trials"
    assert options == {
        "image": "swebench/one:latest",
        "tags": {"envsdk_sandbox": "1", "envsdk_holder": this_process()},
        "timeout": 14400,
        "block_network": True,
        "cpu": 1.0,
        "memory": (512, 2000),
    }


async def test_commands_files_and_comparisons_work(
    backend: ModalBackend, repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit/test_hidden.py").write_text("assert True\n")
    image = Image(tree=repository, env={"A": "1"}, binds={"/testbed/tests": tmp_path / "kit"})
    sandbox = await backend.start(image)
    result = await sandbox.exec("ls; echo $A$B; sed -i s/1/2/ lib.py; exit 3", timeout_s=60, env={"B": "2"})
    assert (result.output, result.returncode, result.reason) == ("lib.py\ntests\n12\n", 3, ExecEnd.EXIT)
    await sandbox.exec("echo attack > tests/test_hidden.py", timeout_s=60)
    assert said(await sandbox.exec("cat tests/*", timeout_s=60)) == "assert True"
    await sandbox.write("new", b"\xff\x00")
    assert await sandbox.read("new") == b"\xff\x00"
    assert "+    return 2" in await sandbox.diff()


async def test_limits_end_commands(backend: ModalBackend) -> None:
    sandbox = await backend.start(Image(), limits=Limits(output_bytes=1 << 20, kept_output_bytes=1000))
    assert (await sandbox.exec("sleep 60", timeout_s=0.5)).reason is ExecEnd.TIMEOUT
    endless = await sandbox.exec("yes", timeout_s=60)
    assert (endless.reason, endless.returncode) == (ExecEnd.OUTPUT_LIMIT, 137)
    assert said(await sandbox.exec("echo well", timeout_s=60)) == "well"


async def test_a_restored_sandbox_is_as_it_was(backend: ModalBackend, repository: Path) -> None:
    sandbox = await backend.start(Image(tree=repository))
    await check_restoring(sandbox, after="rm -rf * .git")


async def test_a_sandbox_that_went_away_is_infrastructure(backend: ModalBackend, sdk: Sdk) -> None:
    sandbox = await backend.start(Image())
    assert await sandbox.alive()
    await sdk.sandboxes[-1].terminate.aio()
    result = await sandbox.exec("true", timeout_s=60)
    assert (result.reason, result.returncode) == (ExecEnd.INFRASTRUCTURE, None)
    assert "has ended" in result.output
    assert not await sandbox.alive()
    with pytest.raises(SandboxError, match="has ended"):
        await sandbox.read("lib.py")


async def test_the_sandboxes_of_dead_programs_are_ended(sdk: Sdk) -> None:
    boot, pid, _ = this_process().split(":")
    for holder in f"{boot}:{pid}:1", this_process(), "other-boot:1:1":
        await sdk.Sandbox.create.aio(
            "bash", "-c", image="x", tags={"envsdk_sandbox": "1", "envsdk_holder": holder}
        )
    backend = ModalBackend({})
    await backend.probe()
    assert sorted(sdk.standin.containers()) == ["sb-1", "sb-2"]
    await backend.aclose()


async def test_an_account_that_does_not_work_says_what_to_do(sdk: Sdk) -> None:
    sdk.lost = "Token missing"
    with pytest.raises(SandboxUnavailable, match=r"Token missing. Run `modal setup`"):
        await ModalBackend({}).probe()


async def test_a_missing_sdk_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modal", None)
    with pytest.raises(SandboxUnavailable, match=r"pip install 'envsdk\[modal\]'"):
        await ModalBackend({}).probe()
