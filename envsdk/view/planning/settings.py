"""The file that `envsdk plan` reads: a plan of its own, or the configuration of a run."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import validated
from envsdk.config.device_memory import memory_problems
from envsdk.config.loading import load_config
from envsdk.config.models import RunConfig
from envsdk.config.reading import Reading
from envsdk.contracts.failures import ConfigurationError
from envsdk.view.planning.candidates import Candidate, Plan, splits
from envsdk.view.planning.measured import Measured, read_measured
from envsdk.view.planning.workload import StatedEpisodes, Timings, Workload
from envsdk.view.sources import CONFIG_FILE


class Search(StrictSettings):
    """Values to try. A dimension that is absent keeps the run's value."""

    sampling_devices: Annotated[list[PositiveInt], Field(min_length=1)] | None = None
    """Devices of all engines together; about twelve splits when absent."""
    async_generation_ratio: Annotated[list[NonNegativeFloat], Field(min_length=1)] = Field(
        default=[0.0, 1.0, 2.0, 4.0]
    )
    """Alpha. Each is tried with each split."""
    max_staleness: Annotated[list[PositiveInt | None], Field(min_length=1)] | None = None
    """Bounds on staleness; null is alpha, rounded up."""
    num_groups_redundancy: Annotated[list[NonNegativeInt], Field(min_length=1)] | None = None
    """Spare groups."""
    group_size_redundancy: Annotated[list[NonNegativeInt], Field(min_length=1)] | None = None
    """Spare members of each group."""
    infer_batch_size: Annotated[list[PositiveInt], Field(min_length=1)] | None = None
    """Replies that one engine samples at once (`max_running`)."""
    group_size: Annotated[list[PositiveInt], Field(min_length=1)] | None = None
    """Trajectories of a group; each divides `rollout_batch_size`."""
    shared_devices: bool = True
    """Whether to try sampling and training in turns on all devices, too (synchronous)."""


class PlanFile(StrictSettings):
    """The keys of a plan. Those of a run mean what they mean in its file."""

    rollout_batch_size: PositiveInt | None = None
    """Trajectories per training step."""
    group_size: PositiveInt | None = None
    """Trajectories of a group."""
    async_generation_ratio: NonNegativeFloat = 0.0
    """Alpha where it is not searched."""
    max_staleness: PositiveInt | None = None
    """Bound on staleness; alpha, rounded up, when absent."""
    num_groups_redundancy: NonNegativeInt = 0
    """Spare groups."""
    group_size_redundancy: NonNegativeInt = 0
    """Spare members of each group."""
    infer_batch_size: PositiveInt = 128
    """Replies that one engine samples at once."""
    num_envs: PositiveInt | None = None
    """Environments; one for every episode that may be open when absent."""
    max_env_num_per_worker: PositiveInt = 64
    """Environments of one worker process, which has a router of its own."""
    episode_deadline_s: PositiveFloat = 600.0
    """An episode that takes longer counts as failed."""
    weight_update: Literal["continue", "restart", "finish"] = "continue"
    """What happens to a reply that is being sampled when new weights arrive."""
    is_num_return_sequences_expand: bool | None = None
    """False: the first requests of a group go to one engine; absent, only where there is no other."""
    devices_per_engine: PositiveInt = 1
    """Devices of one engine."""
    episodes: StatedEpisodes | None = None
    """What is played, where it is not measured."""
    timings: Timings | None = None
    """How long everything takes, where it is not measured."""
    search: Search = Search()
    """Values to try."""


_OF_RUNS = RunConfig.model_fields.keys() - PlanFile.model_fields.keys()
"""A file with one of these keys is the configuration of a run."""


def read_plan(
    path: Path, *, devices: int, measured: Path | None = None, seed: int = 0, num_steps: int = 12
) -> tuple[Plan, Measured | None]:
    """The plan of a file, which is a `PlanFile` or a run's configuration. Raises ConfigurationError."""
    reading = Reading()
    content: Any = OmegaConf.to_container(reading.read(path), resolve=False)
    if measured is not None and not (measured / CONFIG_FILE).is_file():
        raise ConfigurationError(f"--measured {measured}: there is no {CONFIG_FILE}; name a run's folder")
    own = (
        load_config(measured / CONFIG_FILE, for_training=False, to_explain=True).config if measured else None
    )
    run = own
    if content.keys() & _OF_RUNS:
        run = load_config(path, for_training=False, to_explain=True).config
        file = validated(PlanFile, _keys_of(run), str(path))
    else:
        keys = {**(_keys_of(own) if own is not None else {}), **content}
        file = validated(PlanFile, keys, str(path), origin=reading.origin)
    found = None
    if own is not None and measured is not None:
        found = read_measured(
            measured,
            num_engines=own.actor_infer.num_engines,
            max_running=own.actor_infer.infer_batch_size,
            train_devices=own.actor_train.num_ranks,
        )
        workload = found.workload
    elif file.episodes is not None and file.timings is not None:
        workload = Workload(episodes=file.episodes, timings=file.timings)
    else:
        raise ConfigurationError(
            f"{path} does not say how long anything takes: give --measured runs/NAME, the folder of a run "
            "like it, or a plan with `episodes` and `timings` (docs/planner.md)"
        )
    misfit = (
        partial(misfit_of, run, devices) if run is not None and run.device_memory_gib is not None else None
    )
    return replace(_plan(file, path, workload, devices, seed, num_steps), misfit=misfit), found


