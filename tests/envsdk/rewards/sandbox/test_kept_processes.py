"""Processes that outlive their command, where the image keeps them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import ExecEnd, Image, Limits, SandboxBackend
from envsdk.rewards.sandbox.bubblewrap import BubblewrapBackend
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from envsdk.rewards.sandbox.e2b_backend import E2BBackend
from envsdk.rewards.sandbox.process import GONE_TIMEOUT_S
from envsdk.rewards.sandbox.terminal import open_terminal
from envsdk.rewards.sandbox.unsandboxed import UnsandboxedBackend
from tests.envsdk.rewards.sandbox.boxes import Start, processes_of, said, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVES = "python3 -u -m http.server 8123 --bind 127.0.0.1 -d /tmp"
ASKS = (
    "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8123/a\", timeout=5).read())'"
)
UP = "until (: < /dev/tcp/127.0.0.1/8123) 2> /dev/null; do sleep 0.05; done"


@pytest_asyncio.fixture(loop_scope="module")
async def kept(start: Start) -> AsyncIterator[BubblewrapSandbox]:
    sandbox = await start(keeps_processes=True)
    yield sandbox
    await sandbox.close()


@pytest.mark.parametrize(
    "background",
    [
        pytest.param(f"nohup {SERVES} &", id="nohup", marks=pytest.mark.slow),
        pytest.param(f"setsid {SERVES} > /dev/null 2>&1 &", id="setsid", marks=pytest.mark.slow),
        pytest.param(f"( ( {SERVES} > /tmp/log 2>&1 & ) & )", id="forked_twice"),
        pytest.param(f"tmux new-session -d {SERVES!r}", id="tmux"),
    ],
)
async def test_a_service_answers_the_commands_that_follow(kept: BubblewrapSandbox, background: str) -> None:
    assert (await kept.exec(f"echo hi > /tmp/a; {background}", timeout_s=30)).ok
    for _ in range(3):
        assert said(await kept.exec(f"{UP}; {ASKS}", timeout_s=30)) == r"b'hi\n'"
    await kept.end_processes()
    assert not (await kept.exec(ASKS, timeout_s=30)).ok
    assert said(await kept.exec("cat /tmp/a", timeout_s=30)) == "hi"


async def test_a_command_ends_with_its_shell_whatever_still_prints(kept: BubblewrapSandbox) -> None:
    result = await kept.exec(
        "(while echo x; do sleep 0.01; done; echo over > /tmp/over) & echo hi", timeout_s=30
    )
    assert (result.reason, result.returncode, result.output[:3]) == (ExecEnd.EXIT, 0, "hi\n")
    assert said(await kept.exec("sleep 0.5; [ -e /tmp/over ] || echo prints", timeout_s=30)) == "prints"
    flood = await kept.exec("yes & echo hi", timeout_s=30)
    assert flood.reason is ExecEnd.EXIT
    assert flood.total_bytes <= 32 << 20
    assert said(await kept.exec("pgrep -c yes", timeout_s=30)) == "1"


async def test_a_command_that_is_cancelled_again_and_again_holds_nothing_up(kept: BubblewrapSandbox) -> None:
    running = asyncio.create_task(kept.exec("touch /tmp/begun; sleep 1000", timeout_s=60))
    await until((kept.folder / "layers/0/tmp/begun").exists)
    closing = asyncio.create_task(kept.close())
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    async with asyncio.timeout(GONE_TIMEOUT_S / 2):
        await closing
    assert processes_of(kept.shared.lease) == []


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["timeout", "cancelled"])
async def test_a_command_that_is_cut_off_takes_its_own_processes_with_it(
    kept: BubblewrapSandbox, is_cancelled: bool
) -> None:
    await kept.exec("sleep 1001 & setsid sleep 1002 &", timeout_s=30)
    script = """
    setsid sleep 1003 &
    nohup sleep 1004 &
    until [ $(pgrep -c sleep) = 5 ]; do :; done
    trap '' TERM
    f() { f | f & }
    f &
    touch /tmp/begun
    sleep 1005
    """
    if is_cancelled:
        running = asyncio.create_task(kept.exec(script, timeout_s=60))
        await until((kept.folder / "layers/0/tmp/begun").exists)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
    else:
        assert (await kept.exec(script, timeout_s=1)).reason is ExecEnd.TIMEOUT
    script = "while [ $(pgrep -c bash) != 1 ]; do :; done; pgrep -a sleep | cut -d' ' -f3"
    assert sorted(said(await kept.exec(script, timeout_s=30)).split()) == ["1001", "1002", "1003", "infinity"]


async def test_a_closed_sandbox_leaves_nothing(start: Start, backend: BubblewrapBackend) -> None:
    sandbox = await start(keeps_processes=True)
    await sandbox.exec("setsid sleep 1000 & sleep 1000 & mkfifo /tmp/f; cat /tmp/f &", timeout_s=30)
    lease = sandbox.shared.lease
    assert processes_of(lease)
    group = sandbox.cgroup
    await sandbox.close()
    assert processes_of(lease) == []
    assert group is None or not group.folder.exists()
    assert not sandbox.folder.exists()


async def test_a_sandbox_closes_while_its_first_command_begins(start: Start) -> None:
    sandbox = await start(keeps_processes=True)
    running = asyncio.create_task(sandbox.exec("sleep 1000", timeout_s=600))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await sandbox.close()
    assert (await running).reason is ExecEnd.INFRASTRUCTURE
    assert sandbox._kept is None


async def test_a_command_that_others_stop_does_not_wait_for_its_time_out(kept: BubblewrapSandbox) -> None:
    once = "until [ -e /tmp/begun ]; do :; done; kill -STOP -1"
    assert (await kept.exec(f"setsid bash -c '{once}' > /dev/null 2>&1 &", timeout_s=600)).ok
    result = await kept.exec("touch /tmp/begun; sleep 0.5; echo $$", timeout_s=600)
    assert result.ok, result
    assert (await kept.exec("kill -STOP $$; echo goes on", timeout_s=600)).output == "goes on\n"
    again = "setsid bash -c 'while :; do kill -STOP -1; done' > /dev/null 2>&1 & disown; sleep 1000"
    for script in (again, "sleep 1000", "sleep 1000 & wait"):
        result = await kept.exec(script, timeout_s=600)
        assert (result.reason, result.returncode) == (ExecEnd.EXIT, 137)
    await kept.end_processes()
    assert (await kept.exec("echo hi", timeout_s=600)).ok


@pytest.mark.parametrize("what", ["snapshot", "restore", "fork", "diff"])
async def test_files_are_kept_and_processes_are_not(kept: BubblewrapSandbox, what: str) -> None:
    taken = await kept.snapshot()
    assert (await kept.exec("(while date > /tmp/d; do :; done) & echo x > /dev/shm/x", timeout_s=30)).ok
    made = kept
    if what == "restore":
        await kept.restore(taken)
    elif what == "fork":
        made = await kept.fork()
    else:
        await getattr(kept, what)()
    for sandbox in {kept, made}:
        assert said(await sandbox.exec("pgrep -c date; pgrep -c bash; ls /dev/shm", timeout_s=30)) == "0\n1"
        assert (await sandbox.exec("sleep 1000 &", timeout_s=30)).ok
    if made is not kept:
        await made.close()


FILL = "python3 -c 'import time; time.sleep(%s); x = bytearray(50 << 20); time.sleep(1000)' &"


async def test_memory_is_limited_for_all_processes_together(start: Start) -> None:
    sandbox = await start(keeps_processes=True, limits=Limits(memory_mb=128))
    assert (await sandbox.exec(FILL % 0, timeout_s=30)).ok
    assert (await sandbox.exec(FILL % 0 + " sleep 2", timeout_s=30)).ok
    result = await sandbox.exec(FILL % 0 + " sleep 30", timeout_s=60)
    assert (result.reason, result.returncode) == (ExecEnd.OUT_OF_MEMORY, 137)
    assert said(await sandbox.exec("pgrep -c python3; echo", timeout_s=30)) == "0"
    await sandbox.close()


async def test_memory_and_disk_are_limited_between_commands(start: Start) -> None:
    sandbox = await start(keeps_processes=True, limits=Limits(memory_mb=64, disk_mb=8))
    for fills in (FILL % 0.5 * 2, "(sleep 0.5; cat /dev/zero > /tmp/x) &"):
        await sandbox.exec(f"{fills} setsid sleep 1000 &", timeout_s=30)
        assert sandbox._kept is not None
        await asyncio.wait_for(sandbox._kept.over, 60)
        assert (await sandbox.exec("rm -f /tmp/x; ! pgrep sleep -a | grep 1000", timeout_s=30)).ok
    await sandbox.close()


async def test_processes_are_counted_over_all_commands(start: Start) -> None:
    sandbox = await start(keeps_processes=True, limits=Limits(processes=40))
    await sandbox.exec("for i in {1..20}; do sleep 1000 & done", timeout_s=30)
    # Where it cannot fork, Bash waits 15 s.
    more = 'python3 -c \'import subprocess\nfor _ in range(25): subprocess.Popen(["sleep", "1000"])\''
    result = await sandbox.exec(more, timeout_s=30)
    assert "Resource temporarily unavailable" in result.output
    await sandbox.close()
    other = await start(keeps_processes=True, limits=Limits(processes=40))
    many = "for i in {1..20}; do sleep 1000 & done; until [ $(pgrep -c sleep) = 21 ]; do :; done"
    assert (await other.exec(many, timeout_s=30)).ok
    await other.close()


async def test_a_bomb_of_daemons_is_the_commands_doing_and_ends_with_the_sandbox(start: Start) -> None:
    sandbox = await start(keeps_processes=True, limits=Limits(processes=60))
    bomb = "f() { setsid bash -c 'while :; do setsid sleep 1000 & done' & f; }; f"
    assert (await sandbox.exec(bomb, timeout_s=2)).reason is ExecEnd.TIMEOUT
    await sandbox.end_processes()
    assert said(await sandbox.exec("pgrep -c sleep", timeout_s=30)) == "1"
    lease = sandbox.shared.lease
    await sandbox.close()
    assert processes_of(lease) == []


async def test_commands_that_join_have_no_more_rights(kept: BubblewrapSandbox) -> None:
    status = said(await kept.exec("cat /proc/self/status; ls -l /proc/self/fd", timeout_s=30))
    for line in (
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        *(f"Cap{kind}:\t{0:016x}" for kind in ("Prm", "Eff", "Bnd")),
    ):
        assert line in status
    assert "0 -> pipe" in status
    assert not any(line.split(" -> ")[0].endswith((" 4", " 5", " 6", " 7")) for line in status.splitlines())
    refused = (
        "unshare -U true; nsenter -t 1 -m true; mount -t tmpfs x /tmp; umount /proc; kill -9 1; chroot / true"
    )
    for command in refused.split("; "):
        result = await kept.exec(f"{command}", timeout_s=30)
        assert not result.ok or command == "kill -9 1", result
    assert said(await kept.exec("cat /proc/1/cmdline | tr '\\0' ' '", timeout_s=30)) == "sleep infinity"


PRIES = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
found, seen, until = 0, set(), time.monotonic() + 3
while time.monotonic() < until:
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) not in (os.getpid(), os.getppid()):
            seen.add(pid)
            for name in ("root", "cwd", "exe", "fd/0", "ns/mnt"):
                try:
                    os.readlink(f"/proc/{pid}/{name}"); found += 1
                except OSError:
                    pass
            for name in ("environ", "mem", "maps"):
                try:
                    found += len(open(f"/proc/{pid}/{name}", "rb").read(1))
                except OSError:
                    pass
            if libc.ptrace(16, int(pid), 0, 0) == 0:
                found += 1
open("/tmp/found", "w").write(f"{found} {len(seen) > 5}")
"""


