"""Episodes in memory as a data set on disk, like one of `envsdk collect`: what `Trajectories.save` writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from envsdk import __version__
from envsdk.base.store.atomic import new_folder
from envsdk.base.store.shard_plan import ShardPlan
from envsdk.base.store.shards import Manifest, utc_now
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.prompts import TagPrompts
from envsdk.contracts.trajectory import Trajectory

_SHARD_SIZE = 500


def save_episodes(episodes: Sequence[Trajectory], folder: Path, *, policy: str) -> None:
    """Write `episodes` in their order. ConfigurationError, StorageError: see `Trajectories.save`."""
    if not episodes:
        raise ConfigurationError("save: there are no episodes")
    shards = list(_shards(episodes))
    split = _named(each.task.split for each in episodes)
    config = {
        "episodes": dict(Counter(each.task.tag for each in episodes)),
        "split": split,
        "shard_size": _SHARD_SIZE,
        "policy": policy,
        "model": None,
        "tags": {tag: _record(tag, shown) for tag, shown in _shown_by_tag(episodes).items()},
    }
    manifest = Manifest(
        config=config,
        versions={"envsdk": __version__},
        command=[],
        num_planned=len(shards),
        created_at=utc_now(),
    )
    with new_folder(folder) as made:
        for number, shard in enumerate(shards):
            plan = ShardPlan(
                number=number,
                tag=_named(each.task.tag for each in shard),
                split=split,
                first_index=shard[0].task.index,
                num_episodes=len(shard),
                first_position=sum(map(len, shards[:number])),
            )
            manifest.add_shard(made, plan, shard, None)


def _shards(episodes: Sequence[Trajectory]) -> Iterator[Sequence[Trajectory]]:
    """In their order; of one tag each, unless tags alternate."""
    tags = [each.task.tag for each in episodes]
    starts = [0, *(number for number in range(1, len(tags)) if tags[number] != tags[number - 1]), len(tags)]
    if len(starts) > len(set(tags)) + 1:
        starts = [0, len(tags)]
    for start, end in pairwise(starts):
        for first in range(start, end, _SHARD_SIZE):
            yield episodes[first : min(first + _SHARD_SIZE, end)]


def _named(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _shown_by_tag(episodes: Sequence[Trajectory]) -> Mapping[str, TagPrompts]:
    found: dict[str, TagPrompts] = {}
    for each in episodes:
        if each.shown is None:
            each.to_messages()  # raises: says where prompts come from
        elif found.setdefault(each.task.tag, each.shown) != each.shown:
            raise ConfigurationError(
                f"save: episodes of {each.task.tag!r} were played with different prompts, and a data set has "
                "one for each tag: save them apart"
            )
    return found


def _record(tag: str, shown: TagPrompts) -> dict[str, Any]:
    """The tag's entry in the manifest, as `TagRecord.from_json` reads it."""
    return {
        "env_type": shown.env_type or tag,
        "env_config": json.loads(json.dumps(dict(shown.env_config), default=repr)),
        "max_steps": shown.max_turns,
        "max_new_tokens": shown.max_new_tokens,
        "agent_system_template": shown.prompts.system,
        "agent_template": shown.prompts.template,
        **({"context_window": shown.window} if shown.window else {}),
    }
