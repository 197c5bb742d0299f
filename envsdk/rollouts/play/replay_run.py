"""`envsdk replay-run RUN`: make a run's scheduling decisions again from its log, and say why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Option, Options
from envsdk.contracts.failures import ConfigurationError, EnvsdkError, StorageError
from envsdk.managers.batch_files import batch_groups
from envsdk.managers.ledger_history import History, replay
from envsdk.managers.ledger_log import read_log


class ReplayRunOptions(Options):
    """What `envsdk replay-run` takes."""

    folder: Annotated[Path, Argument("RUN")]
    """A run's folder."""
    why_step: Annotated[int | None, Option(metavar="STEP")] = None
    """Say what the trainer waited for before this step (counted from 0, as in the file names of batches)."""
    why_group: Annotated[int | None, Option(metavar="GROUP")] = None
    """Tell the life of this group: who played it, when, and how it ended."""
    as_json: Annotated[bool, Option("--json")] = False
    """Print JSON."""


def command(options: ReplayRunOptions) -> None:
    """Make the decisions of a run again: who played what, and which groups were trained when.

    The exit code is 0 when this version of envsdk decides as the run did, and 1 at the first difference.
    """
    history = replay(read_log(options.folder))
    answer = _answer(history, options)
    different = [] if history.difference else differing_batches(history, options.folder)
    if options.as_json:
        say(
            json.dumps(
                {
                    "events": history.num_events,
                    "processes": history.num_sections,
                    "batches": len(history.batches),
                    "difference": None if history.difference is None else str(history.difference),
                    "batches_that_differ_on_disk": different,
                    "answer": answer,
                },
                indent=2,
            )
        )
    else:
        for line in answer:
            say(line)
    if history.difference is not None:
        raise EnvsdkError(str(history.difference))
    if different:
        raise EnvsdkError(
            "the log and the batches on disk differ: other groups are in the batch of step "
            f"{', '.join(map(str, different[:5]))}"
        )
    if not options.as_json and not answer:
        processes = "1 process" if history.num_sections == 1 else f"{history.num_sections} processes"
        say(
            f"{history.num_events} events of {processes} lead to the same decisions; "
            f"{len(history.batches)} batches are those on disk"
        )


def _answer(history: History, options: ReplayRunOptions) -> list[str]:
    said: list[str] = []
    try:
        if options.why_step is not None:
            said += history.why_step(options.why_step)
        if options.why_group is not None:
            said += history.why_group(options.why_group)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return said


def differing_batches(history: History, run: Path) -> list[int]:
    """Steps whose batch on disk holds other groups than the log says."""
    found = []
    for step, groups in history.batches.items():
        try:
            on_disk = batch_groups(run / "trajectories", step)
        except (FileNotFoundError, StorageError):
            continue  # the last one, when the process ended before it was written; or no longer there
        if on_disk != groups:
            found.append(step)
    return found


app, main = command_of(ReplayRunOptions, command, name="envsdk replay-run")

if __name__ == "__main__":
    sys.exit(main())
