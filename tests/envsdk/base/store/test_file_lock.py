from __future__ import annotations

import errno
import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envsdk.base.store.file_lock import locked

HOLD = """
import sys, time
from pathlib import Path
from envsdk.base.store.file_lock import locked
with locked(Path(sys.argv[1]), patience_s=0):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_is_held_by_one_process_and_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError), locked(path, patience_s=0.1):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    for _ in range(2):
        with locked(path, patience_s=0):
            pass


def test_a_file_system_without_locks_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path / ".lock", patience_s=0):
        pass
