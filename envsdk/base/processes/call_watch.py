"""Finds calls into environments that do not return. The search runs in another process.

    the process that plays: call.enter("step", 30.0) -> the environment's code -> call.leave()
                                    |  shared memory
    another process:        overdue(cells, now) -> the blocking call -> kills the first process

An environment in the event loop or on a thread may keep the interpreter's lock in C code. Then no thread of
its process runs, and only another process can notice the time. Entering and leaving a call only writes a few
numbers into shared memory.

This file also runs as a program, the watcher of an `EnvWorker`. It imports only the standard library, so that
a watcher needs only a few megabytes.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

CHECK_S = 0.25
GRACE_S = 3.0
"""Within this time, a running event loop ends a late call on a thread by itself."""
_SAMPLE_S = 0.2
"""Long enough to see which thread uses the processor."""

_VERBS = ("start", "reset", "step", "state_hash", "oracle", "legal_actions", "close", "play")
_STEP = _VERBS.index("step")
_DUE, _VERB, _LIMIT, _THREAD, _IS_INLINE, _TURNS = range(6)
_WIDTH = 6
_MAX_CALLS = 4096
"""Environments of one process when their number is not known in advance."""
_NOWHERE: memoryview[float] = memoryview(bytearray(8 * (1 + _WIDTH))).cast("d")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueCall:
    """A call that did not return in time."""

    place: int
    """`EnvCall.place` of the environment's host."""
    during: str
    limit_s: float

    @property
    def limit_name(self) -> str:
        """The configuration key of its limit."""
        return limit_name(self.during)


def limit_name(during: str) -> str:
    """The configuration key of the limit of such a call."""
    return f"{during if during in ('start', 'reset') else 'step'}_timeout_s"


class EnvCall:
    """The present call of one environment. Owner: its host; the environment's thread writes it."""

    __slots__ = ("_at", "_cells", "place")

    def __init__(self, cells: memoryview[float], place: int) -> None:
        self.place = place
        self._cells = cells
        self._at = 1 + _WIDTH * place

    def runs_on(self, thread_id: int, *, is_inline: bool) -> None:
        """Set the thread (`threading.get_native_id`) that runs the environment."""
        self._cells[self._at + _THREAD] = thread_id
        self._cells[self._at + _IS_INLINE] = is_inline

    def enter(self, during: str, limit_s: float) -> None:
        """A call begins; it has `limit_s` seconds until `leave`."""
        cells, at = self._cells, self._at
        cells[at + _VERB] = _VERBS.index(during)
        cells[at + _LIMIT] = limit_s
        cells[at + _DUE] = time.monotonic() + limit_s

    def leave(self) -> None:
        """The call returned."""
        cells, at = self._cells, self._at
        cells[at + _TURNS] += cells[at + _DUE] > 0 and cells[at + _VERB] == _STEP
        cells[at + _DUE] = 0.0

    def resume(self, during: str, limit_s: float) -> list[float]:
        """The event loop runs code of an awaited call. Pass the returned state to `suspend` when the call
        waits."""
        cells, at = self._cells, self._at
        before: list[float] = [*cells[at : at + _WIDTH]]
        self.enter(during, limit_s)
        cells[at + _IS_INLINE] = True
        return before

    def suspend(self, before: list[float]) -> None:
        """The call waits: the event loop runs other code."""
        # In reverse, so that a watcher does not take the deadline of the wait for one of the code.
        for index in reversed(range(_WIDTH)):
            self._cells[self._at + index] = before[index]

    def abandoned(self) -> EnvCall:
        """A fresh EnvCall for the same place; later writes by the old thread have no effect."""
        self.leave()
        successor = EnvCall(self._cells, self.place)
        self._cells, self._at = _NOWHERE, 1
        return successor


class CallTable:
    """The calls of a process, in an unnamed file that a watcher can inherit."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._cells: memoryview[float] | None = None
        self._free: list[int] = []

    def share(self, cells: memoryview[float]) -> None:
        """Use this shared memory (`table_bytes` long, as doubles). To be called before the first `open`."""
        assert self._cells is None, "calls are open already"
        self._cells = cells

    def open(self) -> EnvCall:
        """Reserve a place in the table until `close`."""
        if self._cells is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
            self._file.truncate(table_bytes(_MAX_CALLS))
            self._cells = table_in(self._file.fileno())
        if self._free:
            return EnvCall(self._cells, self._free.pop())
        place = int(self._cells[0])
        if 1 + _WIDTH * (place + 1) > len(self._cells):
            return EnvCall(_NOWHERE, 0)  # the table is full: this one is not watched
        self._cells[0] = place + 1
        return EnvCall(self._cells, place)

    def close(self, call: EnvCall) -> None:
        """Release the place of this environment."""
        call.leave()
        if call._cells is self._cells:
            self._free.append(call.place)

    @property
    def is_loop_in_a_call(self) -> bool:
        """Whether an environment's code runs in the event loop now."""
        cells = self._cells
        return cells is not None and any(
            cells[at + _DUE] and cells[at + _IS_INLINE] for at in range(1, 1 + _WIDTH * int(cells[0]), _WIDTH)
        )

    def start_watcher(self, names: Mapping[int, str], report: Path) -> None:
        """Start a watcher that kills this process when a call blocks it.

        `names` maps places to names for the report. The watcher writes the file `report` (see
        `read_kill_report`) before it kills, and ends with this process.
        """
        if self._file is None:
            return  # all environments run in processes of their own
        table = self._file.fileno()
        subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", __file__),
                *(str(os.getpid()), str(table), str(report), json.dumps(dict(names))),
            ],
            pass_fds=[table],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def table_bytes(num_calls: int) -> int:
    """Size in bytes of a table for this many environments."""
    return 8 * (1 + _WIDTH * num_calls)


