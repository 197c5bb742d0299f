"""Which of several awaited calls blocks the event loop."""

from __future__ import annotations

import os
import threading
import time

import pytest

from envsdk.processes.call_watch import GRACE_S, CallTable, EnvCall, overdue, table_bytes

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
