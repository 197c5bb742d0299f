"""What follows from the keys of prompts with verifiable rewards: environments, managers, lengths.

    rewards, actor_train.data_args, validation, rollout_batch_size, ...
        -> custom_envs, train_env_manager, val_env_manager, sequence_length, group_filters, ...

A domain of `rewards` becomes a tag whose environment is `envsdk/Prompts-v1`: a prompt is a task, a response
an episode of one turn. From there on the run is like any other. A key that the file has is never replaced, so
a file may say itself how many environments play, or mix domains with other tags.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envsdk.base.settings.problems import KeyPath
from envsdk.base.store.hub import known_folder
from envsdk.config.section import split_evenly
from envsdk.contracts import run_limits
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.prompt_data.opening import NoRows, open_prompts
from envsdk.rewards.prompt_data.prompts import PromptSource

PROMPTS_ENV = "envsdk/Prompts-v1"
DEFAULT_DOMAIN = "math_rule"
"""The domain of a file with prompts and no `rewards`, as in ROLL."""
DEFAULT_REWARD = "math"
VAL_SUFFIX = "_val"
"""Suffix of a domain's tag for held-out prompts."""
MOST_VAL_SLOTS = 4096
MOST_PER_WORKER = 1024
"""Prompts of one worker process: they wait, and compute next to nothing."""
_SHARE_UNIT = 1_000_000

CountRows = Callable[[Mapping[str, Any]], int | None]
"""How many rows an environment's `env_config` selects; None when the files are not there."""


@dataclass(slots=True)
class Expansion:
    """A configuration with what follows from its keys."""

    data: dict[str, Any]
    origins: dict[KeyPath, str] = field(default_factory=dict)
    """For each key that was added: the key that it follows from."""
    left_out: list[str] = field(default_factory=list)
    """Domains without rows, which are not played."""

    def add(self, path: KeyPath, value: Any, source: str) -> None:
        """Add a key, unless the file has it, or has no mapping where one should be."""
        section: Any = self.data
        for part in path[:-1]:
            section = section.setdefault(part, {}) if isinstance(section, dict) else None
        if isinstance(section, dict) and path[-1] not in section:
            section[path[-1]] = value
            self.origins[path] = f"follows from {source}"


def expand(data: Mapping[str, Any], *, count_rows: CountRows, leaves_out_empty: bool = False) -> Expansion:
    """`data`, a file's keys before their types are checked, with all that follows. Values of a wrong type are
    left for that check.

    `leaves_out_empty`: domains without rows are left out of training, as long as one has rows.
    """
    expansion = Expansion(deepcopy(dict(data)))
    train = mapping(mapping(data.get("actor_train")).get("data_args"))
    if train and "rewards" not in data:
        expansion.add(("rewards",), {DEFAULT_DOMAIN: {"worker_cls": DEFAULT_REWARD}}, "actor_train.data_args")
    domains = {name: mapping(reward) for name, reward in mapping(expansion.data.get("rewards")).items()}
    if domains:
        _add_lengths(expansion)
    if domains and train:
        _add_training(expansion, train, domains, count_rows, leaves_out_empty=leaves_out_empty)
    validation = mapping(data.get("validation"))
    held_out = mapping(validation.get("data_args"))
    if domains and held_out:
        _add_validation(expansion, validation, held_out, domains, count_rows)
    if domains:
        _add_filters(expansion, domains)
    if len(domains) > 1 and data.get("whiten_advantages") is True:
        expansion.add(("whiten_over",), "tag", "rewards")
    if "val_env_manager" not in expansion.data:
        _add_no_validation(expansion)
    return expansion


def _add_lengths(expansion: Expansion) -> None:
    data = expansion.data
    prompt, response = data.get("prompt_length"), data.get("response_length")
    if isinstance(prompt, int) and isinstance(response, int):
        expansion.add(("sequence_length",), prompt + response, "prompt_length + response_length")
    if response is not None:
        expansion.add(("actor_infer", "generating_args", "max_new_tokens"), response, "response_length")
        if isinstance(data.get("validation"), dict):
            expansion.add(("validation", "generating_args", "max_new_tokens"), response, "response_length")


