"""Lines that leave things behind, or take too long."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import ClassVar

from envsdk import EnvSpec
from tests.envsdk.testing.broken_envs.line import BROKEN, Broken, Line, broken


@broken("resources.no_process_is_left", "child processes")
class LeavesAProcess(Line):
    started: ClassVar = []

    def reset(self, *, seed=None, options=None):
        self.started.append(
            subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        )
        return super().reset(seed=seed)


@broken("resources.no_thread_is_left", "threads")
class LeavesAThread(Line):
    over_for_all: ClassVar = threading.Event()

    def reset(self, *, seed=None, options=None):
        threading.Thread(target=self.over_for_all.wait, daemon=True).start()
        return super().reset(seed=seed)


@broken("resources.no_file_is_left_open", "open files")
class LeavesAFileOpen(Line):
    opened: ClassVar = []

    def reset(self, *, seed=None, options=None):
        self.opened.append(open(os.devnull))  # noqa: SIM115
        return super().reset(seed=seed)


@broken("resources.no_temporary_file_is_left", "temporary files")
class LeavesATemporaryFile(Line):
    def reset(self, *, seed=None, options=None):
        descriptor, _ = tempfile.mkstemp()
        os.close(descriptor)
        return super().reset(seed=seed)


@broken("resources.closed_instances_are_freed", "still referred to")
class InAListOfAll(Line):
    everyone: ClassVar = []

    def __init__(self):
        super().__init__()
        self.everyone.append(self)


@broken("resources.episodes_do_not_pile_up", "more open files")
class OpensAFilePerEpisode(Line):
    def __init__(self):
        super().__init__()
        self.opened = []

    def reset(self, *, seed=None, options=None):
        self.opened.append(open(os.devnull))  # noqa: SIM115
        return super().reset(seed=seed)

    def close(self):
        for file in self.opened:
            file.close()


class TakesItsTime(Line):
    def step(self, action):
        time.sleep(0.002)
        return super().step(action)


BROKEN.append(
    Broken(
        EnvSpec(id="broken/TakesItsTime-v0", entry_point=TakesItsTime, step_timeout_s=0.001),
        "resources.calls_are_in_time",
        "step_timeout_s is 0.001",
    )
)
