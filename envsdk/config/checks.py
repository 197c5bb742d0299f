"""Checks that involve several keys, or something outside the file.

`check` returns every problem it finds; it starts nothing and writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from envsdk.base import registry
from envsdk.base.plugins import plugin_names
from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import KeyPath, Problem, dotted
from envsdk.base.settings.validation import problems_in
from envsdk.base.store.best import why_no_best
from envsdk.config import plugins
from envsdk.config.advantage_checks import advantage_problems
from envsdk.config.device_memory import memory_problems
from envsdk.config.device_sharing import sharing_problems
from envsdk.config.env_models import CustomEnv, EnvManagerArgs
from envsdk.config.loaded_models import model_problems, replay_problems
from envsdk.config.models import EMBEDDED_DEFAULT, RunConfig
from envsdk.config.role_models import TrainerRole
from envsdk.config.sampling_support import known_settings
from envsdk.config.section_checks import (
    job_problems,
    opponent_problems,
    player_problems,
    prompt_problems,
    selection_problems,
    teacher_problems,
)
from envsdk.config.task_checks import task_problems
from envsdk.contracts.env import EnvSpec, Isolation
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.players import seated
from envsdk.contracts.prompts import PLACEHOLDERS

_BRACED_NAME = re.compile(r"(?<!\\boxed)\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""Not the argument of LaTeX's `\\boxed`, which prompts for mathematics show."""


def check(config: RunConfig, *, for_training: bool = True) -> list[Problem]:
    """Problems that would make the run fail, or do something else than its file says.

    Not `for_training`: the file is only played with, to collect or to evaluate.
    """
    checks: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
        _managers,
        _batches,
        _depth,
        _algorithm,
        advantage_problems,
        _engines,
        _weight_updates,
        _lengths,
        _tags,
        prompt_problems,
        task_problems,
        _plugin_names,
        _plugin_settings,
        teacher_problems,
        _folders,
        selection_problems,
        job_problems,
    )
    if for_training:
        checks += (_engine_learns, sharing_problems, _device_memory)
        checks += (model_problems, replay_problems)
    # Several roles may have one problem.
    return list(dict.fromkeys(problem for each in checks for problem in each(config)))


def _device_memory(config: RunConfig) -> Iterator[Problem]:
    if config.device_memory_gib is not None:
        yield from memory_problems(config, config.device_memory_gib * 2**30)


def _depth(config: RunConfig) -> Iterator[Problem]:
    bound, ratio = config.max_staleness, config.async_generation_ratio
    if ratio == "auto":
        if not bound:
            yield Problem(
                ("async_generation_ratio",),
                "`auto` needs to know how old a sample may be: set max_staleness, for example to 4",
            )
        if config.mode in ("train", "explore"):
            yield Problem(
                ("async_generation_ratio",),
                f"`auto` is for `mode: both`; give the programs of a job (mode: {config.mode}) a number",
            )
        return
    if config.max_wait_share is not None:
        yield Problem(
            ("max_wait_share",),
            f"does nothing with async_generation_ratio={ratio:g}; leave it out, or set that to `auto`",
        )
    if bound is None:
        return
    if ratio == 0 and bound:
        yield Problem(
            ("max_staleness",),
            f"{bound} does nothing with async_generation_ratio=0: a synchronous run trains on samples of its "
            "own version; leave it out",
        )
    elif ratio > 0 and not bound:
        yield Problem(
            ("max_staleness",),
            f"0 with async_generation_ratio={ratio:g}: everything played ahead would be thrown away; set "
            "async_generation_ratio=0 for a synchronous run, or max_staleness to at least 1",
        )


def _managers(config: RunConfig) -> Iterator[Problem]:
    for name, manager in config.env_managers.items():
        for i, tag in enumerate(manager.tags):
            if tag not in config.custom_envs:
                hint = suggest(tag, config.custom_envs, known="tags in custom_envs")
                yield Problem((name, "tags", i), f"unknown tag `{tag}`; {hint}")
        yield from _partition(name, manager)
        yield from _workers(name, manager)
        if manager.min_group_size is not None and manager.min_group_size > manager.group_size:
            yield Problem(
                (name, "min_group_size"),
                f"{manager.min_group_size} is more than group_size={manager.group_size}: no group would do",
            )

    for key in ("group_size_redundancy", "num_groups_redundancy", "min_group_size"):
        if getattr(config.val_env_manager, key):
            yield Problem(
                ("val_env_manager", key),
                "has no effect: an evaluation plays every task once and counts every episode; leave it out",
            )


