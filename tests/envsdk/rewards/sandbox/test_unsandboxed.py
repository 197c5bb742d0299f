"""Running without a sandbox: only for those who say so, and as far as the contract goes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import ExecEnd, Image, SandboxFileError, open_backend
from envsdk.rewards.sandbox.unsandboxed import UnsandboxedBackend
from tests.envsdk.rewards.sandbox.boxes import said

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONSENT = {"commands_may_do_anything_to_this_machine": True}


@pytest_asyncio.fixture(loop_scope="module")
async def unsandboxed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[UnsandboxedBackend]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    backend = UnsandboxedBackend(CONSENT)
    await backend.probe()
    yield backend
    await backend.aclose()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("settings", [{}, {"commands_may_do_anything_to_this_machine": False}])
async def test_it_is_refused_unless_the_settings_say_so_in_as_many_words(settings: dict[str, bool]) -> None:
    with pytest.raises(ConfigurationError, match="commands_may_do_anything_to_this_machine: true"):
        open_backend("unsandboxed", settings)


async def test_commands_run_in_a_copy_of_the_tree(unsandboxed: UnsandboxedBackend, repository: Path) -> None:
    sandbox = await unsandboxed.start(Image(tree=repository, env={"A": "1"}))
    result = await sandbox.exec("ls; echo $A$B; sed -i s/1/2/ lib.py; exit 3", timeout_s=60, env={"B": "2"})
    assert (result.output, result.returncode, result.reason) == ("lib.py\ntests\n12\n", 3, ExecEnd.EXIT)
    assert said(await sandbox.exec("wc -c", timeout_s=60, stdin=b"x" * 200_000)) == "200000"
    assert (await sandbox.exec("sleep 60", timeout_s=0.3)).reason is ExecEnd.TIMEOUT
    assert (await sandbox.exec("kill -SEGV $$", timeout_s=60)).returncode == 139
    assert said(await sandbox.exec("ls", timeout_s=60, cwd="/testbed/tests")) == "test_lib.py"
    assert "+    return 2" in await sandbox.diff()
    assert "return 1" in (repository / "lib.py").read_text()
    kept = await sandbox.snapshot()
    await sandbox.exec("rm -rf * .git", timeout_s=60)
    await sandbox.restore(kept)
    assert b"return 2" in await sandbox.read("lib.py")
    await sandbox.close()
    assert (await sandbox.exec("true", timeout_s=60)).reason is ExecEnd.INFRASTRUCTURE


async def test_files_are_read_and_written_in_the_copy_only(
    unsandboxed: UnsandboxedBackend, repository: Path, tmp_path: Path
) -> None:
    sandbox = await unsandboxed.start(Image(tree=repository))
    await sandbox.write("new/file", b"x")
    assert await sandbox.read("/testbed/new/file") == b"x"
    await sandbox.exec("ln -s /etc etc", timeout_s=60)
    for path in "etc/passwd", "/etc/passwd", "../../etc/passwd":
        with pytest.raises(SandboxFileError, match="outside"):
            await sandbox.read(path)
    with pytest.raises(SandboxFileError, match="outside"):
        await sandbox.write("etc/new", b"x")


async def test_files_that_were_packed_take_the_place_of_others(
    unsandboxed: UnsandboxedBackend, repository: Path
) -> None:
    one, other = await unsandboxed.start(Image(tree=repository)), await unsandboxed.start(Image())
    await one.write("a file", b"\0" * 1000)
    await other.write("left", b"x")
    await other.unpack(await one.pack())
    assert said(await other.exec("ls", timeout_s=60)) == "a file\nlib.py\ntests"
    with pytest.raises(SandboxFileError, match="ended by output_limit"):
        await one.pack(max_bytes=100)
    with pytest.raises(SandboxFileError, match="cannot be opened"):
        await other.unpack(b"no archive")


@pytest.mark.parametrize("name", ["", "a=b", "a\0"])
async def test_a_variable_that_cannot_be_one_is_named(
    unsandboxed: UnsandboxedBackend, repository: Path, name: str
) -> None:
    sandbox = await unsandboxed.start(Image(tree=repository))
    with pytest.raises(ValueError, match="environment variable"):
        await sandbox.exec("true", timeout_s=60, env={name: "1"})


async def test_what_it_cannot_show_is_refused(unsandboxed: UnsandboxedBackend, tmp_path: Path) -> None:
    for image in Image(binds={"/opt/kit": tmp_path}), Image(container="python:3.11"):
        with pytest.raises(ConfigurationError, match="use another sandbox backend"):
            await unsandboxed.start(image)
