"""What a configuration says in full, where each value comes from, and what follows from it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from envsdk.base.settings.problems import dotted, leaves
from envsdk.base.store.hub import known_folder
from envsdk.base.store.model_files import is_model_folder, stored_dtype, stored_model_type
from envsdk.config.advantage_checks import algorithm_notes
from envsdk.config.device_memory import (
    device_bytes,
    device_needs,
    gib,
    needs_told,
    role_memory,
    settings_of,
)
from envsdk.config.device_sharing import sharing_told
from envsdk.config.env_models import EnvManagerArgs
from envsdk.config.loading import DEFAULT, LoadedConfig
from envsdk.config.machine_checks import total_memory
from envsdk.config.models import EMBEDDED_DEFAULT, RunConfig
from envsdk.config.plugins import (
    ChoosesAttention,
    ChoosesPrecision,
    SharesOutRanks,
    SharesPrefixes,
    environment_notes,
    has_oracle,
    runs_on_several_ranks,
    settings_model,
    settings_sections,
)
from envsdk.config.reading import display
from envsdk.config.rlvr import PROMPTS_ENV, count_rows, source_of
from envsdk.config.role_models import Role, TrainerRole
from envsdk.config.section import split_evenly
from envsdk.config.section_checks import teachers_by_tag
from envsdk.rewards.loading import reward_class
from envsdk.rewards.prompt_data.opening import open_prompts
from envsdk.rewards.reward import AsyncRewardFunction, Runs

_VALUE_WIDTH = 44
_NOTE_WIDTH = 110


def explain(loaded: LoadedConfig) -> str:
    """Plain text: one line per key with its value and origin, what is derived, and what the algorithm does
    not do."""
    rows = [
        (dotted(path), _short(value), loaded.provenance[dotted(path)])
        for path, value in leaves(loaded.config.as_dict())
    ]
    for section, defaults in _plugin_defaults(loaded.config):
        before = (i for i, row in enumerate(rows) if row[0].startswith(section))
        # Settings of a tracker stand in no section while none is given: they follow the names of trackers.
        after = max(before, default=max(i for i, row in enumerate(rows) if row[0].startswith("tracker")))
        rows[after + 1 : after + 1] = [
            (f"{section}.{key}", _short(value), origin) for key, value, origin in defaults
        ]
    files = " <- ".join(map(display, loaded.sources))
    return "\n".join(
        [
            f"Configuration: {files}",
            "",
            *_aligned([("key", "value", "from"), *rows]),
            "",
            "Derived",
            *_aligned(derived(loaded.config)),
            *_others_keys(f"Keys of {loaded.dialect} with other values here", loaded.remarks),
            *_others_keys("Keys without effect", loaded.without_effect),
            *_notes("The preset", loaded.preset_notes),
            *_notes("Notes", [*algorithm_notes(loaded.config), *environment_notes(loaded.config)]),
            *_notes("Before this trains here", loaded.machine_notes),
        ]
    )


def _others_keys(title: str, keys: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Keys with a reason, and where they are written."""
    if keys:
        yield from ("", title)
        yield from _aligned([(key, reason, where) for key, (where, reason) in keys.items()])


def _notes(title: str, found: Sequence[str]) -> Iterator[str]:
    if found:
        yield from ("", title)
    for note in found:
        yield textwrap.fill(
            note, _NOTE_WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
        )


def derived(config: RunConfig) -> list[tuple[str, str]]:
    """What follows from the keys: label and value."""
    staleness, train = config.staleness_bound, config.train_env_manager
    return [
        ("pipeline", _pipeline(config)),
        ("max staleness", f"{staleness} weight version{'' if staleness == 1 else 's'}"),
        ("capacity", _capacity(config)),
        ("training batch", f"{config.num_train_groups} groups of {train.group_size}"),
        *_prompt_rows(config),
        *_manager_rows("train", train),
        ("train groups count", f"from {train.required_group_size} of {train.group_size} members on"),
        *_manager_rows("val", config.val_env_manager),
        ("val tasks", _per_tag(config.val_groups_per_tag)),
        (
            "longest reply",
            _per_tag({tag: config.max_response_tokens(tag) for tag in config.custom_envs}) + " tokens",
        ),
        ("actor_train runs on", _devices(config.actor_train, "trainers")),
        *_attention("actor_train", config.actor_train),
        *_precision(config, "actor_train", config.actor_train, "trainers"),
        ("actor_infer runs on", f"{_devices(config.actor_infer, 'engines')}, {_engines(config)}"),
        *_precision(config, "actor_infer", config.actor_infer, "engines"),
        (
            "reference model",
            _devices(config.reference, "trainers") if config.needs_reference else "not loaded: no KL term",
        ),
        *_teacher_rows(config),
        ("devices shared", sharing_told(config)),
        *_memory_rows(config),
        *(_attention("reference", config.reference) if config.needs_reference else ()),
        ("value head", "yes" if config.needs_values else "no"),
        ("demonstrations", _demonstrations(config)),
        ("run folder", str(config.run_folder)),
    ]