def _workers(name: str, manager: EnvManagerArgs) -> Iterator[Problem]:
    fewest, most = manager.workers_between
    if fewest > most:
        yield Problem((name, "min_workers"), f"{fewest} is more than max_workers={most}")
        return
    num_envs = fewest * manager.envs_per_worker
    if manager.has_worker_range and num_envs < len(manager.tags):
        yield Problem(
            (name, "min_workers" if manager.min_workers is not None else "max_workers"),
            f"{fewest} x max_env_num_per_worker={manager.envs_per_worker} environments cannot play "
            f"{len(manager.tags)} tags: every tag needs one; raise min_workers or max_env_num_per_worker",
        )


def _partition(name: str, manager: EnvManagerArgs) -> Iterator[Problem]:
    partition = manager.num_groups_partition
    num_tags = len(manager.tags)
    if partition is None:
        if manager.num_env_groups < num_tags:
            yield Problem(
                (name, "num_env_groups"),
                f"{manager.num_env_groups} groups are too few for {num_tags} tags; "
                f"each tag needs one: at least {num_tags}, or name fewer tags",
            )
        return
    if len(partition) != num_tags:
        yield Problem(
            (name, "num_groups_partition"),
            f"{partition} has {len(partition)} numbers for {num_tags} tags {manager.tags}; give one per tag, "
            f"or leave the key out for an equal split",
        )
    elif sum(partition) != manager.num_env_groups:
        yield Problem(
            (name, "num_groups_partition"),
            f"{partition} adds up to {sum(partition)}, not to num_env_groups={manager.num_env_groups}; "
            f"change one of the two, or leave the key out for an equal split",
        )


def _batches(config: RunConfig) -> Iterator[Problem]:
    pairs = (
        ("rollout_batch_size", config.train_batch_size, "train_env_manager", config.train_env_manager),
        ("val_batch_size", config.val_batch_size, "val_env_manager", config.val_env_manager),
    )
    for key, batch_size, name, manager in pairs:
        if batch_size % manager.group_size:
            below = batch_size // manager.group_size * manager.group_size
            nearby = f"{below} or {below + manager.group_size}" if below else f"{manager.group_size}"
            yield Problem(
                (key,),
                f"{batch_size} is not divisible by {name}.group_size={manager.group_size}; use {nearby}",
            )
    val = config.val_env_manager
    num_groups = config.val_batch_size // val.group_size
    if config.val_batch_size and num_groups < len(val.tags):
        yield Problem(
            ("val_batch_size",),
            f"{config.val_batch_size} trajectories are {num_groups} groups, too few for the {len(val.tags)} "
            f"tags of val_env_manager; use at least {len(val.tags) * val.group_size}",
        )


def _algorithm(config: RunConfig) -> Iterator[Problem]:
    if config.ppo_mini_batch_size is not None and config.ppo_mini_batch_size > config.train_batch_size:
        yield Problem(
            ("ppo_mini_batch_size",),
            f"{config.ppo_mini_batch_size} is more than rollout_batch_size={config.rollout_batch_size}; "
            "use that or less, or null for one step per batch",
        )
    warm_start = config.warm_start
    if config.pretrain == EMBEDDED_DEFAULT and warm_start.hidden_size % warm_start.num_heads:
        yield Problem(
            ("warm_start", "num_heads"),
            f"{warm_start.num_heads} does not divide warm_start.hidden_size={warm_start.hidden_size}",
        )


def _engines(config: RunConfig) -> Iterator[Problem]:
    infer = config.actor_infer
    fewest, most = infer.engines_between
    if fewest > infer.num_engines:
        yield Problem(
            ("actor_infer", "min_engines"),
            f"{fewest} is more than num_engines={infer.num_engines}, which the run begins with",
        )
    if most < infer.num_engines:
        yield Problem(
            ("actor_infer", "max_engines"),
            f"{most} is less than num_engines={infer.num_engines}, which the run begins with",
        )
    if infer.device_mapping is None:
        return
    num_devices = len(infer.device_mapping)
    key = "num_engines" if infer.max_engines is None else "max_engines"
    if num_devices % most:
        yield Problem(
            ("actor_infer", key),
            f"{num_devices} devices in actor_infer.device_mapping cannot be shared out evenly "
            f"between {most} engines",
        )
        return
    own = getattr(known_settings(config), "tensor_parallel_size", None)
    size = infer.settings.get("tensor_parallel_size", own)
    if isinstance(size, int) and size != num_devices // most:
        yield Problem(
            ("actor_infer", "device_mapping"),
            f"{num_devices} devices for {key}={most} are {num_devices // most} for each, and an engine of "
            f"tensor_parallel_size={size} takes {size}: name {size * most} devices, or set "
            f"tensor_parallel_size to {num_devices // most}",
        )


