"""ROLL's keys of environments (`custom_envs`) as values of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from envsdk.config.foreign.row import Place, read_data

_TABLE = read_data("envsdk.config.roll", "environments.toml")
_TYPES: Mapping[str, str] = _TABLE["types"]
_SYMBOLS: Mapping[str, list[str]] = _TABLE["symbols"]
_GEM = re.compile(r"(game|math|code|qa|logic|rg|eval):.+")
_CONFIG = "custom_envs.*.env_config"


def plays(value: Any, place: Place, *types: str) -> bool:
    """Whether the tag plays one of these environments of ROLL's."""
    return place.section(2).get("env_type") in types


def becomes(value: Any, place: Place, *ours: str) -> bool:
    """Whether it plays one of ROLL's that becomes one of these."""
    return _TYPES.get(str(place.section(2).get("env_type"))) in ours


def is_gem_argument(value: Any, place: Place) -> bool:
    is_gem = _GEM.fullmatch(str(place.section(2).get("env_type"))) is not None
    return is_gem and place.path[-1] not in ("id", "kwargs")


def env_type(value: Any, place: Place) -> Mapping[str, Any]:
    given = place.section(2).get("env_config") or {}
    if value not in _TYPES:
        return {"custom_envs.*.env_type": "envsdk/Gem-v1", f"{_CONFIG}.id": value}
    usual = _TABLE["usual"].get(_TYPES[value], {})
    ours = {each: "dim_room" if each == "dim" else each for each in usual}
    absent = {f"{_CONFIG}.{name}": usual[name] for name, theirs in ours.items() if theirs not in given}
    if value in _TABLE["rewards"]:
        absent[f"{_CONFIG}.reward"] = _TABLE["rewards"][value]
    return {"custom_envs.*.env_type": _TYPES[value], **absent}


def is_known_type(value: Any, place: Place) -> bool:
    return isinstance(value, str) and (value in _TYPES or _GEM.fullmatch(value) is not None)


def dim(value: Any, place: Place) -> Mapping[str, Any]:
    return {f"{_CONFIG}.dim": list(value)}


def penalty(value: Any, place: Place) -> Mapping[str, Any]:
    is_negative = isinstance(value, int | float) and value <= 0
    return {f"{_CONFIG}.invalid_penalty": -value if is_negative else value}


def split(value: Any, place: Place) -> Mapping[str, Any]:
    return {f"{_CONFIG}.split": "held_out" if value == "val" else "train"}


def file(value: Any, place: Place) -> Mapping[str, Any]:
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
        lambda m: _TABLE["placeholders"].get(m[1], m[0]),
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
