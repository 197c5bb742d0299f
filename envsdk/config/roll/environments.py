"""ROLL's keys of environments (`custom_envs`) as values of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from envsdk.config.foreign.row import Place

GRIDS = {
    "sokoban": "envsdk/Sokoban-v1",
    "sokoban_sandbox": "envsdk/Sokoban-v1",
    "sokoban_native_env": "envsdk/Sokoban-v1",
    "frozen_lake": "envsdk/FrozenLake-v1",
}
SOKOBANS = tuple(name for name in GRIDS if name != "frozen_lake")
DATA_SETS = {"roll_math": "math", "roll_qa": "exact", "roll_code": "code"}
"""Environments of ROLL's that ask the rows of a data set -> the reward of the answers."""
_GEM = re.compile(r"(game|math|code|qa|logic|rg|eval):.+")
_SWE = "rock_tb_native_env"
_CONFIG = "custom_envs.*.env_config"

_SYMBOLS = {
    "sokoban": ("wall", "floor", "target", "box_on_target", "box", "player", "player_on_target"),
    "frozen_lake": ("player", "frozen", "hole", "goal", "fallen", "arrived"),
}
"""The cells of `grid_lookup`, in the order of their numbers."""
_PLACEHOLDERS = {
    "current_observation": "{observation}",
    "current_step": "{turn_idx}",
    "step_count": "{turn_idx}",
    "history": "",
    "history_length": "all",
    "env_instruction": "",
    "suffix": "",
}
"""Placeholders of ROLL's templates that ours lack. Earlier turns are in the chat itself."""
_KINDS = {"SOKOBANS": SOKOBANS, "GRIDS": tuple(GRIDS), "DATA_SETS": tuple(DATA_SETS)}


def plays(value: Any, place: Place, *types: str) -> bool:
    """Whether the tag plays one of these environments, or one of these kinds of them."""
    return place.section(2).get("env_type") in [each for name in types for each in _KINDS.get(name, (name,))]


def is_gem_argument(value: Any, place: Place) -> bool:
    is_gem = _GEM.fullmatch(str(place.section(2).get("env_type"))) is not None
    return is_gem and place.path[-1] not in ("id", "kwargs")


def env_type(value: Any, place: Place) -> Mapping[str, Any]:
    given = place.section(2).get("env_config") or {}
    if value in SOKOBANS:
        usual = {"dim": [10, 10], "num_boxes": 4, "max_steps": 32}
        names = {"dim": "dim_room"}
        absent = {
            f"{_CONFIG}.{name}": each for name, each in usual.items() if names.get(name, name) not in given
        }
        rewards = {"step_penalty": 0.1, "box_on_target_reward": 1.0, "success_reward": 10.0}
        absent |= {f"{_CONFIG}.{name}": each for name, each in rewards.items() if name not in given}
        return {"custom_envs.*.env_type": GRIDS[value], **absent}
    if value == "frozen_lake":
        slippery = {} if "is_slippery" in given else {f"{_CONFIG}.is_slippery": True}
        return {"custom_envs.*.env_type": GRIDS[value], **slippery}
    if value == "webshop":
        return {"custom_envs.*.env_type": "envsdk/WebShop-v1"}
    if value == _SWE:
        return {"custom_envs.*.env_type": "envsdk/SWE-v1"}
    if value in DATA_SETS:
        return {"custom_envs.*.env_type": "envsdk/Prompts-v1", f"{_CONFIG}.reward": DATA_SETS[value]}
    return {"custom_envs.*.env_type": "envsdk/Gem-v1", f"{_CONFIG}.id": value}


def is_known_type(value: Any, place: Place) -> bool:
    own = {*GRIDS, "webshop", _SWE, *DATA_SETS}
    return isinstance(value, str) and (value in own or _GEM.fullmatch(value) is not None)


def dim(value: Any, place: Place) -> Mapping[str, Any]:
    return {f"{_CONFIG}.dim": list(value)}


def penalty(value: Any, place: Place) -> Mapping[str, Any]:
    is_negative = isinstance(value, int | float) and value <= 0
    return {f"{_CONFIG}.invalid_penalty": -value if is_negative else value}


def split(value: Any, place: Place) -> Mapping[str, Any]:
    return {f"{_CONFIG}.split": "held_out" if value == "val" else "train"}


def files(value: Any, place: Place) -> Mapping[str, Any]:
    return {f"{_CONFIG}.files": [value]}


def sokoban_steps(value: Any, place: Place) -> Mapping[str, Any]:
    boxes = place.beside("num_boxes", default=4)
    fewest = 8 * boxes if isinstance(boxes, int) else 8
    return {f"{_CONFIG}.max_steps": max(value, fewest) if isinstance(value, int) else value}


def pattern(value: Any, place: Place) -> Mapping[str, Any]:
    plain = re.sub(r"\\s[*+]", "", str(value))
    if plain == "<answer>(.*?)</answer>":
        return {}
    if plain == "<think>(.*?)</think><answer>(.*?)</answer>":
        return {f"{_CONFIG}.require_think": True}
    raise ValueError(
        "only `<answer>(.*?)</answer>` and the same after `<think>(.*?)</think>` are read; use one of them"
    )


def web_pattern(value: Any, place: Place) -> Mapping[str, Any]:
    if value != "<answer>(.*?)</answer>":
        raise ValueError("only `<answer>(.*?)</answer>` is read; leave it out, and see action_format")
    return {f"{_CONFIG}.action_format": "answer"}


def symbols(value: Any, place: Place) -> Mapping[str, Any]:
    kind = "frozen_lake" if place.section(2).get("env_type") == "frozen_lake" else "sokoban"
    if not isinstance(value, Mapping) or not {int(each) for each in value} <= set(range(len(_SYMBOLS[kind]))):
        raise ValueError(f"takes a mapping from 0 to {len(_SYMBOLS[kind]) - 1} to symbols")
    return {f"{_CONFIG}.symbols": {_SYMBOLS[kind][int(each)]: text for each, text in value.items()}}


def template(value: Any, place: Place) -> Mapping[str, Any]:
    """ROLL fills templates in with `str.format`, where `{{` is a brace."""
    text = re.sub(
        r"\{(\w+)\}",
        lambda m: _PLACEHOLDERS.get(m[1], m[0]),
        str(value).replace("{{", "\0").replace("}}", "\1"),
    )
    text = text.replace("\0", "{").replace("\1", "}")
    return {"custom_envs.*.agent_template": text} if "{observation}" in text else {}


def is_foreign_template(value: Any, place: Place) -> bool:
    own_names = {"observation", "turn_idx", "actions_left", "max_response_length"}
    return (
        isinstance(value, str)
        and place.is_theirs
        and (
            "{{" in value
            or "{observation}" not in value
            or bool(set(re.findall(r"\{(\w+)\}", value)) - own_names)
        )
    )


def is_unplayed(value: Any, place: Place) -> bool:
    managers = [place.get(name, "tags") for name in ("train_env_manager", "val_env_manager")]
    return any(isinstance(tags, list) for tags in managers) and not any(
        place.path[-1] in tags for tags in managers if isinstance(tags, list)
    )