def table_in(file: int) -> memoryview[float]:
    """The table in an open file."""
    return memoryview(mmap.mmap(file, 0)).cast("d")


def turns_in(cells: memoryview[float]) -> int:
    """Turns that the environments of a table have played."""
    return int(sum(cells[1 + _TURNS :: _WIDTH]))


CALLS = CallTable()
"""The calls of this process."""


def overdue(cells: memoryview[float], now: float, pid: int, since: float = 0.0) -> OverdueCall | None:
    """The call that blocks process `pid`, or None while the process can end late calls by itself.

    A call whose code runs in the event loop is overdue when its limit has passed. A call on a thread, or one
    that waits, is ended by the event loop. If it is still open after `GRACE_S`, the loop does not run because
    some call keeps the interpreter's lock: the one whose thread uses the processor.

    `since` is when the process was stopped last (SIGSTOP): calls of before have their whole limit again.
    """
    # Read once: the values change meanwhile.
    read = {at: cells[at + _DUE] for at in range(1, 1 + _WIDTH * int(cells[0]), _WIDTH)}
    due = {at: max(end, since + cells[at + _LIMIT]) for at, end in read.items() if end}
    calls = list(due)
    inline = [at for at in calls if cells[at + _IS_INLINE]]
    late = [at for at in inline if due[at] < now]
    if late or not inline:
        late += [at for at in calls if at not in inline and due[at] + GRACE_S < now]
    if not late:
        return None
    found = late[0]
    if len(calls) > 1:
        # Many calls are awaited on the event loop's thread: one that runs there comes before those that wait.
        threads = {int(cells[at + _THREAD]): at for at in sorted(calls, key=lambda at: at in inline)}
        busy = _busiest(pid, {at: thread for thread, at in threads.items()})
        if busy in late:
            found = busy
        elif busy is not None and found not in inline:
            return None  # the others wait for that call, which is within its limit
    if cells[found + _DUE] != read[found]:
        return None  # the call returned during the check
    return OverdueCall(
        place=(found - 1) // _WIDTH, during=_VERBS[int(cells[found + _VERB])], limit_s=cells[found + _LIMIT]
    )


def _busiest(pid: int, threads: Mapping[int, int]) -> int | None:
    """The key of the thread that uses the processor most; None when none does or it cannot be seen."""
    before = {key: _cpu_ticks(pid, thread) for key, thread in threads.items()}
    time.sleep(_SAMPLE_S)
    used = {key: _cpu_ticks(pid, thread) - before[key] for key, thread in threads.items()}
    busiest = max(used, key=lambda key: used[key])
    return busiest if used[busiest] > 0 else None


def _cpu_ticks(pid: int, thread: int) -> int:
    fields = _fields(f"/proc/{pid}/task/{thread}/stat")
    return int(fields[11]) + int(fields[12]) if fields else 0


def _is_stopped(pid: int) -> bool:
    """Whether signals or a debugger hold this process."""
    return _fields(f"/proc/{pid}/stat")[:1] in (["T"], ["t"])


def _fields(path: str) -> list[str]:
    """Fields of a `stat` file of /proc behind the name; none where it cannot be read."""
    try:
        return Path(path).read_text().rpartition(")")[2].split()
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class KillReport:
    """Why a watcher killed its process."""

    name: str
    """The name of the environment's place."""
    during: str
    limit_s: float


def read_kill_report(path: Path) -> KillReport | None:
    """The report of a watcher, or None without one. Removes the file."""
    try:
        text = path.read_text()
        path.unlink()
    except OSError:
        return None
    return KillReport(**json.loads(text))


def main(argv: list[str]) -> None:
    """Body of the watcher."""
    # The process is named: it may have ended, and this one have another parent, before this line.
    watched, table, report, names = int(argv[0]), int(argv[1]), Path(argv[2]), json.loads(argv[3])
    cells = table_in(table)
    stopped_at = 0.0
    while os.getppid() == watched:
        if _is_stopped(watched):
            stopped_at = time.monotonic()
        call = overdue(cells, time.monotonic(), watched, stopped_at)
        if call is not None and not _is_stopped(watched):
            killed = KillReport(names[str(call.place)], call.during, call.limit_s)
            report.write_text(json.dumps(asdict(killed)))
            os.kill(watched, signal.SIGKILL)
            return
        time.sleep(CHECK_S)


if __name__ == "__main__":
    main(sys.argv[1:])
