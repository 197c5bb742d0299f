"""Start one program of a job, by its `mode`.

run(load_config("agentic_explorer.yaml"))
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from envsdk.base.display.explorer_progress import ExplorerProgress
from envsdk.base.display.terminal import say
from envsdk.base.processes.interrupts import on_stop_signals
from envsdk.base.store.atomic import make_folder, write_atomically
from envsdk.buffer.contract import BUFFER_FILE, JobStatus, Role
from envsdk.config.loading import LoadedConfig
from envsdk.config.models import RunConfig
from envsdk.config.start_checks import check_start
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.explorers import bench, serving
from envsdk.explorers.buffered_batches import BufferedBatches
from envsdk.explorers.explorer import Explorer
from envsdk.explorers.membership import Membership
from envsdk.explorers.weights import VersionPublisher, VersionReader, published_folder
from envsdk.managers.ray_nodes import this_node
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.runs import run as single_program
from envsdk.runs.batch_source import BatchSource
from envsdk.runs.engine_group import Say
from envsdk.runs.lost_runtime import lost_runtime
from envsdk.runs.node_watch import watch_nodes
from envsdk.runs.rollout_cluster import RolloutCluster
from envsdk.runs.run import ending_told
from envsdk.runs.run_folder import CONFIG_FILE, TRAJECTORIES, RunFolder, only_run_in
from envsdk.runs.run_origin import model_of_job
from envsdk.runs.trainers import Trainers
from envsdk.tracking import open_trackers
from envsdk.weights.source import GivenWeights

EXPLORERS = "explorers"


def run(loaded: LoadedConfig) -> None:
    """Run the program that `mode` names. Raises EnvsdkError; Interrupted after Ctrl-C or SIGTERM."""
    if loaded.config.mode != "both":
        check_start(loaded.config)
        if loaded.config.mode == "train":
            _check_weights_folder(loaded.config)
        asyncio.run(_check_fits(loaded.config))
    match loaded.config.mode:
        case "both":
            _check_own_ledger(loaded.config)
            single_program.run(loaded)
        case "train":
            single_program.run(loaded, _buffered)
            asyncio.run(_end_of_job(loaded.config))
        case "explore":
            explore(loaded)
        case "bench":
            bench.run(loaded)
        case "serve":
            serving.run(loaded)


async def _check_fits(config: RunConfig) -> None:
    """ConfigurationError when the job has other terms: before anything is made or started."""
    membership = Membership(config, Role.EXPLORER, config.explorer.name, say=say)
    try:
        await membership.check()
    finally:
        await membership.client.close()


def _check_weights_folder(config: RunConfig) -> None:
    """ConfigurationError when no weights could be published there: before models are loaded."""
    if config.synchronizer.sync_method == "checkpoint":
        try:
            make_folder(published_folder(config))
        except StorageError as error:
            raise ConfigurationError(f"synchronizer.path: {error}") from error


def _check_own_ledger(config: RunConfig) -> None:
    """ConfigurationError when the folder is a job's: which tasks were played stands in its buffer."""
    if (config.run_folder / EXPLORERS).is_dir() or (config.run_folder / BUFFER_FILE).is_file():
        raise ConfigurationError(
            f"{config.run_folder} is the folder of a job with explorers of its own, and this is `mode: "
            "both`: continue it with mode: train and mode: explore, or choose another exp_name (its "
            "weights are in checkpoints/step_N/model, for `pretrain`)"
        )


def _check_no_ledger(folder: RunFolder) -> None:
    """ConfigurationError when the folder is that of a single program, whose ledger is in its files."""
    if folder.has_begun and folder.state is not None:
        raise ConfigurationError(
            f"{folder.path} is the folder of a run that played for itself, and this is `mode: train`: "
            "continue it with mode: both, or choose another exp_name (its weights are in "
            "checkpoints/step_N/model, for `pretrain`)"
        )


async def _end_of_job(config: RunConfig) -> None:
    """Tell explorers that all steps are trained, in case the trainer was killed before it could."""
    # What `resume` names may be an old checkpoint, which is gone by now.
    folder = RunFolder.open(config.model_copy(update={"resume": "auto"}))
    if folder.state is not None:
        return  # a single program's
    membership = Membership(config, Role.TRAINER, "trainer", say=say)
    buffer, call = membership.buffer, membership.client.call
    try:
        await call(lambda: buffer.create(config.exp_name, membership.terms))
        if (await call(buffer.view)).status is JobStatus.FINISHED:
            return
        with only_run_in(config.run_folder):
            await membership.join()
            await call(lambda: buffer.trainer.trained(membership.me, folder.first_step))
            await call(lambda: buffer.trainer.finish(membership.me))
    finally:
        await membership.leave()


def explorer_folder(config: RunConfig) -> Path:
    """Where this explorer's own files go."""
    return config.run_folder / EXPLORERS / config.explorer.name


def explore(loaded: LoadedConfig) -> None:
    """Play for the trainer of the job until it has finished."""
    config = loaded.config
    folder = explorer_folder(config)
    with only_run_in(folder, taken="another process plays in", key="explorer.name"):
        model = model_of_job(config)
        make_folder(folder / TRAJECTORIES)
        write_atomically(folder / CONFIG_FILE, loaded.resolved_yaml().encode())
        if_lost = lost_runtime(
            "The same command starts this explorer again; the groups that it played are played again when "
            f"its lease has run out (buffer.lease_s={config.buffer.lease_s:g}), here or elsewhere"
        )
        with ray_runtime(config.ray, if_lost=if_lost):
            asyncio.run(_explore(config, folder, model))


async def _explore(config: RunConfig, folder: Path, model: Path) -> None:
    with ExitStack() as stack:
        display = ExplorerProgress(config.explorer.name)
        tracker = open_trackers(["jsonl"], folder, {})
        stack.callback(tracker.close)
        weights = GivenWeights(model)
        cluster = RolloutCluster(
            config,
            model=model,
            trajectories=(folder / TRAJECTORIES).resolve(),
            weights=weights,
            say=display.note,
        )
        explorer = Explorer(
            config,
            cluster,
            membership=Membership(config, Role.EXPLORER, config.explorer.name, say=display.note, model=model),
            reader=VersionReader(config, folder, model, say=display.note),
            weights=weights,
            tracker=tracker,
            display=display,
        )
        on_stop_signals(explorer.request_stop)
        if config.ray.address is not None:
            watching = asyncio.ensure_future(
                watch_nodes({this_node(): "this program"}, partial(_stop, explorer, display.note))
            )
            stack.callback(watching.cancel)
        try:
            with ending_told(tracker):
                await explorer.run()
        finally:
            await explorer.close()


def _stop(explorer: Explorer, say: Say, why: str) -> None:
    say(f"{why}; the explorer stops")
    explorer.request_stop()


def _buffered(config: RunConfig, folder: RunFolder, model: Path, trainers: Trainers, say: Say) -> BatchSource:
    _check_no_ledger(folder)
    publisher = VersionPublisher(config, trainers.actor, model=model, say=say)
    membership = Membership(config, Role.TRAINER, "trainer", say=say, model=model)
    return BufferedBatches(config, folder, membership=membership, publisher=publisher, say=say)
