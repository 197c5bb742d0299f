"""The `e2b` backend with a real `envsdk sandboxd` over HTTP on this loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from e2b import AsyncSandbox

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import (
    ExecEnd,
    Image,
    Limits,
    SandboxError,
    SandboxesFull,
    SandboxUnavailable,
    open_backend,
)
from envsdk.rewards.sandbox.containers import this_process
from envsdk.rewards.sandbox.e2b_backend import E2BBackend
from envsdk.rewards.sandbox.remote import RemoteSandbox
from envsdk.rewards.sandbox.sandboxd.app import SandboxServer
from tests.envsdk.rewards.sandbox.boxes import Start, said
from tests.envsdk.rewards.sandbox.sandbox_servers import OURS, THEIRS, access, sandbox_server

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SandboxServer]:
    async with sandbox_server(tmp_path_factory.mktemp("sandboxd")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(server: SandboxServer) -> AsyncIterator[E2BBackend]:
    backend = E2BBackend({"api_url": server.url, "api_key": OURS})
    await backend.probe()
    yield backend
    await backend.aclose()


@pytest.fixture
def start(backend: E2BBackend, repository: Path) -> Start:
    async def start(*, limits: Limits | None = None, **fields: object) -> RemoteSandbox:
        return await backend.start(Image(**{"tree": repository, **fields}), limits=limits)

    return start


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(start: Start) -> AsyncIterator[RemoteSandbox]:
    sandbox = await start()
    yield sandbox
    await sandbox.close()


async def test_limits_end_commands(start: Start) -> None:
    limits = Limits(output_bytes=1 << 20, kept_output_bytes=1000, disk_mb=8, file_mb=4, memory_mb=256)
    sandbox = await start(limits=limits)
    assert (await sandbox.exec("trap '' TERM; sleep 600", timeout_s=1)).reason is ExecEnd.TIMEOUT
    endless = await sandbox.exec("yes", timeout_s=60)
    assert (endless.reason, endless.returncode) == (ExecEnd.OUTPUT_LIMIT, 137)
    hog = "python -c 'import time; a = bytearray(300 << 20); time.sleep(60)'"
    assert (await sandbox.exec(hog, timeout_s=60)).reason is ExecEnd.OUT_OF_MEMORY
    assert not (await sandbox.exec("head -c 5M /dev/zero > a", timeout_s=60)).ok
    full = await sandbox.exec("for n in 1 2 3; do head -c 3M /dev/zero > a$n; done", timeout_s=60)
    assert full.reason is ExecEnd.DISK_LIMIT
    assert said(await sandbox.exec("rm a*; echo well", timeout_s=60)) == "well"


async def test_a_fork_goes_its_own_way(sandbox: RemoteSandbox) -> None:
    await sandbox.exec("echo one > a; rm lib.py", timeout_s=60)
    fork = await sandbox.fork()
    await sandbox.exec("rm a", timeout_s=60)
    assert said(await fork.exec("cat a; ls", timeout_s=60)).split() == ["one", "a", "tests"]
    await fork.close()


async def test_a_sandbox_that_the_server_ended_is_infrastructure(
    sandbox: RemoteSandbox, server: SandboxServer
) -> None:
    running = asyncio.create_task(sandbox.exec("touch /tmp/began; sleep 600", timeout_s=60))
    [box] = [box for box in server.boxes.of("ours") if box.id == sandbox.container.running.sandbox_id]
    while not box.guest.processes():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)
    await server.boxes.kill(box)
    assert (await running).reason is ExecEnd.INFRASTRUCTURE
    assert not await sandbox.alive()
    with pytest.raises(SandboxError):
        await sandbox.read("lib.py")


async def test_elsewhere_folders_are_laid_into_each_sandbox(
    backend: E2BBackend, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_takes_folders", False)
    (tmp_path / "test_hidden.py").write_text("assert True\n")
    sandbox = await backend.start(Image(tree=repository, binds={"/testbed/tests": tmp_path}))
    await sandbox.exec("echo attack > tests/test_hidden.py; sed -i s/1/2/ lib.py", timeout_s=60)
    assert said(await sandbox.exec("cat tests/*", timeout_s=60)) == "assert True"
    assert "+    return 2" in await sandbox.diff()
    await sandbox.close()


async def test_the_sandboxes_of_dead_programs_are_ended(server: SandboxServer, backend: E2BBackend) -> None:
    boot, pid, _ = this_process().split(":")
    for holder in f"{boot}:{pid}:1", this_process(), "other-boot:1:1":
        metadata = {"envsdk_sandbox": "1", "envsdk_holder": holder}
        await AsyncSandbox.create(metadata=metadata, **access(server))
    await backend._sweep()
    holders = [box.metadata["envsdk_holder"] for box in server.boxes.of("ours")]
    assert f"{boot}:{pid}:1" not in holders
    assert "other-boot:1:1" in holders


async def test_a_server_that_cannot_be_used_says_why(
    server: SandboxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SandboxUnavailable, match="wrong or missing API key"):
        await E2BBackend({"api_url": server.url, "api_key": "e2b_" + "9" * 40}).probe()
    with pytest.raises(SandboxUnavailable, match="runs no sandboxes for this key"):
        await E2BBackend({"api_url": "http://127.0.0.1:9", "api_key": OURS}).probe()
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(SandboxUnavailable, match="set E2B_API_KEY"):
        await E2BBackend({"api_url": server.url}).probe()
    monkeypatch.setitem(sys.modules, "e2b", None)
    with pytest.raises(SandboxUnavailable, match=r"pip install 'envsdk\[e2b\]'"):
        await E2BBackend({}).probe()


async def test_an_interpreter_whose_packages_the_sandbox_lacks_is_refused(
    backend: E2BBackend, server: SandboxServer, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho pip; echo no-such-package\n")
    python.chmod(0o755)
    before = len(server.boxes.of("ours"))
    with pytest.raises(ConfigurationError, match=r"lacks no-such-package, which .*python has"):
        await backend.start(Image(python=python))
    assert len(server.boxes.of("ours")) == before


async def test_a_token_whose_places_are_taken_is_told_apart_from_a_service_that_fails(tmp_path: Path) -> None:
    async with sandbox_server(tmp_path) as server:
        backend = E2BBackend(access(server, THEIRS))
        sandbox = await backend.start(Image())
        with pytest.raises(SandboxesFull, match="1 sandboxes at once"):
            await backend.start(Image())
        await sandbox.close()
        await (await backend.start(Image())).close()
        await backend.aclose()


async def test_a_fleet_of_unlike_hosts_starts_each_image_where_it_can_and_blames_no_host(
    server: SandboxServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = [
        {"backend": "e2b", "settings": {"api_url": server.url, "api_key": OURS}},
        {"backend": "bubblewrap", "settings": {"state_dir": str(tmp_path)}},
    ]
    fleet = open_backend("fleet", {"hosts": hosts, "max_failures": 1})
    try:
        with pytest.raises(ConfigurationError, match=r"template nosuch:1 not found.*no container image"):
            await fleet.start(Image(container="nosuch:1"))
        huge = Limits(memory_mb=1 << 20)
        for image, limits in ((Image(keeps_processes=True), None), (Image(), huge), (Image(), None)):
            boxes = await asyncio.gather(*(fleet.start(image, limits=limits) for _ in range(3)))
            for box in boxes:
                assert said(await box.exec("echo hi", timeout_s=60)) == "hi"
            await asyncio.gather(*(box.close() for box in boxes))
    finally:
        await fleet.aclose()
    assert "left out" not in caplog.text
