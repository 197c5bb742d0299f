"""Train as a configuration says: open the run's folder, start Ray, connect the parts, run the pipeline.

run(load_config("agentic_async.yaml"))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import ray

from envsdk.base.display.progress import ProgressDisplay
from envsdk.base.display.scores import NOT_PLAYED, change, failed_kinds, held_out
from envsdk.base.display.terminal import say
from envsdk.base.processes.interrupts import on_stop_signals
from envsdk.config.loading import LoadedConfig
from envsdk.config.models import RunConfig
from envsdk.config.plugins import environment_notes
from envsdk.config.start_checks import check_start
from envsdk.contracts.failures import EnvsdkError, Interrupted
from envsdk.managers.ray_nodes import find_driver_files, this_node
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.runs.agentic_pipeline import AgenticPipeline
from envsdk.runs.batch_source import BatchSource
from envsdk.runs.checkpoints import BEST, FOLDER
from envsdk.runs.engine_group import Say
from envsdk.runs.lost_runtime import lost_runtime
from envsdk.runs.node_watch import watch_nodes
from envsdk.runs.rollout_cluster import PlayedBatches
from envsdk.runs.run_folder import RunFolder, begin, lacks_last_evaluation, only_run_in, stopped_early
from envsdk.runs.selection import Selection
from envsdk.runs.trainers import Trainers
from envsdk.tracking import open_trackers
from envsdk.tracking.timeline import Timeline
from envsdk.tracking.tracker import Ending, Tracker
from envsdk.view.export import REPORT, write_report_of_job

OpenBatches = Callable[[RunConfig, RunFolder, Path, Trainers, Say], BatchSource]
"""Makes the source of a run's batches, not started, for the model in a folder."""


def run(loaded: LoadedConfig, open_batches: OpenBatches | None = None) -> None:
    """Train as the configuration says. Raises EnvsdkError; Interrupted after Ctrl-C.

    Without `open_batches`, the run plays its batches itself.
    """
    config = loaded.config
    with only_run_in(config.run_folder):
        _train(loaded, open_batches or _played)


def _played(config: RunConfig, folder: RunFolder, model: Path, trainers: Trainers, say: Say) -> BatchSource:
    return PlayedBatches(
        config,
        folder,
        model=model,
        weights=trainers.actor,
        driver_files=trainers.driver_files,
        say=say,
        averaging=trainers.actor if config.evaluates_average else None,
    )


def _train(loaded: LoadedConfig, open_batches: OpenBatches) -> None:
    """Start the run or continue it, unless it has all its steps and the evaluation after them."""
    config = loaded.config
    check_start(config)
    folder = RunFolder.open(config)
    ended = ""
    if stopped_early(config, folder):
        ended = f"stopped early after {folder.first_step} steps; raise early_stopping_patience"
    elif folder.first_step >= config.max_steps and not lacks_last_evaluation(config, folder):
        ended = f"has all {config.max_steps} steps; raise max_steps"
    if ended:
        say(f"{folder.path} {ended} or choose another exp_name.")
        if not (folder.path / REPORT).is_file():
            say(f"Report: {write_report_of_job(folder.path)}")
        return
    model, changes = begin(loaded, folder)
    if_lost = lost_runtime(
        f"The checkpoints and batches in {folder.path} are whole: the same command continues from them, here "
        "or wherever that folder is",
        report_of=folder.path,
    )
    with ray_runtime(config.ray, if_lost=if_lost, say=say):
        asyncio.run(_run(config, folder, model, changes, open_batches))


async def _stop_before_the_trainer_goes(config: RunConfig, pipeline: AgenticPipeline) -> None:
    """Stop with a checkpoint when a node is drained that this program or a trainer runs on."""
    if config.ray.address is None:
        return
    needed = {this_node(): "this program"}
    with suppress(ray.exceptions.RayError):  # the run will end for it
        for group in pipeline.trainers.groups:
            needed |= dict.fromkeys(await group.nodes(), "the trainer")
    await watch_nodes(needed, pipeline.give_way)


async def _run(
    config: RunConfig, folder: RunFolder, model: Path, changes: Sequence[str], open_batches: OpenBatches
) -> None:
    """Start the processes of the run, train, end them."""
    with ExitStack() as stack:
        display = stack.enter_context(ProgressDisplay(config.exp_name, max_steps=config.max_steps))
        timeline = stack.enter_context(Timeline(folder.path / "timeline.json"))
        tracker = open_trackers(config.trackers, folder.path, config.tracker_args)
        stack.callback(tracker.close)
        tracker.rewind(folder.first_step - 1)
        checkpoint = [] if folder.checkpoint is None else [folder.checkpoint.folder.resolve()]
        trainers = Trainers.of(config, model, find_driver_files(config, [model, *checkpoint]))
        batches = open_batches(config, folder, model, trainers, display.note)
        pipeline = AgenticPipeline(
            config, folder, batches, trainers, tracker=tracker, timeline=timeline, display=display
        )
        on_stop_signals(pipeline.request_stop)
        for change in changes:
            display.note(f"other settings than before: {change}")
        for note in environment_notes(config):
            display.note(note)
        display.note(f"run folder: {folder.path}; look inside with: envsdk view {folder.path}")
        try:
            with ending_told(tracker):
                await pipeline.start()
                watching = asyncio.ensure_future(_stop_before_the_trainer_goes(config, pipeline))
                stack.callback(watching.cancel)
                await pipeline.run()
        except BaseException as error:
            # The user must see what went wrong, not that closing failed as well.
            with suppress(EnvsdkError):
                if isinstance(error, Interrupted) and not pipeline.has_trained:
                    # Actors that are still starting would not answer for seconds, and nothing was done.
                    await close(pipeline, tracker, timeline, patience_s=0.0)
                else:
                    await close(pipeline, tracker, timeline)
                    write_report_of_job(folder.path)
            raise
        await close(pipeline, tracker, timeline)
        report = write_report_of_job(folder.path)
    if batches.validates or pipeline.validations:
        say(success_before_and_after(pipeline.validations))
    if best := best_checkpoint(pipeline.selection, folder.path):
        say(best)
    if report is not None:
        say(f"Report: {report}")
    say(f"Trajectories: envsdk view {folder.path}")


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
