"""Tags that files may name without defining them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

TAGS_FILE = "envsdk/config/tags.yaml"


@cache
def shipped_tags() -> Mapping[str, Mapping[str, Any]]:
    """The tags of `tags.yaml`, as a file would write them."""
    text = files("envsdk.config").joinpath("tags.yaml").read_text(encoding="utf-8")
    tags: dict[str, Mapping[str, Any]] = yaml.safe_load(text)
    return tags


def missing_tags(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Shipped tags that a manager names and the file does not define."""
    named = [
        tag
        for manager in ("train_env_manager", "val_env_manager")
        if isinstance(data.get(manager), Mapping) and isinstance(data[manager].get("tags"), list)
        for tag in data[manager]["tags"]
        if isinstance(tag, str)
    ]
    defined = [data[key] for key in ("custom_envs", "rewards") if isinstance(data.get(key), Mapping)]
    return {
        tag: shipped_tags()[tag]
        for tag in dict.fromkeys(named)
        if tag in shipped_tags() and not any(tag in section for section in defined)
    }
