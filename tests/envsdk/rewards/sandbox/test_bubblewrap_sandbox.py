"""What the contract promises, by the bubblewrap backend."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import (
    ExecEnd,
    Image,
    Limits,
    SandboxError,
    SandboxFileError,
    SandboxUnavailable,
    open_backend,
)
from envsdk.rewards.sandbox.bubblewrap import BubblewrapBackend
from tests.by_day import by_day
from tests.envsdk.rewards.sandbox.boxes import Start, processes_of, said, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_files_stay_and_shells_do_not(sandbox) -> None:
    await sandbox.exec("cd tests; export A=1; echo x > /tmp/kept; echo y > /testbed/kept", timeout_s=30)
    assert (
        said(await sandbox.exec("pwd; echo A=$A; cat /tmp/kept kept", timeout_s=30)) == "/testbed\nA=\nx\ny"
    )


async def test_a_result_says_how_the_command_ended(sandbox) -> None:
    result = await sandbox.exec("echo out; echo err >&2; exit 3", timeout_s=30)
    assert (result.output, result.returncode, result.reason, result.total_bytes) == (
        "out\nerr\n",
        3,
        ExecEnd.EXIT,
        8,
    )
    assert not result.ok
    assert (await sandbox.exec("kill -SEGV $$", timeout_s=30)).returncode == 139


async def test_a_command_gets_its_folder_and_its_variables(sandbox) -> None:
    result = await sandbox.exec('pwd; echo "$A"', timeout_s=30, cwd="/testbed/tests", env={"A": "x\n'\"y"})
    assert said(result) == "/testbed/tests\nx\n'\"y"


async def test_a_command_reads_what_it_is_given_and_nothing_else_can_read_it_again(sandbox) -> None:
    given = b"line\n" * 300_000
    read = await sandbox.exec("wc -c; cat /proc/$$/fd/0 2> /dev/null | wc -c", timeout_s=60, stdin=given)
    assert said(read).split() == [str(len(given)), "0"]
    assert said(await sandbox.exec("exec 0<&-; echo unread", timeout_s=60, stdin=given)) == "unread"
    assert said(await sandbox.exec("cat", timeout_s=60)) == ""


async def test_the_interpreter_that_was_asked_for_is_shown(sandbox) -> None:
    script = "command -v python; python -c 'import pytest, sys; print(sys.version)'"
    path, _, version = said(await sandbox.exec(script, timeout_s=30)).partition("\n")
    assert path.rpartition("/")[0] == sys.executable.rpartition("/")[0]
    assert version == sys.version


async def test_an_interpreter_that_does_not_run_is_an_error(start: Start) -> None:
    with pytest.raises(ConfigurationError, match="does not run"):
        await start(python=Path("/nowhere/python"))


async def test_tests_run_inside(sandbox) -> None:
    result = await sandbox.exec("python -m pytest -q -p no:cacheprovider", timeout_s=120)
    assert "1 passed" in said(result)


async def test_bytes_are_read_and_written_as_they_are(sandbox) -> None:
    content = bytes(range(256)) * 5000
    await sandbox.write("new folder/ü/-file", content)
    assert await sandbox.read("new folder/ü/-file") == content
    assert await sandbox.read("/testbed/new folder/ü/-file") == content
    await sandbox.write("new folder/ü/-file", b"")
    assert await sandbox.read("new folder/ü/-file") == b""


async def test_a_written_file_belongs_to_the_commands(sandbox) -> None:
    await sandbox.write("script", b"echo mine")
    assert said(await sandbox.exec("chmod +x script && bash script && rm script", timeout_s=30)) == "mine"


async def test_a_restored_sandbox_is_as_it_was(sandbox) -> None:
    await sandbox.exec(
        "echo one > a; echo one > /tmp/a; rm tests/test_lib.py; mkdir d; echo x > d/x", timeout_s=30
    )
    before = await sandbox.diff()
    first = await sandbox.snapshot()
    await sandbox.exec("rm -r a d lib.py; mkdir a; echo two > /tmp/a; touch /tmp/b tests/new", timeout_s=30)
    second = await sandbox.snapshot()
    after = await sandbox.diff()
    await sandbox.exec("rm -rf * .git /tmp/*", timeout_s=30)
    for snapshot, patch, listing in (
        (first, before, "a\nd\nlib.py\ntests\none\n/tmp/a"),
        (second, after, "a\ntests\ntwo\n/tmp/a\n/tmp/b"),
        (first, before, "a\nd\nlib.py\ntests\none\n/tmp/a"),
    ):
        await sandbox.restore(snapshot)
        assert await sandbox.diff() == patch
        assert said(await sandbox.exec("ls; cat /tmp/a; ls -d /tmp/[ab]", timeout_s=30)) == listing
        await sandbox.exec("touch passing /tmp/passing; rm -f /tmp/a", timeout_s=30)


async def test_files_are_packed_without_room_on_the_disk_and_unpacked_elsewhere(start: Start) -> None:
    limits = Limits(disk_mb=16, file_mb=64)
    packed, taker = await start(limits=limits), await start(limits=limits)
    full = await packed.exec(
        "rm lib.py; echo one > a; head -c 15M /dev/urandom > /tmp/b; cd /tmp; ls b", timeout_s=60
    )
    assert said(full) == "b", "an archive of it would not fit"
    await taker.exec("echo other > c; echo other > /tmp/d", timeout_s=60)
    archive = await packed.pack()
    await taker.unpack(archive)
    # The checkout itself may lie below /tmp, and is seen there.
    assert said(
        await taker.exec("cat a; ls -A; ls -d /tmp/[a-d]; stat -c %s /tmp/b", timeout_s=60)
    ).split() == [
        *("one", ".git", "a", "tests", "/tmp/b", str(15 << 20)),
    ]
    with pytest.raises(SandboxFileError):
        await packed.pack(max_bytes=1000)


async def test_many_snapshots_can_be_taken(sandbox) -> None:
    snapshots = []
    for turn in range(30):
        await sandbox.exec(f"echo {turn} >> turns", timeout_s=30)
        snapshots.append(await sandbox.snapshot())
    assert len((await sandbox.read("turns")).split()) == 30
    await sandbox.restore(snapshots[9])
    assert len((await sandbox.read("turns")).split()) == 10


async def test_what_a_snapshot_holds_counts_towards_the_disk(start: Start) -> None:
    sandbox = await start(limits=Limits(disk_mb=32, file_mb=64))
    await sandbox.exec("head -c 20M /dev/zero > a", timeout_s=30)
    await sandbox.snapshot()
    result = await sandbox.exec("head -c 20M /dev/zero > b", timeout_s=30)
    assert result.reason is ExecEnd.DISK_LIMIT


async def test_a_full_sandbox_can_be_cleaned_up(start: Start) -> None:
    sandbox = await start(limits=Limits(disk_mb=8))
    assert (await sandbox.exec("head -c 9M /dev/zero > a", timeout_s=30)).reason is ExecEnd.DISK_LIMIT
    assert (await sandbox.exec("rm a; echo x > b", timeout_s=30)).ok


async def test_a_closed_sandbox_says_so(start: Start) -> None:
    sandbox = await start()
    assert await sandbox.alive()
    await sandbox.close()
    await sandbox.close()
    assert not await sandbox.alive()
    assert not sandbox.folder.exists()
    result = await sandbox.exec("true", timeout_s=30)
    assert (result.reason, result.returncode) == (ExecEnd.INFRASTRUCTURE, None)
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.read("lib.py")


async def test_closing_ends_the_command_that_runs(start: Start) -> None:
    sandbox = await start()
    running = asyncio.ensure_future(sandbox.exec("touch /tmp/up; sleep 600", timeout_s=600))
    await until((sandbox.folder / "layers/0/tmp/up").exists)
    await sandbox.close()
    assert (await running).reason is ExecEnd.INFRASTRUCTURE
    assert processes_of(sandbox.shared.lease) == []


async def test_a_state_that_somebody_deleted_is_infrastructure(start: Start) -> None:
    sandbox = await start()
    await asyncio.to_thread(shutil.rmtree, sandbox.folder / "layers")
    result = await sandbox.exec("true", timeout_s=30)
    assert result.reason is ExecEnd.INFRASTRUCTURE
    assert "mount" in result.output
    with pytest.raises(SandboxError):
        await sandbox.diff()


async def test_a_launcher_killed_from_outside_is_infrastructure(sandbox) -> None:
    running = asyncio.ensure_future(sandbox.exec("touch /tmp/up; sleep 600", timeout_s=600))
    await until((sandbox.folder / "layers/0/tmp/up").exists)
    for pid in processes_of(sandbox.shared.lease):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    assert (await running).reason is ExecEnd.INFRASTRUCTURE


async def test_processes_that_cannot_be_killed_are_infrastructure(
    sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.rewards.sandbox.process.GONE_TIMEOUT_S", 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda pid, signal: None)
        result = await sandbox.exec("sleep 600", timeout_s=0.2)
    assert result.reason is ExecEnd.INFRASTRUCTURE
    for pid in processes_of(sandbox.shared.lease):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


async def test_a_program_without_descriptors_leaves_no_command_running(
    sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", none_left)
        result = await sandbox.exec("sleep 600", timeout_s=600)
    assert result.reason is ExecEnd.INFRASTRUCTURE
    assert "Too many open files" in result.output
    await until(lambda: processes_of(sandbox.shared.lease) == [])
    assert len(os.listdir("/proc/self/fd")) <= before
    assert (await sandbox.exec("true", timeout_s=30)).ok


async def test_idle_sandboxes_hold_no_process_and_no_descriptor(start: Start) -> None:
    first = await start()
    await first.exec("true", timeout_s=30)
    before = len(os.listdir("/proc/self/fd"))
    sandboxes = [await start() for _ in range(20)]
    for sandbox in sandboxes:
        await sandbox.exec("echo x > a", timeout_s=30)
    assert processes_of(first.shared.lease) == []
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    for sandbox in sandboxes:
        await sandbox.close()


async def test_no_more_commands_run_at_once_than_there_are_slots(tmp_path: Path, repository: Path) -> None:
    backend = BubblewrapBackend({"state_dir": tmp_path, "commands_at_once": 3})
    sandboxes = [await backend.start(Image(tree=repository)) for _ in range(12)]
    running = most = 0
    start = type(sandboxes[0])._launch

    def counted(self, *arguments):
        nonlocal most
        process = start(self, *arguments)
        most = max(most, sum(bool(s._running) for s in sandboxes) + 1)
        return process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(sandboxes[0]), "_launch", counted)
        results = await asyncio.gather(*(s.exec("sleep 0.05", timeout_s=30) for s in sandboxes))
    assert all(result.ok for result in results)
    assert running == 0
    assert most == 3
    await backend.aclose()


async def test_a_wait_for_a_slot_is_no_time_of_the_command(tmp_path: Path, repository: Path) -> None:
    backend = BubblewrapBackend({"state_dir": tmp_path, "commands_at_once": 1})
    sandboxes = [await backend.start(Image(tree=repository)) for _ in range(3)]
    began = time.perf_counter()
    results = await asyncio.gather(*(sandbox.exec("sleep 0.2", timeout_s=60) for sandbox in sandboxes))
    assert sum(result.elapsed_s for result in results) <= time.perf_counter() - began
    await backend.aclose()


@pytest.mark.parametrize("count", by_day([16], [16, 64]))
async def test_many_sandboxes_work_at_once(count: int, start: Start) -> None:
    sandboxes = [await start() for _ in range(count)]

    async def play(number: int) -> str:
        sandbox = sandboxes[number]
        await sandbox.exec(f"echo {number} > mine; sed -i s/1/{number}/ lib.py", timeout_s=120)
        return (await sandbox.exec("cat mine", timeout_s=120)).output + await sandbox.diff()

    for number, text in enumerate(await asyncio.gather(*map(play, range(count)))):
        assert text.startswith(f"{number}\n")
        assert number == 1 or f"+    return {number}\n" in text
    for sandbox in sandboxes:
        await sandbox.close()


async def test_a_disk_that_overlayfs_refuses_is_told_where_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "envsdk.rewards.sandbox.bubblewrap.state.OverlayState._overlay",
        lambda self, part, lower, top: f"overlay /mnt/{part} refused none 0 0",
    )
    with pytest.raises(
        SandboxUnavailable, match=r"unknown filesystem type.*overlayfs is refused there: set `state_dir` to"
    ):
        await BubblewrapBackend({"state_dir": tmp_path}).probe()
    assert os.listdir(tmp_path) == []


async def test_a_machine_without_bubblewrap_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.rewards.sandbox.bubblewrap.sandbox._LAUNCHER_PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    for tool in "unshare", "sh", "mount", "setpriv":
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    backend = BubblewrapBackend({"state_dir": tmp_path / "state"})
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap"):
        await backend.probe()


async def test_folders_may_have_any_name_that_mount_options_would_trip_over(
    tmp_path: Path, repository: Path
) -> None:
    odd = tmp_path / "a b,c:d\\e#f=ü"
    await asyncio.to_thread(shutil.copytree, repository, odd / "tree")
    backend = BubblewrapBackend({"state_dir": odd / "state"})
    sandbox = await backend.start(Image(tree=odd / "tree", binds={"/opt/x y": odd / "tree/lib.py"}))
    await sandbox.snapshot()
    assert "return 1" in said(await sandbox.exec("cat lib.py '/opt/x y'", timeout_s=60))
    await backend.aclose()


async def test_copies_of_trees_that_are_out_of_use_are_deleted(tmp_path: Path, repository: Path) -> None:
    sources = [tmp_path / str(number) for number in range(5)]
    for source in sources:
        await asyncio.to_thread(shutil.copytree, repository, source)
    backend = BubblewrapBackend({"state_dir": tmp_path / "state", "kept_trees": 2})
    held = await backend.start(Image(tree=sources[0]))
    for source in sources[1:]:
        sandbox = await backend.start(Image(tree=source))
        assert (await sandbox.exec("cat lib.py", timeout_s=60)).ok
        await sandbox.close()
    copies = [path for path in held.folder.parent.iterdir() if path.name.startswith("tree-")]
    assert len(copies) == (3 if os.geteuid() == 0 else 0)
    assert (await held.exec("cat lib.py", timeout_s=60)).ok
    again = await backend.start(Image(tree=sources[1]))
    assert (await again.exec("cat lib.py", timeout_s=60)).ok
    assert all((source / "lib.py").exists() for source in sources)
    await backend.aclose()


@pytest.mark.skipif(os.geteuid() != 0, reason="other users' trees are not copied by a program")
async def test_a_tree_that_cannot_be_copied_says_why(
    start: Start, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(shutil.copytree, repository, tmp_path / "tree")
    (tmp_path / "cp").write_text("#!/bin/sh\necho cp: the disk is full >&2\nexit 1\n")
    (tmp_path / "cp").chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        with pytest.raises(SandboxError, match="cp: cp: the disk is full"):
            await start(tree=tmp_path / "tree")
    assert await (await start(tree=tmp_path / "tree")).alive()


async def test_images_that_do_not_fit_are_refused(start: Start, tmp_path: Path) -> None:
    for problem, fields in {
        "no folder": {"tree": tmp_path / "missing"},
        "no container image": {"container": "python:3.11"},
        "is not there": {"binds": {"/opt/x": tmp_path / "missing"}},
        "no absolute path": {"binds": {"opt/../x": tmp_path}},
    }.items():
        with pytest.raises(ConfigurationError, match=problem):
            await start(**fields)


async def test_what_is_bound_over_the_tree_is_no_change_of_it(start: Start, tmp_path: Path) -> None:
    (tmp_path / "test_hidden.py").write_text("assert True")
    sandbox = await start(binds={"/testbed/tests": tmp_path})
    assert said(await sandbox.exec("ls tests; echo x > new", timeout_s=30)) == "test_hidden.py"
    patch = await sandbox.diff()
    assert patch.count("diff --git") == 1
    assert "b/new" in patch


async def test_a_bound_file_may_be_named_from_here(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("shown")
    sandbox = await start(binds={"/opt/file": Path("file")})
    assert said(await sandbox.exec("cat /opt/file", timeout_s=30)) == "shown"


async def test_a_bound_folder_that_only_this_user_reads_is_shown_all_the_same(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "private/file").write_text("shown")
    (tmp_path / "private/file").chmod(0o600)
    sandbox = await start(
        binds={"/opt/private": tmp_path / "private", "/opt/file": tmp_path / "private/file"}
    )
    assert said(await sandbox.exec("cat /opt/private/file /opt/file", timeout_s=30)) == "shownshown"
    result = await sandbox.exec("chmod 777 /opt/private; echo x > /opt/private/file", timeout_s=30)
    assert "Read-only" in result.output


async def test_settings_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="uidd: unknown key; did you mean `uid`"):
        open_backend("bubblewrap", {"uidd": 1})
    with pytest.raises(ConfigurationError, match="uid: must be greater than 0, not 0"):
        open_backend("bubblewrap", {"uid": 0})
    with pytest.raises(ConfigurationError, match="did you mean `bubblewrap`"):
        open_backend("bublewrap")
