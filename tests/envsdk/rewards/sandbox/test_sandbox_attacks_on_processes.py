"""Attacks with processes, signals, memory and output; each runs for real."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from envsdk.rewards.sandbox import ExecEnd, Limits
from tests.envsdk.rewards.sandbox.boxes import Start, processes_of, said, until

AS_A_CHILD_OF_PID_1 = """
import asyncio, subprocess, sys
import psutil
from envsdk.rewards.sandbox import Image, open_backend

async def main():
    backend = open_backend("bubblewrap", {"state_dir": sys.argv[1]})
    sandbox = await backend.start(Image())
    for script in ("true", "sleep 1000 & true"):
        assert (await sandbox.exec(script, timeout_s=60)).ok
    await sandbox.exec("sleep 1000", timeout_s=0.5)
    await backend.aclose()

if sys.argv[2:]:
    asyncio.run(main())
else:
    child = subprocess.Popen([sys.executable, sys.orig_argv[1], sys.orig_argv[2], sys.argv[1], "child"])
    child.wait()
    print("zombies", sum(process.status() == "zombie" for process in psutil.process_iter()))
"""

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL = Limits(
    processes=64, memory_mb=128, file_mb=16, disk_mb=64, files=2_000, shm_mb=8, output_bytes=1 << 20
)


async def test_a_fork_bomb_ends_with_its_command(start: Start) -> None:
    sandbox = await start(limits=SMALL)
    result = await sandbox.exec("bomb() { bomb | bomb & }; bomb; sleep 30", timeout_s=1)
    assert result.reason is ExecEnd.TIMEOUT
    assert result.returncode == 137
    assert processes_of(sandbox.shared.lease) == []
    assert said(await sandbox.exec("echo well", timeout_s=30)) == "well"


async def test_no_more_processes_start_than_the_limit(start: Start) -> None:
    sandbox = await start(limits=replace(SMALL, processes=20))
    script = (
        "import os, signal\n"
        "started = 0\n"
        "try:\n"
        "    while os.fork():\n"
        "        started += 1\n"
        "    signal.pause()\n"
        "except BlockingIOError:\n"
        "    print(started)\n"
    )
    started = int(said(await sandbox.exec(f"python - <<'END'\n{script}END", timeout_s=30)))
    assert 15 <= started < 20


async def test_a_limit_cannot_be_raised(sandbox) -> None:
    for option in "-u", "-d", "-f", "-n":
        result = await sandbox.exec(f"ulimit {option} unlimited", timeout_s=30)
        assert result.returncode == 1
        assert "cannot modify limit" in result.output


async def test_trapped_signals_do_not_outlast_the_timeout(sandbox) -> None:
    script = "trap '' TERM INT HUP QUIT ALRM; while :; do sleep 0.05; done"
    result = await sandbox.exec(script, timeout_s=0.5)
    assert result.reason is ExecEnd.TIMEOUT


async def test_a_daemon_ends_with_the_command_that_started_it(sandbox) -> None:
    daemon = "setsid nohup bash -c 'while :; do echo beat >> /tmp/beats; sleep 0.02; done' >/dev/null 2>&1 & "
    await sandbox.exec(daemon + "while [ ! -s /tmp/beats ]; do :; done", timeout_s=30)
    before = await sandbox.read("/tmp/beats")
    assert said(await sandbox.exec("ls -d /proc/[0-9]*", timeout_s=30)).count("/proc/") <= 3
    assert await sandbox.read("/tmp/beats") == before


async def test_a_daemon_that_holds_the_output_does_not_hold_the_command(sandbox) -> None:
    result = await sandbox.exec("sleep 60 & disown; echo over", timeout_s=30)
    assert said(result) == "over"


async def test_a_command_that_closes_its_output_is_still_waited_for(sandbox) -> None:
    result = await sandbox.exec("exec >&- 2>&-; sleep 0.3; echo end > /tmp/end", timeout_s=30)
    assert result.ok
    assert await sandbox.read("/tmp/end") == b"end\n"


async def test_a_command_that_closes_its_output_still_times_out(sandbox) -> None:
    result = await sandbox.exec("exec >&- 2>&-; sleep 60", timeout_s=0.3)
    assert result.reason is ExecEnd.TIMEOUT


async def test_a_tree_of_zombies_leaves_nothing(sandbox) -> None:
    script = (
        "import os\n"
        "children = []\n"
        "for _ in range(100):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os.fork()\n"
        "        os._exit(0)\n"
        "    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n"
        "    children.append(child)\n"
        "print({open(f'/proc/{child}/stat').read().split()[2] for child in children})\n"
    )
    result = await sandbox.exec(f"python - <<'END'\n{script}END", timeout_s=30)
    assert said(result) == "{'Z'}"
    assert processes_of(sandbox.shared.lease) == []


async def test_killing_everything_kills_only_the_sandbox(sandbox) -> None:
    result = await sandbox.exec(
        f"kill -9 {os.getpid()}; kill -9 {os.getppid()}; kill -9 1; kill -9 -1", timeout_s=30
    )
    assert result.reason is ExecEnd.EXIT
    assert said(await sandbox.exec("echo well", timeout_s=30)) == "well"


async def test_a_process_outside_can_be_neither_seen_nor_traced(sandbox) -> None:
    outside = os.getpid()
    script = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for request in (16, 0x4206):\n"
        f"    print(libc.ptrace(request, {outside}, None, None), os.strerror(ctypes.get_errno()))\n"
        f"print(os.path.exists('/proc/{outside}/environ'))\n"
        "print(max(int(p) for p in os.listdir('/proc') if p.isdigit()) < 50)\n"
    )
    assert said(await sandbox.exec(f"python - <<'END'\n{script}END", timeout_s=30)).splitlines() == [
        "-1 No such process",
        "-1 No such process",
        "False",
        "True",
    ]


async def test_endless_output_is_cut_and_ended(start: Start) -> None:
    sandbox = await start(limits=replace(SMALL, kept_output_bytes=10_000))
    result = await sandbox.exec("yes attack", timeout_s=60)
    assert result.reason is ExecEnd.OUTPUT_LIMIT
    assert result.returncode == 137
    assert (1 << 20) < result.total_bytes < (64 << 20), "what ends it has to be scheduled first"
    assert len(result.output) < 11_000
    assert "bytes left out" in result.output


async def test_a_memory_hog_is_ended(start: Start) -> None:
    sandbox = await start(limits=SMALL)
    result = await sandbox.exec(
        "python -c 'x = bytearray(200 << 20); import time; time.sleep(60)'", timeout_s=60
    )
    assert result.reason is ExecEnd.OUT_OF_MEMORY


async def test_a_memory_hog_is_ended_where_there_are_no_control_groups(start: Start) -> None:
    sandbox = await start(limits=SMALL)
    if sandbox.cgroup is not None:
        sandbox.cgroup.delete()
        sandbox.cgroup = None
    result = await sandbox.exec(
        "python -c 'x = bytearray(200 << 20); import time; time.sleep(60)'", timeout_s=60
    )
    assert result.reason is ExecEnd.OUT_OF_MEMORY


async def test_memory_shared_out_over_many_processes_counts_together(start: Start) -> None:
    sandbox = await start(limits=SMALL)
    hog = "python -c 'x = bytearray(24 << 20); import time; time.sleep(60)' & "
    result = await sandbox.exec(hog * 10 + "wait", timeout_s=60)
    assert result.reason is ExecEnd.OUT_OF_MEMORY


async def test_one_allocation_beyond_all_bounds_is_refused(start: Start) -> None:
    sandbox = await start(limits=SMALL)
    result = await sandbox.exec("python -c 'bytearray(1 << 40)'", timeout_s=60)
    assert result.reason is ExecEnd.EXIT
    assert "MemoryError" in result.output


async def test_terminal_escapes_come_out_as_text(sandbox) -> None:
    result = await sandbox.exec(r"printf '\033]0;owned\007\033[2Jend\000\302\233'", timeout_s=30)
    assert said(result) == r"\x1b]0;owned\x07\x1b[2Jend\x00\x9b"


async def test_nothing_can_be_typed_into_a_terminal(sandbox) -> None:
    script = (
        "import fcntl, pty, os\n"
        "main, side = pty.openpty()\n"
        "for request in (0x5412, 0x1_0000_5412):\n"
        "    import ctypes\n"
        "    libc = ctypes.CDLL(None, use_errno=True)\n"
        "    print(libc.ioctl(side, ctypes.c_ulong(request), b'x'), ctypes.get_errno())\n"
        "try:\n"
        "    os.open('/dev/tty', os.O_RDWR)\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
    )
    said_lines = said(await sandbox.exec(f"python - <<'END'\n{script}END", timeout_s=30)).splitlines()
    assert said_lines == ["-1 1", "-1 1", "No such device or address"]


async def test_invalid_utf8_is_replaced_in_the_output(sandbox) -> None:
    result = await sandbox.exec(r"printf 'a\377\376b\303'", timeout_s=30)
    assert result.output == "a\ufffd\ufffdb\ufffd"
    assert result.total_bytes == 5


async def test_a_script_of_megabytes_runs(sandbox) -> None:
    lines = ": " + "x" * 1000 + "\n"
    assert said(await sandbox.exec(lines * 3000 + "echo end", timeout_s=60)) == "end"


async def test_huge_arguments_fail_inside_only(sandbox) -> None:
    result = await sandbox.exec(
        '/bin/true "$(head -c 3000000 /dev/zero | tr "\\0" x)"; echo $?', timeout_s=60
    )
    assert result.reason is ExecEnd.EXIT
    assert result.output.rstrip().endswith("126")
    with pytest.raises(ValueError, match="at most"):
        await sandbox.exec("true", timeout_s=30, env={"A": "x" * 200_000})
    with pytest.raises(ValueError, match="no `=` or NUL"):
        await sandbox.exec("true", timeout_s=30, env={"A": "x\0--bind"})


async def test_privileges_cannot_be_gained(sandbox) -> None:
    result = await sandbox.exec(
        "cp /bin/bash b && chmod 6755 b && ./b -p -c 'id -u; id -g';"
        "grep -E '^(Cap|NoNewPrivs)' /proc/self/status; su -c id </dev/null; sudo -n id; true",
        timeout_s=30,
    )
    lines = result.output.split()
    assert lines[:2] == ["1000", "1000"]
    assert {value for name, value in pairwise(lines) if name.startswith("Cap")} == {"0" * 16}
    assert lines[lines.index("NoNewPrivs:") + 1] == "1"
    assert "uid=0" not in result.output


async def test_the_user_outside_is_not_root(sandbox) -> None:
    mapping = said(await sandbox.exec("cat /proc/self/uid_map", timeout_s=30)).split()
    assert mapping[0] == "1000"
    task = asyncio.create_task(sandbox.exec("echo x > /tmp/up; sleep 60", timeout_s=60))
    written = sandbox.folder / "layers/0/tmp/up"
    await until(written.exists)
    assert written.stat().st_uid == sandbox.shared.owner.uid != 0
    owners = {os.stat(f"/proc/{pid}").st_uid for pid in processes_of(sandbox.shared.lease)}
    assert owners == {sandbox.shared.owner.uid}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_of(sandbox.shared.lease) == []


async def test_namespaces_mounts_and_devices_are_refused(sandbox) -> None:
    result = await sandbox.exec(
        "for attempt in 'unshare -U true' 'unshare -n true' 'mount -t tmpfs none /tmp' "
        "'mount --bind /tmp /testbed' "
        "'umount /proc' 'mknod /tmp/sda b 8 0' 'chroot / true' 'hostname evil' 'swapoff -a' "
        "'nsenter -t 1 -m true' 'setpriv --reuid=0 true'; "
        'do $attempt >/dev/null 2>&1 && echo "$attempt worked"; done; echo end',
        timeout_s=30,
    )
    assert said(result) == "end"


async def test_dangerous_system_calls_are_refused(sandbox) -> None:
    script = (
        "import ctypes, platform\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "x86 = platform.machine() == 'x86_64'\n"
        "calls = {'keyctl': 250 if x86 else 219, 'bpf': 321 if x86 else 280, 'io_uring_setup': 425,\n"
        "         'userfaultfd': 323 if x86 else 282, 'perf_event_open': 298 if x86 else 241}\n"
        "for name, number in calls.items():\n"
        "    assert libc.syscall(number, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 1, name\n"
        "print('refused')\n"
    )
    assert said(await sandbox.exec(f"python - <<'END'\n{script}END", timeout_s=30)) == "refused"


async def test_cancelling_a_command_ends_it(sandbox) -> None:
    task = asyncio.create_task(sandbox.exec("touch /tmp/began; sleep 60", timeout_s=60))
    await until((sandbox.folder / "layers/0/tmp/began").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_of(sandbox.shared.lease) == []
    assert said(await sandbox.exec("echo well", timeout_s=30)) == "well"


async def test_no_command_leaves_a_zombie_or_takes_the_end_of_another_process(sandbox) -> None:
    own = await asyncio.create_subprocess_exec("sh", "-c", "sleep 0.2; exit 7")
    before = set(psutil.Process().children(recursive=True))
    for script in ("true", "sleep 1000 & true", "kill -9 $$"):
        await sandbox.exec(script, timeout_s=60)
    await sandbox.exec("sleep 1000", timeout_s=0.5)
    assert set(psutil.Process().children(recursive=True)) <= before
    assert await own.wait() == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a namespace with a PID 1 that buries nobody")
async def test_commands_leave_no_zombie_where_pid_1_buries_nobody(tmp_path: Path) -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", AS_A_CHILD_OF_PID_1]
    process = await asyncio.create_subprocess_exec(*command, str(tmp_path), stdout=subprocess.PIPE)
    said, _ = await process.communicate()
    assert said.split() == [b"zombies", b"0"]