def _pipeline(config: RunConfig) -> str:
    if config.wait_share is not None:
        return (
            f"asynchronous, generation runs up to {config.largest_depth:g} batches ahead, as few as keep the "
            f"trainer's wait under {config.wait_share:.0%}"
        )
    depth = config.largest_depth
    return "synchronous" if depth == 0 else f"asynchronous, generation runs {depth:g} batches ahead"


def _teacher_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Which teacher scores which tag, and where."""
    by_tag = teachers_by_tag(config)
    for name, teacher in config.teachers.items():
        tags = ", ".join(tag for tag, each in by_tag.items() if each == name) or "no tag"
        devices = teacher.device_mapping
        where = f"on accelerators {devices}" if devices else "on a device of its choice"
        what = f"scores {tags} with {teacher.strategy_args.strategy_name} {where}"
        yield f"teacher {name}", f"{what}; learned from as {config.distill_as}, weight {teacher.coef:g}"


def _demonstrations(config: RunConfig) -> str:
    """How many the warm start has of each tag; a tag may get none, or have no oracle to play them."""
    if config.pretrain != EMBEDDED_DEFAULT:
        own = {"demonstration_config", "demonstration_weight"}
        is_asked = any(own & env.model_fields_set for env in config.custom_envs.values())
        return f"none: `pretrain` is a model{', and demonstration_* do nothing' if is_asked else ''}"
    envs = {tag: config.custom_envs[tag] for tag in config.train_env_manager.tags}
    groups = config.train_env_manager.groups_per_tag
    weights = [groups[tag] * env.demonstration_weight for tag, env in envs.items()]
    counts = dict(zip(envs, split_evenly(config.warm_start.num_episodes, weights), strict=True))
    if config.warm_start.demonstrator != "oracle":
        return _per_tag(counts)
    has_none = {tag for tag, env in envs.items() if not has_oracle(env)}
    return _per_tag({tag: "has no oracle" if tag in has_none else n for tag, n in counts.items()})


def _prompt_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Rows of a run with prompts: what one step samples, and who scores it where."""
    sections = {
        tag: env.env_config["reward"]
        for tag, env in config.custom_envs.items()
        if env.env_type == PROMPTS_ENV and isinstance(env.env_config.get("reward"), dict)
    }
    if not sections:
        return
    asks = [tag for tag in config.train_env_manager.tags if tag in sections]
    groups, size = config.num_train_groups, config.train_env_manager.group_size
    if asks:
        which = "prompts" if len(asks) == len(config.train_env_manager.tags) else "prompts and other tasks"
        yield "each step", f"{groups} {which} x {size} responses = {config.train_batch_size} responses"
        yield "requests at once", _requests(config)
    for tag, reward in sections.items():
        if tag in asks or tag in config.val_env_manager.tags:
            env_config = config.custom_envs[tag].env_config
            rows = count_rows(env_config)
            data = "rows: not read, the files are not here" if rows is None else f"rows: {rows:,}"
            if rows and (unusable := open_prompts(source_of(env_config)).num_unusable):
                data += f", and {unusable:,} that cannot be used"
            yield f"reward of {tag}", f"{reward.get('worker_cls')} {_scored(reward)}; {data}"


def _requests(config: RunConfig) -> str:
    infer, manager = config.actor_infer, config.train_env_manager
    wanted = config.capacity + manager.num_groups_redundancy * manager.group_size
    each = "that shares the prompt of its group" if config.shares_prompts else "of its own"
    engines = "1 engine answers" if infer.num_engines == 1 else f"{infer.num_engines} engines answer"
    plural = "" if infer.num_engines == 1 else " each"
    return (
        f"up to {min(wanted, manager.max_envs)}, every response a request {each}; "
        f"{engines} {infer.infer_batch_size} at a time{plural}"
    )


def _scored(reward: Mapping[str, Any]) -> str:
    """Who calls a reward function, and within which limits."""
    kind = reward_class(str(reward["worker_cls"]))
    number = reward.get("world_size", 1)
    limit = f", {reward['timeout_s']:g} s for each response" if "timeout_s" in reward else ""
    if issubclass(kind, AsyncRewardFunction):
        if kind.keeps_deadline:
            own = kind.Args.model_fields.get("max_concurrent") if kind.Args is not None else None
            most = reward.get("max_concurrent", own.default if own is not None else None)
            at_once = "within limits of its own" if most is None else f"{most} at a time each"
            return f"awaited by the environment workers, {at_once}"
        return f"awaited by the environment workers, {number} at a time{limit}"
    if kind.runs is Runs.INLINE:
        return "in the event loops of the environment workers"
    return f"in {number} worker process{'' if number == 1 else 'es'} per environment worker{limit}"


def _capacity(config: RunConfig) -> str:
    groups = config.capacity // config.train_env_manager.group_size
    spares = config.train_env_manager.num_groups_redundancy
    return f"{groups} groups leased or waiting" + (f", and {spares} spare" if spares else "")