def misfit_of(run: RunConfig, devices: int, candidate: Candidate) -> str:
    """Why devices of the stated size cannot hold the run, so divided or shared."""
    first = 0 if candidate.is_shared else candidate.sampling_devices
    offload = "all" if candidate.is_shared else "none"
    ranks = {"device_mapping": list(range(first, devices)), "offload": offload}
    engines = {
        "device_mapping": list(range(candidate.sampling_devices)),
        "offload": offload,
        "infer_batch_size": candidate.infer_batch_size,
    }
    split = run.model_copy(
        update={
            "actor_train": run.actor_train.model_copy(update=ranks),
            "reference": run.reference.model_copy(update=ranks),
            "actor_infer": run.actor_infer.model_copy(update=engines),
        }
    )
    problems = memory_problems(split, (run.device_memory_gib or 0.0) * 2**30)
    return next((f"does not fit: {problem.message.partition('. In all')[0]}" for problem in problems), "")


def _plan(file: PlanFile, path: Path, workload: Workload, devices: int, seed: int, num_steps: int) -> Plan:
    if file.rollout_batch_size is None or file.group_size is None:
        missing = "rollout_batch_size" if file.rollout_batch_size is None else "group_size"
        raise ConfigurationError(f"{path}: {missing} is missing; give it, or a run with --measured")
    search, size = file.search, file.rollout_batch_size
    if not any(size % each == 0 for each in search.group_size or (file.group_size,)):
        told = f"rollout_batch_size: {size} is not divisible by group_size={file.group_size}"
        raise ConfigurationError(f"{path}: {told}; change one of them")
    sampling = tuple(search.sampling_devices or splits(devices, file.devices_per_engine))
    for each in sampling:
        if each % file.devices_per_engine or not each < devices:
            raise ConfigurationError(
                f"{path}: search.sampling_devices has {each}; each must be a multiple of devices_per_engine "
                f"{file.devices_per_engine} and leave at least one of {devices} devices for training"
            )
    dimensions: dict[str, tuple[Any, ...]] = {"sampling_devices": sampling}
    for name in type(search).model_fields:
        values = getattr(search, name)
        if name not in ("sampling_devices", "shared_devices") and values is not None:
            dimensions[name] = tuple(values)
    named = {each.name for each in fields(Candidate)}
    base = Candidate(sampling_devices=sampling[0], **file.model_dump(include=named))
    return Plan(
        workload=workload,
        devices=devices,
        batch_size=file.rollout_batch_size,
        base=base,
        dimensions=dimensions,
        tries_shared=search.shared_devices,
        devices_per_engine=file.devices_per_engine,
        num_envs=file.num_envs,
        slots_per_worker=file.max_env_num_per_worker,
        weight_update=file.weight_update,
        keeps_groups_together=file.is_num_return_sequences_expand is False,
        episode_deadline_s=file.episode_deadline_s,
        seed=seed,
        num_steps=num_steps,
    )


def _keys_of(run: RunConfig) -> dict[str, Any]:
    """A run's configuration as the keys of a plan."""
    manager, alpha = run.train_env_manager, run.async_generation_ratio
    mapping = run.actor_infer.device_mapping
    has_prompts = bool(run.rewards)
    return {
        "rollout_batch_size": run.train_batch_size,
        "group_size": manager.group_size,
        "async_generation_ratio": 1.0 if alpha == "auto" else alpha,
        "max_staleness": run.max_staleness or None,
        "num_groups_redundancy": manager.num_groups_redundancy,
        "group_size_redundancy": manager.group_size_redundancy,
        "infer_batch_size": run.actor_infer.infer_batch_size,
        # A run on prompts has as many environments as may be open, whatever alpha is.
        "num_envs": None if has_prompts else manager.num_envs,
        "max_env_num_per_worker": manager.max_env_num_per_worker,
        "episode_deadline_s": manager.episode_deadline_s,
        "weight_update": run.weight_update,
        "is_num_return_sequences_expand": run.is_num_return_sequences_expand,
        "devices_per_engine": max(1, len(mapping) // run.actor_infer.num_engines) if mapping else 1,
    }