def _lengths(config: RunConfig) -> Iterator[Problem]:
    limits: list[tuple[KeyPath, int | None]] = [
        (
            ("actor_infer", "generating_args", "max_new_tokens"),
            config.actor_infer.generating_args.max_new_tokens,
        )
    ]
    limits += [
        (("custom_envs", tag, "max_tokens_per_step"), env.max_tokens_per_step)
        for tag, env in config.custom_envs.items()
    ]
    for path, limit in limits:
        if limit is not None and limit >= config.sequence_length:
            yield Problem(
                path,
                f"a reply of {limit} tokens leaves no room for a prompt within "
                f"sequence_length={config.sequence_length}; make it smaller, or sequence_length larger",
            )

    for tag, env in config.custom_envs.items():
        longest = config.max_response_tokens(tag)
        if env.compact_at is not None and env.compact_at + longest >= config.sequence_length:
            yield Problem(
                ("custom_envs", tag, "compact_at"),
                f"a segment of {env.compact_at} tokens leaves no room for a summary of {longest} within "
                f"sequence_length={config.sequence_length}; make it smaller",
            )


def _tags(config: RunConfig) -> Iterator[Problem]:
    for tag, env in config.custom_envs.items():
        path: KeyPath = ("custom_envs", tag)
        yield from _templates(path, env)
        yield from _environment(path, env)
        if env.demonstration_config:
            yield from _environment(path, env.demonstrated, "demonstration_config")
        yield from player_problems(path, env, config.opponents)


def _environment(path: KeyPath, env: CustomEnv, arguments: str = "env_config") -> Iterator[Problem]:
    try:
        spec = plugins.environment_spec(env.env_type)
        if registry.missing(spec):
            return  # `_packages` says so.
        constructor = plugins.environment_class(spec)
    except ConfigurationError as error:
        yield Problem((*path, "env_type"), str(error))
        return
    known = plugins.argument_names(constructor)
    called = f"arguments of {env.env_type}"
    unknown = [] if known is None else [key for key in env.env_config if key not in known]
    wrong = {key: f"unknown key; {suggest(key, known or (), known=called)}" for key in unknown}
    wrong = wrong or registry.wrong_types(constructor, env.env_config)
    for key, problem in wrong.items():
        yield Problem((*path, arguments, key), problem)
    if wrong or (env.isolation or spec.isolation) != Isolation.INLINE:
        return
    # An inline environment is cheap to build, and knows best what its arguments may be.
    try:
        made = registry.make(spec, **env.env_config)
    except (ConfigurationError, TypeError) as error:
        yield Problem((*path, arguments), str(error))
        return
    made.close()
    try:
        seated(env.players or (), made.roles, 0)
    except ValueError as error:
        yield Problem((*path, "players"), str(error))
        return
    yield from _turns(path, env, spec)


def _turns(path: KeyPath, env: CustomEnv, spec: EnvSpec) -> Iterator[Problem]:
    own = plugins.own_turn_limit(spec, env.env_config)
    if own is not None and env.max_steps is not None and env.max_steps > own:
        yield Problem(
            (*path, "max_steps"),
            f"{env.max_steps} turns, but `{env.env_type}` as configured ends episodes after {own}; "
            f"set env_config.max_steps to {env.max_steps} too, or this to {own} or less",
        )


def _templates(path: KeyPath, env: CustomEnv) -> Iterator[Problem]:
    used = _BRACED_NAME.findall(env.agent_template)
    for name in dict.fromkeys(used):
        if name not in PLACEHOLDERS:
            hint = suggest(name, PLACEHOLDERS, known="placeholders")
            yield Problem((*path, "agent_template"), f"unknown placeholder `{{{name}}}`; {hint}")
    if "observation" not in used:
        yield Problem(
            (*path, "agent_template"),
            "lacks `{observation}`: the policy would play blind; put it where the observation belongs",
        )
    for name in dict.fromkeys(_BRACED_NAME.findall(env.agent_system_template)):
        if name in PLACEHOLDERS:
            yield Problem(
                (*path, "agent_system_template"),
                f"`{{{name}}}` is not filled in here, since the system message is the same for every turn; "
                "move it to agent_template",
            )


def _plugin_names(config: RunConfig) -> Iterator[Problem]:
    for path, name, group in _named_plugins(config):
        if name in plugin_names(group):
            continue
        if ":" in name:
            if not plugins.is_importable(name):
                yield Problem(
                    path, f"no module for `{name}`; write `package.module:Class` and install the package"
                )
            continue
        plural = group.partition(".")[2].replace("_", " ")
        singular = plural.removesuffix("es" if plural.endswith("sses") else "s")
        hint = suggest(name, plugin_names(group), known=plural)
        yield Problem(path, f"unknown {singular} `{name}`; {hint}")


