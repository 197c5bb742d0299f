"""Makes one fault happen to a job, and ends it."""

from __future__ import annotations

import contextlib
import itertools
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RLIMIT_NOFILE

import psutil

from benchmarks.soak_parts.job import Job
from benchmarks.soak_parts.plan import Fault, Kind

DAY_S = 86_400.0


class Control:
    """What the shim and `soak_env.py` read, inside the job's programs."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "control"
        self.path.write_bytes(bytes(4096))
        self.trouble = folder / "trouble"
        self.trouble.mkdir()
        self._numbers = itertools.count()
        self._offset_s = 0.0

    def set(
        self, *, clock_offset_s: float = 0.0, write_delay_s: float = 0.0, disk_full: bool = False
    ) -> None:
        """In effect at once, in all programs."""
        with self.path.open("r+b") as file:
            file.write(struct.pack("ddq", clock_offset_s, write_delay_s, disk_full))

    def ask(self, kind: str) -> Path:
        """Have somebody make this trouble; the file is renamed when it is done."""
        path = self.trouble / f"{kind}.due"
        path.touch()
        return path


class NotPossible(Exception):
    """There is nothing that this fault could happen to."""


@contextlib.contextmanager
def happening(fault: Fault, job: Job, control: Control) -> Iterator[Callable[[], bool]]:
    """The fault is there during the block. Yields whether it has happened. Raises NotPossible."""
    with contextlib.ExitStack() as stack:
        happened: Callable[[], bool] = lambda: True  # noqa: E731
        if fault.kind in (Kind.KILL, Kind.STOP, Kind.DESCRIPTORS):
            process = _chosen(fault, job)
            try:
                if fault.kind is Kind.KILL:
                    process.send_signal(signal.SIGKILL)
                elif fault.kind is Kind.STOP:
                    process.send_signal(signal.SIGSTOP)
                    stack.callback(_quietly, lambda: process.send_signal(signal.SIGCONT))
                else:
                    before = process.rlimit(RLIMIT_NOFILE)
                    process.rlimit(RLIMIT_NOFILE, (process.num_fds(), before[1]))
                    stack.callback(_quietly, lambda: process.rlimit(RLIMIT_NOFILE, before))
            except psutil.NoSuchProcess as error:
                raise NotPossible(str(error)) from error
        elif fault.kind is Kind.DISK_FULL:
            control.set(disk_full=True)
            stack.callback(control.set)
        elif fault.kind is Kind.DISK_SLOW:
            control.set(write_delay_s=0.05)
            stack.callback(control.set)
        elif fault.kind is Kind.CLOCK:
            control.set(clock_offset_s=fault.amount * DAY_S)
            stack.callback(control.set)
        else:
            due = control.ask(str(fault.kind))
            happened = lambda: not due.exists()  # noqa: E731
            stack.callback(due.unlink, missing_ok=True)
        yield happened


def _chosen(fault: Fault, job: Job) -> psutil.Process:
    found = job.processes(fault.target)
    if not found:
        raise NotPossible(f"there is no {fault.target}")
    return found[int(fault.choice * len(found))]


def _quietly(action: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        action()
