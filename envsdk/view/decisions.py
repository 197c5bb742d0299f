"""Why the trainer waited before each step, from the log of the run's ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envsdk.contracts.failures import StorageError
from envsdk.managers.ledger_history import replay
from envsdk.managers.ledger_log import LOG_NAME, read_log

MOST_LOG_BYTES = 1 << 20
"""A longer log is for the command: about 100,000 trajectories, whose decisions take some seconds."""
MOST_STEPS = 1_000
"""Steps that are explained, the newest."""


def decisions_view(run: Path) -> dict[str, Any]:
    """`steps`: of each step its number, the seconds waited and the reason in sentences; or a `note`."""
    path = run / LOG_NAME
    if not path.is_file():
        return {"steps": [], "note": ""}
    if path.stat().st_size > MOST_LOG_BYTES:
        return {"steps": [], "note": f"The log is long: ask envsdk replay-run {run} --why-step N."}
    try:
        history = replay(read_log(run))
    except StorageError as error:
        return {"steps": [], "note": str(error)}
    note = "" if history.difference is None else f"Not all of the log can be explained: {history.difference}"
    waits = sorted(history.waits.values(), key=lambda wait: wait.step)[-MOST_STEPS:]
    steps = [
        {
            "step": wait.step,
            "waited_s": wait.taken_s - wait.asked_s,
            "said": " ".join(history.why_step(wait.step)),
        }
        for wait in waits
    ]
    return {"steps": steps, "note": note}