def _named_plugins(config: RunConfig) -> Iterator[tuple[KeyPath, str, str]]:
    """Keys with the plug-ins that they name, and their groups."""
    groups = {
        "actor_train": plugins.TRAINERS,
        "actor_infer": plugins.ENGINES,
        "reference": plugins.TRAINERS,
    }
    for role, group in groups.items():
        name = getattr(config, role).strategy_args.strategy_name
        yield (role, "strategy_args", "strategy_name"), name, group
    for section, trainers in (("opponents", ()), ("teachers", plugin_names(plugins.TRAINERS))):
        for each, model in getattr(config, section).items():
            if (strategy := model.strategy_args) is not None and strategy.strategy_name not in trainers:
                yield (section, each, "strategy_args"), strategy.strategy_name, plugins.ENGINES
    yield ("pg_variant",), config.pg_variant, plugins.POLICY_LOSSES
    for i, tracker in enumerate(config.trackers):
        yield ("trackers", i), tracker, plugins.TRACKERS
    for key, manager in config.env_managers.items():
        yield (key, "env_manager_cls"), manager.env_manager_cls, plugins.ENV_MANAGERS
    for tag, env in config.custom_envs.items():
        if env.env_manager_cls is not None:
            yield ("custom_envs", tag, "env_manager_cls"), env.env_manager_cls, plugins.ENV_MANAGERS
    for i, entry in enumerate(config.group_filters):
        yield ("group_filters", i), entry.name, plugins.GROUP_FILTERS
    yield ("task_sampler",), config.task_sampler.name, plugins.TASK_SAMPLERS
    yield ("adv_estimator",), config.adv_estimator, plugins.ADVANTAGE_ESTIMATORS


def _plugin_settings(config: RunConfig) -> Iterator[Problem]:
    yield from opponent_problems(config)
    for name in ("actor_train", "actor_infer", "reference"):
        role = getattr(config, name)
        for key in role.model_args.keys() & role.strategy_args.strategy_config.keys():
            yield Problem(
                (name, "model_args", key),
                f"also given as {name}.strategy_args.strategy_config.{key}; keep one",
            )
    for name in config.tracker_args:
        if name not in config.trackers:
            hint = suggest(name, config.trackers, known="trackers of this run")
            yield Problem(
                ("tracker_args", name), f"`{name}` is not among `trackers`; name it there, or {hint}"
            )
    for section in plugins.settings_sections(config):
        try:
            settings = section.model.model_validate(dict(section.values))
        except ValidationError as error:
            yield from problems_in(
                error, section.model, base=section.path, written_at=section.also, owner=section.plugin
            )
            continue
        role_name = str(section.path[0])
        is_strategy = section.path[-1] == "strategy_config"
        if (
            is_strategy
            and "device" in section.model.model_fields
            and getattr(config, role_name).device_mapping
        ):
            yield Problem(
                (role_name, "device_mapping"),
                f"`{section.plugin}` runs on one device: leave this out, and set "
                f"{dotted(section.path)}.device, for example to cuda:0",
            )
        role = getattr(config, role_name)
        if is_strategy and isinstance(role, TrainerRole) and isinstance(settings, plugins.SharesOutRanks):
            try:
                settings.layout(role.num_ranks)
            except ValueError as error:
                given = "" if role.device_mapping else " (it is absent: 1 rank)"
                yield Problem((role_name, "device_mapping"), f"{error}{given}")


def _engine_learns(config: RunConfig) -> Iterator[Problem]:
    infer = config.actor_infer
    engine, settings = infer.strategy_args.strategy_name, known_settings(config)
    if settings is None:
        return
    if not settings.takes_new_weights:
        yield Problem(
            ("actor_infer", "strategy_args", "strategy_name"),
            f"`{engine}` takes no new weights, so nothing it plays could follow the training; use it with "
            "`envsdk collect` or `envsdk evaluate`, and train with another engine",
        )
    if infer.engines_between[1] > 1 and settings.is_one_server:
        yield Problem(
            ("actor_infer", "num_engines"),
            "the server at strategy_config.base_url belongs to one engine, whose updates abort all that it "
            "samples; take one engine, or leave base_url out so that each starts a server of its own",
        )


def _weight_updates(config: RunConfig) -> Iterator[Problem]:
    if config.model_update_delta and config.model_update_transport in ("cuda_ipc", "nccl"):
        yield Problem(
            ("model_update_delta",),
            f"differences are made in main memory, which `model_update_transport: "
            f"{config.model_update_transport}` avoids; leave one of them out",
        )


def _folders(config: RunConfig) -> Iterator[Problem]:
    if config.resume not in ("auto", "never") and not Path(config.resume).expanduser().is_dir():
        there_is_none = f"there is no folder `{config.resume}`; use `auto`, `never` or a checkpoint's folder"
        yield Problem(("resume",), why_no_best(Path(config.resume)) or there_is_none)
    for folder in (config.run_folder, *config.run_folder.parents):
        if folder.exists() and not folder.is_dir():
            yield Problem(
                ("output_dir",), f"{folder} is a file, so nothing can be written into it; choose another"
            )