def _add_training(
    expansion: Expansion,
    files: Mapping[str, Any],
    domains: Mapping[str, Mapping[str, Any]],
    count_rows: CountRows,
    *,
    leaves_out_empty: bool,
) -> None:
    data = expansion.data
    counts: dict[str, int | None] = {}
    shares = mapping(files.get("domain_interleave_probs"))
    for name, reward in domains.items():
        env_config = _env_config(data, files, name, reward, domains, shuffle=True)
        counts[name] = None if shares.get(name) == 0 else count_rows(_counted(env_config, files))
        _add_tag(expansion, name, env_config, f"rewards.{name}")
    group_size = data.get("num_return_sequences_in_group")
    source = "rewards"
    used = {name: share for name in domains if (share := shares.get(name, 0 if shares else 1)) != 0}
    if leaves_out_empty and any(counts[name] != 0 for name in used):
        expansion.left_out = [name for name in used if counts[name] == 0]
        used = {name: share for name, share in used.items() if counts[name] != 0}
    manager: KeyPath = ("train_env_manager",)
    written = mapping(data.get("train_env_manager"))
    expansion.add((*manager, "tags"), list(used or domains), source)
    if group_size is not None:
        expansion.add((*manager, "group_size"), group_size, "num_return_sequences_in_group")
    if data.get("use_additional_prompts") is True:
        spare = data.get("max_additional_running_prompts", 16)
        expansion.add((*manager, "num_groups_redundancy"), spare, "max_additional_running_prompts")
    prompts = data.get("rollout_batch_size")
    if not isinstance(prompts, int) or group_size is None or not isinstance(data["train_env_manager"], dict):
        return
    alpha = data.get("async_generation_ratio", 0)
    if alpha == "auto":
        alpha = data.get("max_staleness", 0)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha) or alpha < 0:
        return
    spare = data["train_env_manager"].get("num_groups_redundancy", 0)
    num_groups = run_limits.capacity(alpha, prompts) + (spare if isinstance(spare, int) else 0)
    num_groups = max(num_groups, len(used))
    if "num_env_groups" not in written:
        expansion.add((*manager, "num_env_groups"), num_groups, "rollout_batch_size, async_generation_ratio")
        weights = [shares.get(name) or counts[name] or 1 for name in used]
        are_shares = all(
            isinstance(each, int | float) and math.isfinite(each) and each > 0 for each in weights
        )
        if "tags" not in written and are_shares:
            of_all = "domain_interleave_probs" if shares else "rows by domain"
            expansion.add((*manager, "num_groups_partition"), _partition(num_groups, weights), of_all)
    if isinstance(group_size, int) and "tags" not in written:
        at_once = min(MOST_PER_WORKER, max(1, num_groups * group_size))
        expansion.add((*manager, "max_env_num_per_worker"), at_once, source)


