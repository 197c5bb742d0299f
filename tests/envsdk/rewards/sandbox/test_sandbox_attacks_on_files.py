"""Attacks on disks, files and what the machine keeps in them; each runs for real."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from envsdk.rewards.sandbox import ExecEnd, Limits, SandboxFileError
from tests.envsdk.rewards.sandbox.boxes import Start, said

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL = Limits(file_mb=8, disk_mb=32, files=200, shm_mb=8, memory_mb=512)

FILL = "while :; do i=$((i + 1)); head -c 8M /dev/zero > {folder}/fill$i || exit 9; done"


@pytest.mark.parametrize("folder", ["/testbed", "/tmp", "/testbed/tests"])
async def test_filling_the_disk_ends_the_command(start: Start, folder: str) -> None:
    sandbox = await start(limits=SMALL)
    result = await sandbox.exec(FILL.format(folder=folder), timeout_s=60)
    assert result.reason is ExecEnd.DISK_LIMIT
    assert result.returncode == 137
    await sandbox.exec(f"rm {folder}/fill*", timeout_s=30)
    assert said(await sandbox.exec("echo well", timeout_s=30)) == "well"


async def test_a_full_disk_is_noticed_however_fast_the_command_was(start: Start) -> None:
    sandbox = await start(limits=replace(SMALL, disk_mb=1))
    result = await sandbox.exec("head -c 4M /dev/zero > a", timeout_s=60)
    assert result.reason is ExecEnd.DISK_LIMIT


async def test_filling_shared_memory_meets_its_size(start: Start) -> None:
    sandbox = await start(limits=SMALL)
    result = await sandbox.exec("for i in 1 2 3; do head -c 4M /dev/zero > /dev/shm/$i; done", timeout_s=60)
    assert result.reason is ExecEnd.EXIT
    assert "No space left on device" in result.output


@pytest.mark.parametrize(
    "make", ["open(name, 'w')", "os.mkdir(name)", "os.symlink('x', name)", "os.mkfifo(name)"]
)
async def test_making_files_without_end_ends_the_command(start: Start, make: str) -> None:
    sandbox = await start(limits=SMALL)
    code = f"import itertools, os\nfor name in map(str, itertools.count()):\n    {make}\n"
    result = await sandbox.exec(f"python - <<'END'\n{code}END", timeout_s=60)
    assert result.reason is ExecEnd.DISK_LIMIT


async def test_files_cannot_hide_in_a_closed_folder(start: Start) -> None:
    sandbox = await start(limits=SMALL)
    script = "mkdir -p closed/in; cd closed/in; chmod 000 /testbed/closed; " + FILL.format(folder=".")
    result = await sandbox.exec(script, timeout_s=60)
    assert result.reason is ExecEnd.DISK_LIMIT


async def test_files_cannot_hide_in_the_depth(start: Start) -> None:
    sandbox = await start(limits=SMALL)
    code = "import os\nfor _ in range(250):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\n"
    result = await sandbox.exec(f"python - <<'END'\n{code}END", timeout_s=60)
    assert result.reason is ExecEnd.DISK_LIMIT
    await sandbox.close()
    assert not sandbox.folder.exists()


async def test_a_giant_file_is_refused(start: Start) -> None:
    sandbox = await start(limits=SMALL)
    for giant in (
        "truncate -s 100G giant",
        "fallocate -l 100G giant",
        "dd if=/dev/zero of=giant bs=1M count=100",
    ):
        result = await sandbox.exec(giant, timeout_s=60)
        assert result.reason is ExecEnd.EXIT
        assert result.returncode
    assert int(said(await sandbox.exec("stat -c %s giant", timeout_s=30))) <= SMALL.file_mb << 20


async def test_the_system_cannot_be_changed(sandbox) -> None:
    files = (
        "/usr/bin/env /etc/passwd /bin/new /usr/new /etc/new /dev/new /run/new /new /root/new /run/command"
    )
    result = await sandbox.exec(
        f'for file in {files} "$(dirname "$(command -v python)")/new"'
        ' "$(python -c "import os; print(os.__file__)")";'
        ' do { echo x > "$file"; } 2>/dev/null && echo "$file written"; done; echo end',
        timeout_s=30,
    )
    assert said(result) == "end"


async def test_secrets_of_the_machine_are_not_there(sandbox, repository: Path) -> None:
    machine = (
        "/etc/shadow /etc/ssh /etc/machine-id /home/* /root/.ssh /var/log /boot /sys /mnt/* /srv /run/secrets"
        f" /proc/kcore {repository} {__file__}"
    )
    result = await sandbox.exec(f"for f in {machine}; do [ -r $f ] && echo $f; done; echo end", timeout_s=30)
    assert said(result) == "end"
    assert said(await sandbox.exec("cut -d: -f1 /etc/passwd", timeout_s=30)).split() == ["root", "agent"]


async def test_the_kernel_cannot_be_set(sandbox) -> None:
    files = (
        "kernel/hostname kernel/core_pattern vm/drop_caches ../sysrq-trigger ../self/uid_map ../self/loginuid"
    )
    result = await sandbox.exec(
        f"for file in {files}; do {{ echo 1 > /proc/sys/$file; }} 2>/dev/null && echo $file; done;"
        " { echo -1000 > /proc/self/oom_score_adj; } 2>/dev/null && echo never killed; echo end",
        timeout_s=30,
    )
    assert said(result) == "end"


async def test_this_programs_environment_does_not_leak(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    sandbox = await start(env={"GIVEN": "image"})
    result = await sandbox.exec(
        "cat /proc/*/environ | tr '\\0' '\\n'; env", timeout_s=30, env={"ALSO": "call"}
    )
    assert "hunter2" not in result.output
    names = {line.partition("=")[0] for line in said(result).splitlines()}
    assert {"GIVEN", "ALSO"} < names
    ours = [
        "ALSO",
        "GIVEN",
        "ENVSDK_SANDBOX_LEASE",
        "HOME",
        "LANG",
        "PAGER",
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "TERM",
        "USER",
    ]
    assert names <= {*ours, "OLDPWD", "PWD", "SHLVL", "_"}


async def test_no_file_of_this_program_is_open_inside(sandbox) -> None:
    opened = said(
        await sandbox.exec("for fd in /proc/[0-9]*/fd/*; do readlink $fd; done; true", timeout_s=30)
    )
    kinds = {line.partition(":")[0] for line in opened.splitlines()}
    assert kinds <= {"/dev/null", "pipe", "anon_inode", "/run/command (deleted)"}


@pytest.mark.parametrize("link", ["ln -s {target} link", "ln -s {folder} up; ln -s up/secret link"])
async def test_reading_through_a_link_stays_inside(sandbox, tmp_path: Path, link: str) -> None:
    (tmp_path / "secret").write_text("secret of the machine")
    await sandbox.exec(link.format(target=tmp_path / "secret", folder=tmp_path), timeout_s=30)
    with pytest.raises(SandboxFileError, match="there is no such file"):
        await sandbox.read("link")
    await sandbox.exec("rm link; ln -s /etc/passwd link", timeout_s=30)
    assert b"agent" in await sandbox.read("link")
    assert b"agent" in await sandbox.read("../../../../etc/passwd")


async def test_writing_through_a_link_stays_inside(sandbox, tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("untouched")
    await sandbox.exec(f"ln -s {target} link; ln -s {tmp_path} folder", timeout_s=30)
    for path in "link", "folder/file", str(target), f"../..{target}":
        with contextlib.suppress(SandboxFileError):
            await sandbox.write(path, b"attack")
    assert target.read_text() == "untouched"
    assert os.listdir(tmp_path) == ["file"]


async def test_the_comparison_does_not_follow_links(sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret of the machine")
    await sandbox.exec(
        f"rm -rf tests lib.py; ln -s {tmp_path} tests; ln -s {tmp_path}/secret lib.py", timeout_s=30
    )
    patch = await sandbox.diff()
    assert "secret of the machine" not in patch
    assert "new file mode 120000" in patch


async def test_reading_what_has_no_end_is_refused(start: Start) -> None:
    sandbox = await start(limits=SMALL)
    await sandbox.exec("mkfifo pipe; truncate -s 8M large; mkdir folder; ln -s loop loop", timeout_s=30)
    for path, problem in {
        "pipe": "not a regular file",
        "/dev/zero": "not a regular file",
        "folder": "not a regular file",
        "large": "too large",
        "loop": "no such file",
        "missing": "no such file",
    }.items():
        with pytest.raises(SandboxFileError, match=problem):
            await sandbox.read(path, max_bytes=1 << 20)
    with pytest.raises(SandboxFileError, match="no path"):
        await sandbox.read("a\0b")


async def test_writing_where_nothing_may_be_written_is_refused(start: Start) -> None:
    sandbox = await start(limits=SMALL)
    for path in "/usr/bin/new", "/etc/passwd", "tests", "lib.py/below":
        with pytest.raises(SandboxFileError):
            await sandbox.write(path, b"x")
    with pytest.raises(SandboxFileError):
        await sandbox.write("large", bytes(9 << 20))


async def test_bound_files_cannot_be_changed_moved_or_hidden(start: Start, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_hidden.py").write_text("assert True\n")
    sandbox = await start(binds={"/testbed/tests": tmp_path / "tests", "/opt/eval": tmp_path / "tests"})
    await sandbox.exec(
        "rm -rf tests; mv tests away; ln -sfn /tmp tests; echo x > tests/test_hidden.py; touch tests/new;"
        "chmod -R 777 tests; umount tests; rm -rf /opt/eval",
        timeout_s=30,
    )
    for folder in "/testbed/tests", "/opt/eval":
        assert (
            said(await sandbox.exec(f"ls {folder}; cat {folder}/*", timeout_s=30))
            == "test_hidden.py\nassert True"
        )
    assert (tmp_path / "tests/test_hidden.py").read_text() == "assert True\n"


async def test_a_work_tree_that_is_closed_or_emptied_does_not_break_the_sandbox(sandbox) -> None:
    await sandbox.exec("rm -rf /testbed/* /testbed/.git /tmp/*; chmod 000 /testbed /tmp", timeout_s=30)
    result = await sandbox.exec("echo well", timeout_s=30)
    assert result.reason is ExecEnd.EXIT
    await sandbox.exec("chmod 700 /testbed", timeout_s=30, cwd="/")
    assert "deleted file mode" in await sandbox.diff()
    result = await sandbox.exec("pwd", timeout_s=30, cwd="/testbed/gone")
    assert (result.reason, result.returncode) == (ExecEnd.EXIT, 1)


async def test_the_tree_that_sandboxes_share_never_changes(start: Start, repository: Path) -> None:
    one, other = await start(), await start()
    await one.exec("rm -rf .git tests; echo attack > lib.py; chmod 777 lib.py; touch new", timeout_s=30)
    expected = "def one():\n    return 1"
    assert said(await other.exec("cat lib.py; ls -A", timeout_s=30)) == expected + "\n.git\nlib.py\ntests"
    assert (repository / "lib.py").read_text() == expected + "\n"
