"""The `e2b` backend: tests of containers and of bubblewrap again, with a real `envsdk sandboxd` over HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from e2b import AsyncSandbox

from envsdk.rewards.sandbox import (
    ExecEnd,
    Image,
    Limits,
    SandboxError,
    SandboxesFull,
    SandboxUnavailable,
)
from envsdk.rewards.sandbox.containers import this_process
from envsdk.rewards.sandbox.e2b_backend import E2BBackend
from envsdk.rewards.sandbox.remote import RemoteSandbox
from envsdk.rewards.sandbox.sandboxd.server import SandboxServer
from tests.envsdk.rewards.sandbox.boxes import Start, said
from tests.envsdk.rewards.sandbox.sandbox_servers import OURS, THEIRS, access, sandbox_server
from tests.envsdk.rewards.sandbox.test_bubblewrap_sandbox import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_real_containers import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_attacks_on_files import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_attacks_on_git import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_attacks_on_networks import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_attacks_on_processes import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_leftovers import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_output import *  # noqa: F403

# They look at bubblewrap's files and processes or at an engine's containers, or hold for these alone.
for _name in (
    "test_a_closed_sandbox_says_so",
    "test_a_container_ends_by_itself_when_its_time_is_over",
    "test_a_container_that_went_away_is_infrastructure",
    "test_a_daemon_ends_with_the_command_that_started_it",
    "test_a_fork_bomb_ends_with_its_command",
    "test_a_full_sandbox_can_be_cleaned_up",
    "test_a_launcher_killed_from_outside_is_infrastructure",
    "test_a_memory_hog_is_ended_where_there_are_no_control_groups",
    "test_a_program_without_descriptors_leaves_no_command_running",
    "test_a_state_that_somebody_deleted_is_infrastructure",
    "test_a_task_in_a_container_image_is_graded",
    "test_a_tree_of_zombies_leaves_nothing",
    "test_a_tree_that_cannot_be_copied_says_why",
    "test_a_work_tree_that_is_closed_or_emptied_does_not_break_the_sandbox",
    "test_an_interpreter_that_does_not_run_is_an_error",
    "test_cancelling_a_command_ends_it",
    "test_closing_ends_the_command_that_runs",
    "test_containers_that_cannot_be_limited_are_refused",
    "test_files_cannot_hide_in_the_depth",
    "test_idle_sandboxes_hold_no_process_and_no_descriptor",
    "test_images_that_do_not_fit_are_refused",
    "test_limits_end_commands",
    "test_no_file_of_this_program_is_open_inside",
    "test_processes_that_cannot_be_killed_are_infrastructure",
    "test_tests_run_inside",
    "test_the_containers_of_a_killed_program_are_swept",
    "test_the_first_process_cannot_be_ended_or_misled",
    "test_the_interpreter_that_was_asked_for_is_shown",
    "test_the_user_outside_is_not_root",
    "test_this_programs_environment_does_not_leak",
    "test_two_sandboxes_do_not_hear_each_other",
):
    del globals()[_name]

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


async def test_a_token_whose_places_are_taken_is_told_apart_from_a_service_that_fails(tmp_path: Path) -> None:
    async with sandbox_server(tmp_path) as server:
        backend = E2BBackend(access(server, THEIRS))
        sandbox = await backend.start(Image())
        with pytest.raises(SandboxesFull, match="1 sandboxes at once"):
            await backend.start(Image())
        await sandbox.close()
        await (await backend.start(Image())).close()
        await backend.aclose()


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