def _add_validation(
    expansion: Expansion,
    validation: Mapping[str, Any],
    files: Mapping[str, Any],
    domains: Mapping[str, Mapping[str, Any]],
    count_rows: CountRows,
) -> None:
    data = expansion.data
    counts: dict[str, int | None] = {}
    for name, reward in domains.items():
        env_config = _env_config(data, files, name, reward, domains, shuffle=False)
        counts[f"{name}{VAL_SUFFIX}"] = count_rows(_counted(env_config, files))
        _add_tag(expansion, f"{name}{VAL_SUFFIX}", env_config, f"validation and rewards.{name}")
    # Files that hold out no row of any domain are a problem, which the start of the run reports.
    counts = {tag: count for tag, count in counts.items() if count != 0} or counts
    if "val_env_manager" in data:
        return
    group_size = mapping(validation.get("generating_args")).get("num_return_sequences", 1)
    if not isinstance(group_size, int) or group_size < 1:
        return
    rows = [count or 1 for count in counts.values()]
    expansion.add(("val_batch_size",), sum(rows) * group_size, "the rows of validation.data_args")
    num_groups = max(len(rows), min(sum(rows), MOST_VAL_SLOTS // group_size))
    manager = {
        "tags": list(counts),
        "num_env_groups": num_groups,
        "num_groups_partition": rows if num_groups == sum(rows) else _partition(num_groups, rows),
        "group_size": group_size,
        "max_env_num_per_worker": min(MOST_PER_WORKER, num_groups * group_size),
    }
    for name, value in manager.items():
        expansion.add(("val_env_manager", name), value, "validation")


def _add_no_validation(expansion: Expansion) -> None:
    """No tasks are held out: nothing is evaluated."""
    tags = mapping(expansion.data.get("train_env_manager")).get("tags")
    if not isinstance(tags, list) or not tags or expansion.data.get("val_batch_size", 0) != 0:
        return
    expansion.add(("val_batch_size",), 0, "no val_env_manager and no validation")
    for name, value in (("tags", tags), ("num_env_groups", len(tags))):
        expansion.add(("val_env_manager", name), value, "no val_env_manager and no validation")


def _add_filters(expansion: Expansion, domains: Mapping[str, Mapping[str, Any]]) -> None:
    """`query_filter_config` of the domains as group filters."""
    filters = []
    for name, reward in domains.items():
        asked = mapping(reward.get("query_filter_config"))
        if asked.get("type", "no_filter") != "no_filter":
            filters.append({"name": asked["type"], "tags": [name], **mapping(asked.get("filter_args"))})
    written = expansion.data.get("group_filters")
    if filters and (written is None or isinstance(written, list)):
        expansion.data["group_filters"] = [*(written or ()), *filters]
        expansion.origins[("group_filters",)] = "follows from rewards.*.query_filter_config"


def _add_tag(expansion: Expansion, tag: str, env_config: Mapping[str, Any], source: str) -> None:
    own = {"env_type": PROMPTS_ENV, "env_config": dict(env_config)}
    given = mapping(expansion.data.get("custom_envs")).get(tag)
    if isinstance(given, dict) and "env_type" not in given:  # a domain with a prompt or limits of its own
        for name, value in own.items():
            expansion.add(("custom_envs", tag, name), value, source)
    else:
        expansion.add(("custom_envs", tag), own, source)


def _env_config(
    data: Mapping[str, Any],
    files: Mapping[str, Any],
    domain: str,
    reward: Mapping[str, Any],
    domains: Mapping[str, Any],
    *,
    shuffle: bool,
) -> dict[str, Any]:
    """The arguments of the environment that asks this domain's prompts."""
    names = files.get("file_name")
    columns = {name: files[name] for name in ("prompt", "messages") if files.get(name) is not None}
    config = {
        "files": found_files(names, files.get("dataset_dir")),
        **_selected(domain, domains),
        "columns": {**columns, **mapping(files.get("columns"))},
        "reward": {
            name: value
            for name, value in reward.items()
            if name not in ("tag_included", "query_filter_config") and value is not None
        },
        "shuffle": shuffle and files.get("shuffle", True),
        "order_seed": data.get("seed", 42),
    }
    model = data.get("pretrain")
    folder = known_folder(model) if data.get("prompt_length") is not None and isinstance(model, str) else None
    if folder is not None:
        config |= {"longest_prompt": data["prompt_length"], "tokenizer": str(folder)}
    return config


def _counted(env_config: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
    return {**env_config, "num_workers": files.get("preprocessing_num_workers", 1)}


def _selected(domain: str, domains: Mapping[str, Any]) -> dict[str, Any]:
    """Which rows are a domain's: those that name it, and those with one of its tags.

    An only domain without tags has all rows. `math_rule` has all that are no other domain's, as in ROLL, and
    those with its own tags.
    """
    own = domains[domain].get("tag_included")
    tags = list(dict.fromkeys([*own, domain])) if isinstance(own, list) else [domain]
    if domain != DEFAULT_DOMAIN:
        return {"tags": tags} if own or len(domains) > 1 else {}
    others = (name for name in domains if name != domain)
    not_its = [tag for name in others for tag in _selected(name, domains)["tags"] if tag not in tags]
    return {"except_tags": not_its} if not_its else {}


def found_files(names: Any, folder: Any) -> list[Any]:
    """The files of prompts, where they are: as they stand, or in `folder`."""
    found = []
    for name in [names] if isinstance(names, str) else names if isinstance(names, list) else []:
        inside = Path(folder) / name if isinstance(folder, str) and isinstance(name, str) else None
        is_elsewhere = inside is not None and not Path(name).exists() and inside.exists()
        found.append(str(inside) if is_elsewhere else name)
    return found


def _partition(total: int, weights: Sequence[float]) -> list[int]:
    """`total` in proportion to `weights`, at least 1 each where `total` allows."""
    of_all = sum(weights)
    shares = split_evenly(total, [round(_SHARE_UNIT * each / of_all) for each in weights])
    while 0 in shares and max(shares) > 1:
        shares[shares.index(max(shares))] -= 1
        shares[shares.index(0)] += 1
    return shares


def source_of(env_config: Mapping[str, Any]) -> PromptSource:
    """The prompt data of an environment's `env_config`. Raises ValidationError."""
    found = {name: env_config[name] for name in PromptSource.model_fields if name in env_config}
    files = found.get("files")
    return PromptSource.model_validate(found | ({"files": [files]} if isinstance(files, str) else {}))


def count_rows(env_config: Mapping[str, Any]) -> int | None:
    """How many rows are selected; None when the files are not there or cannot be read."""
    try:
        return len(open_prompts(source_of(env_config)))
    except NoRows:
        return 0
    except (ConfigurationError, ValidationError):
        return None


def mapping(value: Any) -> Mapping[str, Any]:
    """A section; empty where something else stands."""
    return value if isinstance(value, dict) else {}
