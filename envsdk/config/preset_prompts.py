"""Prompts and judges for the tiny policy, where the file's own are not on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from envsdk.base.settings.problems import KeyPath
from envsdk.config.rlvr import DEFAULT_DOMAIN, DEFAULT_REWARD, PROMPTS_ENV, found_files, mapping
from envsdk.rewards.prompt_data.files import is_local
from envsdk.rewards.prompt_data.generated import SCHEME

Put = Callable[[KeyPath, Any], bool]
"""Sets a key; returns whether it did: an override is never replaced."""

_ROWS: Mapping[str, tuple[str, str]] = {
    "choice": ("arithmetic", "comparisons"),
    "code": ("programs", "programs"),
    "exact": ("questions", "questions"),
    "ifeval": ("instructions", "instructions"),
}
"""Reward -> generated rows that it can score, and their tag."""
_OTHER_ROWS = ("arithmetic", "sums")
_COMPARISON = {
    "worker_cls": "exact",
    "ignore": ["case", "space", "punctuation"],
}
"""In place of a judge."""
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
        if put(("rewards", name), {**_COMPARISON, **kept}):
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
    return _ROWS.get(str(reward), _OTHER_ROWS)