async def test_no_process_looks_into_a_command_that_joins_or_into_the_first(kept: BubblewrapSandbox) -> None:
    """What it saw there would be this machine's files: the root of a launcher that has not changed it yet."""
    await kept.write("/tmp/pries.py", PRIES.encode())
    assert (await kept.exec("setsid python3 /tmp/pries.py > /tmp/log 2>&1 &", timeout_s=30)).ok
    while not (await kept.exec("cat /tmp/found", timeout_s=30)).ok:
        pass
    assert said(await kept.exec("cat /tmp/found /tmp/log", timeout_s=30)) == "0 True"


async def test_a_process_that_kills_all_others_is_no_fault_of_the_sandbox(kept: BubblewrapSandbox) -> None:
    await kept.exec(
        "setsid bash -c 'trap \"\" TERM; while :; do kill -9 -1; done' > /dev/null 2>&1 &", timeout_s=30
    )
    for _ in range(20):
        result = await kept.exec("sleep 1; echo done", timeout_s=30)
        assert result.reason is ExecEnd.EXIT, result
        assert result.returncode == 137
    await kept.end_processes()
    assert said(await kept.exec("echo done", timeout_s=30)) == "done"


async def test_a_terminal_and_commands_share_a_sandbox(kept: BubblewrapSandbox) -> None:
    terminal = await open_terminal(kept)
    await terminal.send([f"{SERVES} > /dev/null 2>&1 &", "Enter", "echo hi > /tmp/a", "Enter"], wait_s=10)
    assert said(await kept.exec(f"{UP}; {ASKS}", timeout_s=30)) == r"b'hi\n'"
    await terminal.close()
    assert said(await kept.exec("pgrep -c -f 'bash -[i]'; echo", timeout_s=30)) == "0"


