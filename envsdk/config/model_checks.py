"""Checks of the file against the models that it names, where they are on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.base.store.hub import known_folder
from envsdk.base.store.model_files import dense_family, is_model_folder, stored_model_type
from envsdk.config import plugins
from envsdk.config.loaded_models import LoadedModel, models_of
from envsdk.config.models import EMBEDDED_DEFAULT, RunConfig
from envsdk.config.sampling_support import known_settings
from envsdk.engines.settings import NO_EXPERTS, EngineSettings


def model_problems(config: RunConfig) -> Iterator[Problem]:
    """What trainers and engines would refuse when they start."""
    for model in models_of(config).values():
        if problem := _start_problem(config, model):
            yield Problem((*model.path, "strategy_args"), problem)


def _start_problem(config: RunConfig, model: LoadedModel) -> str:
    settings, folder = model.own_settings, model.folder
    if isinstance(settings, EngineSettings):
        return settings.start_problem(
            folder, sequence_length=config.sequence_length, max_running=model.num_replies
        )
    problem_of = getattr(settings, "model_problem", None)
    return problem_of(folder) if problem_of and folder and is_model_folder(folder) else ""


def update_problems(config: RunConfig) -> Iterator[Problem]:
    """Families of which an engine takes no new weights."""
    folder, engine = known_folder(config.pretrain), known_settings(config)
    if folder and engine and (why := engine.update_problem(stored_model_type(folder))):
        yield Problem(("actor_infer", "strategy_args", "strategy_name"), why)


def replay_problems(config: RunConfig) -> Iterator[Problem]:
    """A policy without experts, or an engine or trainer that knows nothing of them."""
    if not config.algorithm.train_infer_correction.routing_replay:
        return
    folder = None if config.pretrain == EMBEDDED_DEFAULT else known_folder(config.pretrain)
    family = "Qwen3" if config.pretrain == EMBEDDED_DEFAULT else folder and dense_family(folder)
    path: KeyPath = ("train_infer_correction", "routing_replay")
    if family:
        yield Problem(path, f"the policy is dense ({family}): leave this out")
        return
    engine = known_settings(config)
    if engine is not None and not engine.may_tell_experts:
        yield Problem(path, f"`{config.actor_infer.strategy_args.strategy_name}` {NO_EXPERTS}")
    trainer = config.actor_train.strategy_args.strategy_name
    if not getattr(plugins.settings_model("trainers", trainer, "strategy_config"), "replays_routing", False):
        yield Problem(
            path,
            f"the trainer `{trainer}` replays no experts: take `torch`, `fsdp2_train` or `megatron_train`",
        )
