"""`envsdk train` that ends while its devices change hands: dying_run.py SIGNAL PHASE COUNT WHEN ARGUMENTS...

WHEN: `before` a role gives its memory back, `between` two commands, or `after` the turn has begun.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from envsdk.config.device_sharing import Phase
from envsdk.runs import shared_devices
from envsdk.runs.device_turns import DeviceTurns, Hold
from envsdk.train import main

begin = shared_devices.SharedDevices.begin
number, named, num_left, when = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]


class DyingTurns(DeviceTurns):
    """Dies after the first command."""

    def begin(self, role: str, needs: shared_devices.Held) -> Iterator[Hold]:
        for command in super().begin(role, needs):
            yield command
            die()


def die() -> None:
    global number
    os.kill(os.getpid(), number)
    number = 0  # which is no signal: the user asks once


async def begin_or_die(devices: shared_devices.SharedDevices, phase: Phase, role: str = "") -> None:
    global num_left
    num_left -= phase == named
    due = num_left == 0 and phase == named
    if due and when == "before":
        die()
    if due and when == "between":
        for turns in devices._turns.values():
            turns.__class__ = DyingTurns
    await begin(devices, phase, role)
    if due and when != "before":
        die()


shared_devices.SharedDevices.begin = begin_or_die  # type: ignore[method-assign]
sys.exit(main(sys.argv[5:]))
