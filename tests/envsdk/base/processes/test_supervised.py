"""What a supervisor that is interrupted leaves its processes to do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from envsdk.base.processes import supervised
from envsdk.base.processes.forked import NO_GUARD
from envsdk.base.processes.supervised import Share, play_supervised


class _Open(Share[int]):
    """Has an environment open until it is interrupted, and closes it then."""

    num_environments = 1

    def __init__(self, closed: Path, *, is_deaf: bool = False) -> None:
        self.closed = closed
        self.is_deaf = is_deaf

    def play(self, send: Callable[[int], None]) -> None:
        async def environment() -> None:
            try:
                send(os.getpid())
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                self.closed.touch()

        if self.is_deaf:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            send(os.getpid())
            threading.Event().wait()
        asyncio.run(environment())

    def heard(self, event: int) -> None: ...

    def isolated(self) -> _Open:
        return self


def interrupted(share: _Open) -> int:
    """The process that played when Ctrl-C came; it has ended."""
    pids: list[int] = []

    def interrupt(pid: int) -> None:
        pids.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play_supervised([share], interrupt)
    return pids[0]


def test_environments_are_closed_after_ctrl_c(tmp_path: Path) -> None:
    pid = interrupted(_Open(tmp_path / "closed"))
    assert (tmp_path / "closed").exists()
    assert not psutil.pid_exists(pid)


class _Ending(Share[int]):
    num_environments = 1

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def play(self, send: Callable[[int], None]) -> None:
        raise self.error

    def heard(self, event: int) -> None: ...

    def isolated(self) -> _Ending:
        raise AssertionError("its environments are not at fault")


@pytest.mark.parametrize("error", [SystemExit(7), KeyboardInterrupt("own")])
def test_what_ends_a_program_in_a_process_ends_the_supervisor_s(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        play_supervised([_Ending(error)], lambda event: None)
    assert raised.value.args == error.args


def test_a_process_that_does_not_hear_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "CLOSE_S", 0.1)
    pid = interrupted(_Open(tmp_path / "closed", is_deaf=True))
    assert not (tmp_path / "closed").exists()
    assert not psutil.pid_exists(pid)


def test_a_script_without_a_guard_is_told_so_at_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from envsdk.collect import collect\n"
        "collect('envsdk/FrozenLake-v1', Path('out'), num_episodes=8, num_workers=2)\n"
    )
    ended = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1
    assert NO_GUARD in ended.stderr.splitlines()[-1]
    assert "memory" not in ended.stderr
