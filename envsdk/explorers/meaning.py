"""What one program of a job takes token ids and tags to be, as far as its groups say it to others.

Paths, worker counts, engines and deadlines may differ from machine to machine: of a path only what lies there
counts, of prompt data only the rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envsdk.base.store.travel import PathContents, paths_in
from envsdk.buffer.contract import Meaning
from envsdk.config.models import RunConfig
from envsdk.config.plugins import environment_spec
from envsdk.config.rlvr import PROMPTS_ENV, source_of
from envsdk.contracts.chat import digests
from envsdk.rewards.loading import WORKER_KEYS
from envsdk.rewards.prompt_data.opening import open_prompts
from envsdk.rewards.prompt_data.prompts import PromptSource

_OF_THE_MACHINE = frozenset(
    {"env_config", "isolation", "start_timeout_s", "reset_timeout_s", "step_timeout_s", "env_manager_cls"}
)
"""Keys of a tag that decide where and how fast it plays, or that are looked at one by one."""
_LONGEST = 60
"""Letters of a value that is shown as it is."""


def meaning_of(config: RunConfig, model: Path | None, *, tags: Sequence[str] = ()) -> Meaning:
    """What this program means by the ids of `model` and by these tags.

    `model` is None where it is not made yet. Reads files. ConfigurationError when one is not there.
    """
    return Meaning(
        tokens={} if model is None else digests(model),
        model=str(model),
        tags={tag: dict(_tag(config, tag)) for tag in tags},
        may_differ=config.explorer.may_differ if config.mode == "explore" else (),
    )


def _tag(config: RunConfig, tag: str) -> Iterator[tuple[str, str]]:
    """The keys that decide its episodes, with what they say."""
    env, own = config.custom_envs[tag], dict(config.custom_envs[tag].env_config)
    settings: dict[str, Any] = {
        **env.model_dump(mode="json", exclude=set(_OF_THE_MACHINE), exclude_defaults=True),
        "max_tokens_per_step": config.max_response_tokens(tag),
        "env_manager_cls": env.env_manager_cls or config.train_env_manager.env_manager_cls,
        "sequence_length": config.sequence_length,
        "generating_args": config.actor_infer.generating_args.model_dump(exclude={"max_new_tokens"}),
    }
    if env.env_type == PROMPTS_ENV:
        prompts, reward = open_prompts(source_of(own)), own.get("reward")
        settings["rows"] = f"{len(prompts):,} rows ({prompts.digest()})"
        of_rows = PromptSource.model_fields.keys() - {"columns"}
        own = {name: value for name, value in own.items() if name not in of_rows}
        section = reward if isinstance(reward, Mapping) else {"worker_cls": reward}
        own["reward"] = {name: value for name, value in section.items() if name not in WORKER_KEYS}
    local = environment_spec(env.env_type).local_arguments
    settings["env_config"] = {name: value for name, value in own.items() if name not in local}
    for name, value in _leaves(settings):
        yield name, _shown(_without_places(value))


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _without_places(value: Any) -> Any:
    """With a digest in place of each path that leads to files, and servers without their addresses."""
    if isinstance(value, list | tuple):
        return [_without_places(each) for each in value]
    if not isinstance(value, str):
        return value
    if "://" in value and "\n" not in value:
        return "a server"
    path = Path(value).expanduser()
    if not list(paths_in(value)) or not path.exists():
        return value
    if path.is_file() and (contents := PathContents.of(path)):
        return f"a file ({contents.digest[:16]})"
    found = sorted((str(each.relative_to(path)), each.stat().st_size) for each in path.rglob("*"))
    return f"a folder ({hashlib.sha256(repr(found).encode()).hexdigest()[:16]})"


def _shown(value: Any) -> str:
    is_text = isinstance(value, str)
    text = value if is_text else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    if len(text) <= _LONGEST and "\n" not in text:
        return text
    return f"{text[: _LONGEST // 2]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"
