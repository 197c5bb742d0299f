"""Settings that replace those of a file: `tiny` runs any file on the tiny policy, on a CPU, with prompts and
judges where the file's own are not on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import KeyPath
from envsdk.config.foreign.row import read_data, value_at
from envsdk.config.rlvr import DEFAULT_DOMAIN, DEFAULT_REWARD, PROMPTS_ENV, found_files, mapping
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.prompt_data.files import is_local
from envsdk.rewards.prompt_data.generated import SCHEME

Put = Callable[[KeyPath, Any], bool]
"""Sets a key; returns whether it did: an override is never replaced."""

_TINY = read_data("envsdk.config", "tiny.toml")
_MOST_REWARD_WORKERS = 2


def put_prompts(data: Mapping[str, Any], put: Put) -> Iterator[str]:
    """Put generated rows in the place of files that are not here, and a comparison in that of judges without
    an address. Yields what was replaced, in one line each."""
    rewards = mapping(data.get("rewards"))
    yield from _put_comparisons(rewards, put)
    for section, split in (("actor_train", "train"), ("validation", "val")):
        yield from _put_rows(data, section, split, rewards, put)
    yield from _put_data_sets(data, put)
    for name, reward in rewards.items():
        workers = mapping(reward).get("world_size")
        if isinstance(workers, int) and workers > _MOST_REWARD_WORKERS:
            put(("rewards", name, "world_size"), _MOST_REWARD_WORKERS)


def _put_comparisons(rewards: Mapping[str, Any], put: Put) -> Iterator[str]:
    for name, reward in rewards.items():
        if not isinstance(reward, dict) or reward.get("worker_cls") != "judge" or reward.get("base_url"):
            continue
        kept = {key: reward[key] for key in ("tag_included", "query_filter_config") if key in reward}
        if put(("rewards", name), {**_TINY["comparison"], **kept}):
            yield (
                f"{name}: no judge has an address, so responses are compared with the row's answer "
                f"(`exact`); for a judge: rewards.{name}.judge_api_url=http://HOST:8001/v1"
            )


def _put_rows(
    data: Mapping[str, Any], section: str, split: str, rewards: Mapping[str, Any], put: Put
) -> Iterator[str]:
    """Rows of training, or held-out ones."""
    args = mapping(mapping(data.get(section)).get("data_args"))
    absent = _absent(args.get("file_name"), args.get("dataset_dir"))
    rows = {name: _rows_of(reward) for name, reward in (rewards or {DEFAULT_DOMAIN: DEFAULT_REWARD}).items()}
    files = [f"{SCHEME}{file}_{split}" for file in dict.fromkeys(file for file, _ in rows.values())]
    if not absent or not put((section, "data_args", "file_name"), files):
        return
    for key, usual in (("prompt", None), ("messages", None), ("columns", {})):
        if args.get(key):
            put((section, "data_args", key), usual)
    for name, reward in rewards.items():
        own = mapping(reward).get("tag_included")
        own = own if isinstance(own, list) else []
        put(("rewards", name, "tag_included"), list(dict.fromkeys([*own, rows[name][1]])))
    shown = ", ".join(f"{name} {tag}" for name, (_, tag) in rows.items())
    yield f"{section}.data_args: {absent} not on this machine, so prompts are generated: {shown}"


def _put_data_sets(data: Mapping[str, Any], put: Put) -> Iterator[str]:
    """In environments that ask rows and stand in no domain, such as gem's."""
    for tag, env in mapping(data.get("custom_envs")).items():
        config = mapping(mapping(env).get("env_config"))
        absent = _absent(config.get("files"), None) if mapping(env).get("env_type") == PROMPTS_ENV else ""
        file, rows = _rows_of(config.get("reward"))
        path: KeyPath = ("custom_envs", tag, "env_config")
        if absent and put((*path, "files"), [f"{SCHEME}{file}_train"]):
            put((*path, "tags"), [rows])
            put((*path, "columns"), {})
            yield f"{tag}: {absent} not on this machine, so prompts are generated: {rows}"


def _absent(names: Any, folder: Any) -> str:
    """The files that are not on this machine, with a verb; empty if all are."""
    absent = [str(name) for name in found_files(names, folder) if not is_local(str(name))]
    shown = ", ".join(absent[:2]) + (f" and {len(absent) - 2} more" if len(absent) > 2 else "")
    return f"{shown} {'is' if len(absent) == 1 else 'are'}" if absent else ""


