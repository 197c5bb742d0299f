"""Which of several awaited calls blocks the event loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from envsdk.base.processes import call_watch
from envsdk.base.processes.call_watch import (
    GRACE_S,
    CallTable,
    EnvCall,
    overdue,
    table_bytes,
    table_in,
    turns_in,
)

LIMIT_S = 30.0


@pytest.fixture
def cells() -> memoryview[float]:
    return memoryview(bytearray(table_bytes(4))).cast("d")


def awaited(table: CallTable) -> EnvCall:
    call = table.open()
    call.runs_on(threading.get_native_id(), is_inline=False)
    call.enter("step", LIMIT_S)
    return call


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_one_whose_code_runs_is_named_however_long_the_others_wait(
    cells: memoryview[float], index: int
) -> None:
    table = CallTable()
    table.share(cells)
    calls = [awaited(table) for _ in range(3)]
    calls[index].resume("reset", 2 * LIMIT_S)
    now = time.monotonic()
    # The others' limits are over: the loop would have ended their calls if it ran.
    assert overdue(cells, now + LIMIT_S + GRACE_S + 1, os.getpid()) is None
    found = overdue(cells, now + 2 * LIMIT_S + 1, os.getpid())
    assert found is not None
    assert (found.place, found.during, found.limit_s) == (calls[index].place, "reset", 2 * LIMIT_S)


def test_turns_are_counted_once_also_where_a_place_is_used_again(cells: memoryview[float]) -> None:
    table = CallTable()
    table.share(cells)
    for _ in range(2):
        calls = [awaited(table) for _ in range(2)]
        calls[0].suspend(calls[0].resume("step", 1.0))
        for call in calls:
            call.leave()
            call.enter("reset", LIMIT_S)
            table.close(call)
    assert turns_in(cells) == 4


def test_a_call_that_waits_is_the_loop_s_to_end(cells: memoryview[float]) -> None:
    table = CallTable()
    table.share(cells)
    call = awaited(table)
    call.suspend(call.resume("step", 1.0))
    now = time.monotonic()
    assert overdue(cells, now + LIMIT_S + 1, os.getpid()) is None
    found = overdue(cells, now + LIMIT_S + GRACE_S + 1, os.getpid())
    assert found is not None
    assert (found.place, found.limit_s) == (call.place, LIMIT_S)
    call.leave()
    assert overdue(cells, now + LIMIT_S + GRACE_S + 1, os.getpid()) is None


def test_a_watcher_whose_process_ended_before_it_looked_ends_and_kills_nobody(tmp_path: Path) -> None:
    """Its parent is another process then; with the limit of a call passed, that one would be killed."""
    table = tmp_path / "table"
    table.write_bytes(bytes(table_bytes(1)))
    with table.open("r+b") as file:
        call = EnvCall(table_in(file.fileno()), 0)
        call._cells[0] = 1
        call.runs_on(1, is_inline=True)
        call.enter("step", -10.0)
        ended = subprocess.Popen(["true"])
        ended.wait()
        watcher = [sys.executable, "-I", "-S", call_watch.__file__, str(ended.pid)]
        arguments = [str(file.fileno()), str(tmp_path / "report"), '{"0": "slot"}']
        done = subprocess.run([*watcher, *arguments], pass_fds=[file.fileno()], timeout=60, check=False)
    assert done.returncode == 0
    assert not (tmp_path / "report").exists()


def test_a_call_of_before_a_stop_has_its_whole_limit_after_it(cells: memoryview[float]) -> None:
    table = CallTable()
    table.share(cells)
    call = table.open()
    call.runs_on(threading.get_native_id(), is_inline=True)
    call.enter("step", LIMIT_S)
    stopped_until = time.monotonic() + 60.0
    assert overdue(cells, stopped_until + 1, os.getpid(), stopped_until) is None
    assert overdue(cells, stopped_until + LIMIT_S + 1, os.getpid(), stopped_until) is not None
    assert overdue(cells, stopped_until + 1, os.getpid()) is not None


def test_a_process_that_is_stopped_is_not_killed_for_a_call_that_does_not_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    table.write_bytes(bytes(table_bytes(1)))
    watched = subprocess.Popen(["sleep", "600"])
    killed: list[int] = []
    with table.open("r+b") as file:
        call = EnvCall(table_in(file.fileno()), 0)
        call._cells[0] = 1
        call.runs_on(1, is_inline=True)
        call.enter("step", 0.0)

        def watch() -> None:
            """Three looks."""
            parents = iter([watched.pid] * 3)
            with monkeypatch.context() as patch:
                patch.setattr(call_watch.os, "kill", lambda pid, _: killed.append(pid))
                patch.setattr(call_watch.os, "getppid", lambda: next(parents, 1))
                arguments = [str(watched.pid), str(file.fileno()), str(tmp_path / "report"), '{"0": "slot"}']
                call_watch.main(arguments)

        watched.send_signal(signal.SIGSTOP)
        os.waitpid(watched.pid, os.WUNTRACED)
        watch()
        assert not killed
        watched.send_signal(signal.SIGCONT)
        os.waitpid(watched.pid, os.WCONTINUED)
        watch()
        assert killed == [watched.pid]
    watched.kill()
    watched.wait()