def _manager_rows(name: str, manager: EnvManagerArgs) -> Iterator[tuple[str, str]]:
    spares = f", {manager.group_size_redundancy} of each group spare" if manager.group_size_redundancy else ""
    workers = f"{manager.num_workers} worker{'' if manager.num_workers == 1 else 's'}"
    yield f"{name} environments", f"{manager.num_envs} in {workers}{spares}"
    fewest, most = manager.workers_between
    if fewest < most:
        each = manager.envs_per_worker
        yield (
            f"{name} workers",
            f"{fewest} to {most}, {each} environments each: {fewest * each} to {most * each}",
        )
    yield f"{name} slots by tag", _per_tag(manager.envs_per_tag)


def _per_tag(values: Any) -> str:
    return ", ".join(f"{tag} {value}" for tag, value in values.items())


def _devices(role: Role, kind: str) -> str:
    if isinstance(role, TrainerRole) and runs_on_several_ranks(role.strategy_args.strategy_name):
        return _ranks(role)
    if role.device_mapping is not None:
        return f"{len(role.device_mapping)} accelerators {role.device_mapping}"
    model = settings_model(kind, role.strategy_args.strategy_name, "strategy_config")
    if model is not None and "device" in model.model_fields:
        return f"device {model.model_validate(role.settings).model_dump()['device']}"
    return f"what {role.strategy_args.strategy_name} chooses"


def _ranks(role: TrainerRole) -> str:
    plural = "" if role.num_ranks == 1 else "s"
    settings = settings_of(role, "trainers")
    layout = f": {settings.layout(role.num_ranks)}" if isinstance(settings, SharesOutRanks) else ""
    where = f"accelerator{plural} {role.device_mapping}" if role.device_mapping else "an accelerator"
    cpus = "" if getattr(settings, "needs_gpu", False) else ", or on CPUs where there is none"
    return f"{role.num_ranks} rank{plural}{layout}; on {where}{cpus}"


def _memory_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """What each role takes of a device, where the model's folder and the role's plug-in say so; what phases
    need of devices that roles share; and what is taken of this machine's main memory."""
    size = device_bytes(config)
    try:
        memory = role_memory(config, size)
    except LookupError as error:
        yield "memory", f"not estimated: {error.args[0]}"
        return
    taken, infer = 0.0, config.actor_infer
    for name, role in memory.items():
        number = infer.num_engines if name == "actor_infer" else 1
        taken += number * role.total if role.is_on_cpu else 0.0
        each = " for each engine" if number > 1 else ""
        where = f"of main memory{each}" if role.is_on_cpu else "of each device"
        yield f"memory of {name}", f"about {role.told(where)}"
    for device, needs in device_needs(config, memory).items():
        roles = next(iter(needs.values()))
        if len(roles) > 1:
            of = "" if size is None else f", of {gib(size)}"
            yield f"memory of {device}", f"about, in GiB{of}: {needs_told(needs)}"
    if taken and config.ray.address is None:
        there = total_memory()
        of = "more than" if taken > there else "of"
        machine = f"the {gib(there)} GiB of this machine; environments and Ray take more"
        yield "main memory", f"about {gib(taken)} GiB for models, {of} {machine}"


def _precision(config: RunConfig, key: str, role: Role, kind: str) -> Iterator[tuple[str, str]]:
    """The type that a role computes in, where its plug-in chooses it and the model is known."""
    settings, folder = settings_of(role, kind), known_folder(config.pretrain) or Path(config.pretrain)
    is_tiny = config.pretrain == EMBEDDED_DEFAULT
    if not is_tiny and not is_model_folder(folder):
        return
    if isinstance(settings, ChoosesPrecision):
        yield f"{key} dtype", str(settings.precision("float32" if is_tiny else stored_dtype(folder)))
    if isinstance(settings, SharesPrefixes):
        yield f"{key} prefixes", settings.sharing("qwen3" if is_tiny else stored_model_type(folder))


def _attention(key: str, role: TrainerRole) -> Iterator[tuple[str, str]]:
    settings = settings_of(role, "trainers")
    if isinstance(settings, ChoosesAttention):
        yield f"{key} attention", settings.attention


def _engines(config: RunConfig) -> str:
    infer = config.actor_infer
    plural = "" if infer.num_engines == 1 else "s"
    fewest, most = infer.engines_between
    elastic = f", {fewest} to {most} as the queue asks" if fewest < most else ""
    return f"{infer.num_engines} {infer.strategy_args.strategy_name} engine{plural}{elastic}"


def _plugin_defaults(config: RunConfig) -> Iterator[tuple[str, list[tuple[str, Any, str]]]]:
    """Defaults by section: keys that a plug-in declares and the file leaves to it, with value and origin."""
    for section in settings_sections(config):
        values = section.model.model_validate(dict(section.values)).model_dump(mode="json")
        origin = f"{DEFAULT} of {section.plugin}"
        yield (
            dotted(section.path),
            [(key, value, origin) for key, value in values.items() if key not in section.values],
        )


def _short(value: Any) -> str:
    """The value as YAML writes it on one line, cut to the column."""
    if isinstance(value, str) and "\n" in value:
        text = value.replace("\n", "\\n")
    else:
        text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
        text = text.removesuffix("...\n").strip()
    return text if len(text) <= _VALUE_WIDTH else f"{text[: _VALUE_WIDTH - 3]}..."


def _aligned(rows: list[Any]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