def _rows_of(reward: Any) -> tuple[str, str]:
    """The generated rows for a reward, and their tag; for a sum, those of the part that decides."""
    if isinstance(reward, dict):
        if parts := mapping(reward.get("parts")):
            return _rows_of(parts.get(str(reward.get("decides"))) or next(iter(parts.values())))
        reward = reward.get("worker_cls")
    file, tag = _TINY["rows"].get(str(reward), _TINY["rows"]["others"])
    return file, tag


_REPLY = 16
_PROMPTS, _HELD_OUT_PROMPTS, _GROUPS = 8, 32, 4
PRESETS = ("tiny",)


@dataclass(frozen=True, slots=True)
class Preset:
    """A file under a preset."""

    data: dict[str, Any]
    changed: Sequence[KeyPath]
    """Keys that it set."""
    said: Sequence[str]
    """What it replaced, in one line each."""

    def replaces(self, key: KeyPath) -> bool:
        """Whether it set the key, or a section around it."""
        return any(key[: len(path)] == path for path in self.changed)


def with_preset(name: str, data: Mapping[str, Any], is_override: Callable[[KeyPath], bool]) -> Preset:
    """The file under a preset. `is_override`: whether a key is the user's own.

    Raises:
        ConfigurationError: There is no such preset.
    """
    if name not in PRESETS:
        raise ConfigurationError(f"unknown preset `{name}`; {suggest(name, PRESETS, known='presets')}")
    result = deepcopy(dict(data))
    changed: list[KeyPath] = []

    def put(path: KeyPath, value: Any) -> bool:
        section: Any = result
        for part in path[:-1]:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                return False
        given = section.get(path[-1])
        if isinstance(value, dict) and isinstance(given, dict):
            kept = {key: each for key, each in given.items() if is_override((*path, key))}
            section[path[-1]] = {**value, **kept}
        elif is_override(path):
            return False
        else:
            section[path[-1]] = value
        changed.append(path)
        return True

    for key in _TINY["drops"]:
        _drop(result, tuple(key.split(".")), is_override)
    for manager in ("train_env_manager", "val_env_manager"):
        if not isinstance(result.get(manager), dict):
            continue
        tags = result[manager].get("tags")
        put((manager, "num_env_groups"), max(_GROUPS, len(tags) if isinstance(tags, list) else 1))
    for key, value in _TINY["values"].items():
        if "manager" not in key or isinstance(result.get(key.partition(".")[0]), dict):
            put(tuple(key.split(".")), value)
    for key, limit in _TINY["limits"].items():
        value = value_at(result, tuple(key.split(".")))
        if isinstance(value, int) and value > limit:
            put(tuple(key.split(".")), limit)
    tags = result.get("custom_envs")
    for tag, env in tags.items() if isinstance(tags, dict) else ():
        if isinstance(env, dict):
            put(("custom_envs", tag, "max_tokens_per_step"), _REPLY)
    _put_batches(result, put)
    return Preset(result, changed, [*_TINY["says"], *put_prompts(result, put)])


def _put_batches(data: Mapping[str, Any], put: Put) -> None:
    """Few groups in a batch, whose members are as many as the file's up to the limit."""
    has_prompts = "rewards" in data or value_at(data, ("actor_train", "data_args", "file_name")) is not None
    train, val = data.get("train_env_manager"), data.get("val_env_manager")
    if has_prompts:
        put(("rollout_batch_size",), _PROMPTS)
        if not isinstance(val, dict) and isinstance(data.get("validation"), dict):
            put(("val_batch_size",), _HELD_OUT_PROMPTS)
    if isinstance(train, dict) and not has_prompts:
        put(("rollout_batch_size",), train["num_env_groups"] * _size(train))
    if isinstance(val, dict):
        put(("val_batch_size",), val["num_env_groups"] * _size(val))


def _size(manager: Mapping[str, Any]) -> int:
    size = manager.get("group_size", 1)
    return size if isinstance(size, int) else 1


def _drop(data: dict[str, Any], path: KeyPath, is_override: Callable[[KeyPath], bool]) -> None:
    section: Any = value_at(data, path[:-1])
    if not isinstance(section, dict) or path[-1] not in section or is_override(path):
        return
    given = section.pop(path[-1])
    kept = (
        {key: value for key, value in given.items() if is_override((*path, key))}
        if isinstance(given, dict)
        else {}
    )
    if kept:
        section[path[-1]] = kept
