"""The end of a run: close its processes and files, and sum it up for the console."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from envsdk.base.display.scores import NOT_PLAYED, change, failed_kinds, held_out
from envsdk.contracts.failures import Interrupted
from envsdk.runs.agentic_pipeline import AgenticPipeline
from envsdk.runs.checkpoints import BEST, FOLDER
from envsdk.runs.selection import Selection
from envsdk.tracking.timeline import Timeline
from envsdk.tracking.tracker import Ending, Tracker


async def close(
    pipeline: AgenticPipeline, tracker: Tracker, timeline: Timeline, *, patience_s: float = 5.0
) -> None:
    """End the processes of the run, then its trackers and its timeline."""
    await pipeline.close(patience_s=patience_s)
    tracker.close()
    timeline.close()


@contextmanager
def ending_told(tracker: Tracker) -> Iterator[None]:
    """Tell `tracker` how the block ends, and why."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Interrupted | KeyboardInterrupt | asyncio.CancelledError):
            tracker.end(Ending.STOPPED, str(error))
        else:
            tracker.end(Ending.FAILED, f"{type(error).__name__}: {error}")
        raise
    tracker.end(Ending.FINISHED)


def success_before_and_after(validations: Mapping[int, Mapping[str, float]]) -> str:
    """Lines of text: held-out success at the first and the last evaluation, by tag."""
    if not validations:
        return "No held-out tasks were played: val_batch_size is 0."
    first, last = validations[min(validations)], validations[max(validations)]
    before, after = held_out(first), held_out(last)
    if len(validations) == 1:
        lines = [f"Held-out success, step {max(validations)}:"]
        lines += [f"  {tag:<28} {score}" for tag, score in after.items()]
    else:
        lines = [f"Held-out success, step {min(validations)} -> step {max(validations)}:"]
        for tag in dict.fromkeys([*before, *after]):
            pair = before.get(tag, NOT_PLAYED), after.get(tag, NOT_PLAYED)
            lines.append(f"  {tag:<28} {pair[0]} -> {pair[1]}   ({change(*pair)})")
    if failed := failed_kinds(last):
        lines.append(f"Failed in the last evaluation: {failed}.")
    return "\n".join(lines)


def best_checkpoint(selection: Selection, run_dir: Path) -> str:
    """A line of text: the best evaluation, and where its weights are; empty where none was selected."""
    step = selection.best_step
    if step is None:
        return ""
    where = f"{run_dir / FOLDER / BEST}" if step else "the model that the run began with"
    return f"Best {selection.metric}: {selection.scores[step]:.4g} after {step} steps, {where}"