@pytest.mark.parametrize("inside", ["/run/x", "/run"])
async def test_what_processes_write_over_cannot_be_bound(start: Start, repository: Path, inside: str) -> None:
    with pytest.raises(ConfigurationError, match="its processes write in /run"):
        await start(keeps_processes=True, binds={inside: repository})


PROGRAM = """
import asyncio, sys
from pathlib import Path
from envsdk.rewards.sandbox import Image, open_backend

async def main():
    backend = open_backend("bubblewrap", {"state_dir": sys.argv[1]})
    sandbox = await backend.start(Image(keeps_processes=True))
    await sandbox.exec("setsid sleep 987654 & (trap '' TERM; nohup sleep 987654) &", timeout_s=60)
    print(sandbox.shared.lease, flush=True)
    await sandbox.exec("sleep 987654", timeout_s=600)

asyncio.run(main())
"""


def sleepers() -> int:
    found = (Path("/proc") / name / "cmdline" for name in os.listdir("/proc") if name.isdigit())
    return sum(b"987654" in file.read_bytes() for file in found if file.exists())


async def test_a_killed_program_leaves_no_process(tmp_path: Path) -> None:
    """Not even until the next program sweeps."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(tmp_path / "state"), stdout=subprocess.PIPE
    )
    assert program.stdout is not None
    lease = (await program.stdout.readline()).decode().strip()
    await until(lambda: sleepers() >= 3)
    program.send_signal(signal.SIGKILL)
    await program.wait()
    await until(lambda: not sleepers() and not processes_of(lease))


@pytest.mark.parametrize(
    "open_other",
    [lambda: UnsandboxedBackend({"commands_may_do_anything_to_this_machine": True}), lambda: E2BBackend({})],
)
async def test_other_backends_refuse_it_by_name(open_other: Callable[[], SandboxBackend]) -> None:
    with pytest.raises(ConfigurationError, match="outlive their command: `bubblewrap`, `podman`"):
        await open_other().start(Image(keeps_processes=True))
