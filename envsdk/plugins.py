"""Finds plug-ins by entry point or by dotted name."""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from envsdk.failures import ConfigurationError


@cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}


def plugin_names(group: str) -> list[str]:
    """Names registered under an entry-point group, sorted."""
    return sorted(_entry_points(group))


def load_plugin(group: str, name: str) -> Any:
    """The object behind an entry point, or behind `package.module:attribute`.

    Raises ConfigurationError: naming the nearest known name, or what is missing to import it.
    """
    entry = _entry_points(group).get(name)
    if entry is not None:
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"{name!r} cannot be loaded for {group}: {error}") from error
    module_name, colon, attribute = name.partition(":")
    if colon:
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"{name!r} cannot be loaded for {group}: {error}") from error
    known = plugin_names(group)
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"
    raise ConfigurationError(f"{name!r} is not registered under {group}; {hint}")
