"""What a killed program leaves is swept by the next; what a living one holds is left alone."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from envsdk.rewards.sandbox import Image, Limits, SandboxUnavailable
from envsdk.rewards.sandbox.bubblewrap import BubblewrapBackend, cgroups
from envsdk.rewards.sandbox.bubblewrap.leases import Lease, delete, sweep
from tests.envsdk.rewards.sandbox.boxes import processes_of, until

PROGRAM = """
import asyncio, sys
from pathlib import Path
from envsdk.rewards.sandbox import Image, open_backend

async def main():
    backend = open_backend("bubblewrap", {"state_dir": sys.argv[1], "commands_at_once": 20})
    image = Image(tree=Path(sys.argv[2]))
    sandboxes = [await backend.start(image) for _ in range(20)]
    script = "touch /tmp/up; (trap '' TERM; sleep 600) & sleep 600"
    running = [asyncio.ensure_future(sandbox.exec(script, timeout_s=900)) for sandbox in sandboxes]
    while not all((s.folder / "layers/0/tmp/up").exists() for s in sandboxes):
        await asyncio.sleep(0.01)
    group = sandboxes[0].cgroup
    print(sandboxes[0].shared.lease, group.folder if group else "", flush=True)
    await asyncio.gather(*running)

asyncio.run(main())
"""


async def test_twenty_sandboxes_of_a_killed_program_are_swept(tmp_path: Path, repository: Path) -> None:
    state = tmp_path / "state"
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(state), str(repository), stdout=subprocess.PIPE
    )
    assert program.stdout is not None
    lease, _, group = (await program.stdout.readline()).decode().strip().partition(" ")
    assert len(processes_of(lease)) >= 20
    program.send_signal(signal.SIGKILL)
    await program.wait()
    # A second program starts: the leavings are gone before its first sandbox runs.
    backend = BubblewrapBackend({"state_dir": state})
    await backend.probe()
    assert not (state / lease).exists()
    await until(lambda: not processes_of(lease))
    assert not group or not list(Path(group).parent.glob(f"envsdk.{lease}.*"))
    await backend.aclose()
    assert os.listdir(state) == []


async def test_the_sandboxes_of_a_living_program_are_left_alone(tmp_path: Path, repository: Path) -> None:
    one, other = BubblewrapBackend({"state_dir": tmp_path}), BubblewrapBackend({"state_dir": tmp_path})
    sandbox = await one.start(Image(tree=repository))
    await other.probe()
    assert sweep(tmp_path) == 0
    assert (await sandbox.exec("true", timeout_s=30)).ok
    await other.aclose()
    await one.aclose()


FORGETFUL = """
import asyncio, sys
from pathlib import Path
from envsdk.rewards.sandbox import Image, open_backend

backend = open_backend("bubblewrap", {"state_dir": sys.argv[1]})
sandbox = asyncio.run(backend.start(Image(tree=Path(sys.argv[2]))))
print(sandbox.cgroup.folder if sandbox.cgroup else "")
"""


def test_a_program_that_forgets_to_close_leaves_nothing(tmp_path: Path, repository: Path) -> None:
    command = [sys.executable, "-c", FORGETFUL, tmp_path, repository]
    group = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert os.listdir(tmp_path) == []
    assert not group or not Path(group).exists()


def test_a_control_group_goes_when_the_last_process_has_left_it() -> None:
    root = cgroups.find_root()
    if root is None:
        pytest.skip("this machine gives no memory groups")
    group = root.create("trial", secrets.token_hex(6), Limits())
    sleeper = subprocess.Popen(["sleep", "600"])
    (group.folder / "cgroup.procs").write_text(str(sleeper.pid))
    ends = threading.Timer(0.1, sleeper.kill)
    ends.start()
    group.delete()
    assert not group.folder.exists()
    assert sleeper.wait() == -signal.SIGKILL
    group.delete()


def test_a_lease_is_held_until_it_is_released(tmp_path: Path) -> None:
    lease = Lease(tmp_path)
    assert lease.folder.is_dir()
    assert sweep(tmp_path) == 0
    lease.release()
    lease.release()
    assert os.listdir(tmp_path) == []


def test_a_sweep_that_comes_before_the_lock_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, swept = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not swept:
            swept.append(sweep(tmp_path))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    lease = Lease(tmp_path)
    assert swept == [1]
    assert sweep(tmp_path) == 0
    lease.release()
    assert os.listdir(tmp_path) == []


def test_an_unlocked_lease_is_swept(tmp_path: Path) -> None:
    folder = tmp_path / "0123456789ab"
    (folder / "tree/deep").mkdir(parents=True)
    (folder / ".lease").touch()
    swept = []
    assert sweep(tmp_path, swept.append) == 1
    assert swept == [folder]
    assert os.listdir(tmp_path) == []


def test_folders_that_are_no_leases_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    assert sweep(tmp_path) == 0
    assert os.listdir(tmp_path) == ["photos"]


def test_a_state_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SandboxUnavailable, match="no folder of this user's"):
        Lease(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(SandboxUnavailable, match="cannot be made"):
        Lease(tmp_path / "file")


def test_a_tree_deeper_than_any_path_is_deleted(tmp_path: Path) -> None:
    here = os.getcwd()
    (tmp_path / "top").mkdir()
    os.chdir(tmp_path / "top")
    try:
        for _ in range(40):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
    finally:
        os.chdir(here)
    delete(tmp_path / "top")
    assert os.listdir(tmp_path) == []
