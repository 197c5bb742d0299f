"""`envsdk train` that is killed while its devices change hands: dying_run.py PHASE COUNT WHEN ARGUMENTS...

WHEN: `before` a role gives its memory back, `between` two commands, or `after` the turn has begun.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

from envsdk.runs import shared_devices
from envsdk.runs.device_turns import DeviceTurns, Hold, Phase
from envsdk.train import main

begin = shared_devices.SharedDevices.begin
num_left = int(sys.argv[2])


class DyingTurns(DeviceTurns):
    """Dies after the first command."""

    def begin(self, role: str, needs: shared_devices.Held) -> Iterator[Hold]:
        for command in super().begin(role, needs):
            yield command
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def begin_or_die(devices: shared_devices.SharedDevices, phase: Phase, role: str = "") -> None:
    global num_left
    num_left -= phase == sys.argv[1]
    due = num_left == 0 and phase == sys.argv[1]
    if due and sys.argv[3] == "before":
        die()
    if due and sys.argv[3] == "between":
        for turns in devices._turns.values():
            turns.__class__ = DyingTurns
    await begin(devices, phase, role)
    if due:
        die()


shared_devices.SharedDevices.begin = begin_or_die  # type: ignore[method-assign]
sys.exit(main(sys.argv[4:]))
