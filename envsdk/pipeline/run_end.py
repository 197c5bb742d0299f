"""The end of a run: close its processes and files, and sum it up for the console."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from envsdk.failures import Interrupted
from envsdk.pipeline.agentic_pipeline import AgenticPipeline
from envsdk.tracking.timeline import Timeline
from envsdk.tracking.tracker import Ending, Tracker


async def close(
    pipeline: AgenticPipeline, tracker: Tracker, timeline: Timeline, *, patience_s: float = 5.0
) -> None:
    """End the processes of the run, then its trackers and its timeline."""
    await pipeline.close(patience_s=patience_s)
    tracker.close()
    timeline.close()


def ending_of(error: BaseException) -> tuple[Ending, str]:
    """How a run ends that raises `error`, and why."""
    if isinstance(error, Interrupted | KeyboardInterrupt | asyncio.CancelledError):
        return Ending.STOPPED, str(error)
    return Ending.FAILED, f"{type(error).__name__}: {error}"


def success_before_and_after(validations: Mapping[int, Mapping[str, float]]) -> str:
    """Lines of text: held-out success at the first and the last evaluation, by tag."""
    if not validations:
        return "No held-out tasks were played: val_batch_size is 0."
    first, last = validations[min(validations)], validations[max(validations)]
    names = [name for name in first if name.startswith("val/success/")]
    names.sort(key=lambda name: (name != "val/success/mean", name))
    if len(validations) == 1:
        tags = [f"  {name.removeprefix('val/success/'):<28} {last[name]:6.1%}" for name in names]
        return "\n".join([f"Held-out success, step {max(validations)}:", *tags])
    lines = [f"Held-out success, step {min(validations)} -> step {max(validations)}:"]
    for name in names:
        before, after = first[name], last.get(name, float("nan"))
        tag = name.removeprefix("val/success/")
        lines.append(f"  {tag:<28} {before:6.1%} -> {after:6.1%}   ({100 * (after - before):+.1f} points)")
    return "\n".join(lines)
