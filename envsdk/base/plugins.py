"""Finds plug-ins by entry point or by dotted name."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from envsdk.base.settings.extras import missing_package
from envsdk.base.settings.nearest import suggest
from envsdk.contracts.failures import ConfigurationError


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
    if entry is None and ":" not in name:
        hint = suggest(name, plugin_names(group), known="known")
        raise ConfigurationError(f"`{name}` is not registered under {group}; {hint}")
    if entry is None:
        find_modules_here()
    try:
        return load_object(name if entry is None else entry.value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name!r} cannot be loaded for {group}: {error}") from error


def load_object(dotted_name: str) -> Any:
    """The object that `package.module:attribute` names; ConfigurationError says why it cannot be loaded."""
    module, _, attribute = dotted_name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, ImportError) and not f"{module}.".startswith(f"{error.name}."):
            # The module exists and misses something itself, such as a package that is not installed.
            missing = missing_package(error) if isinstance(error, ModuleNotFoundError) else None
            raise ConfigurationError(missing or str(error)) from error
        raise ConfigurationError(
            f"{dotted_name!r} cannot be loaded (package.module:attribute is expected): {error}"
        ) from error


def find_modules_here() -> None:
    """Import from the working directory, as `python -m` does and an installed command does not."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
