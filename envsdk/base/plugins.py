"""Finds plug-ins by entry point or by dotted name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from traceback import extract_tb
from typing import Any

from envsdk.base.settings.extras import missing_package
from envsdk.base.settings.nearest import did_you_mean, suggest
from envsdk.contracts.failures import ConfigurationError, EnvsdkError, describe_error


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
        return load_object(name, where=f"{group}: ")
    return load_object(entry.value, where=f"{group}: {name}: ")


def load_object(dotted_name: str, *, where: str = "") -> Any:
    """The object that `package.module:attribute` names; ConfigurationError says why it cannot be loaded.

    `where` begins the message. An ImportError that a module raises itself is quoted as it is.
    """
    module, _, attribute = dotted_name.partition(":")
    name = f"{where}{dotted_name!r} cannot be loaded: "
    if not module or not attribute:
        raise ConfigurationError(f"{name}write package.module:attribute")
    try:
        return getattr(import_module(module), attribute)
    except EnvsdkError as error:
        raise ConfigurationError(f"{where}{error}") from error
    except (Exception, SystemExit) as error:  # boundary: a plug-in's module
        missing = missing_package(error) if isinstance(error, ModuleNotFoundError) else None
        if missing or (isinstance(error, ImportError) and error.name is None):
            raise ConfigurationError(f"{where}{missing or error}") from error
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"{name}{error}") from error
        if isinstance(error, AttributeError) and (loaded := sys.modules.get(module)):
            hint = did_you_mean(attribute, vars(loaded))
            raise ConfigurationError(f"{name}{module} has no `{attribute}`.{hint}") from error
        raise ConfigurationError(f"{name}{_raised(error)}") from error


def load_function(dotted_name: str, *, where: str = "") -> Callable[..., Any]:
    """As `load_object`, of what can be called."""
    loaded = load_object(dotted_name, where=where)
    if not callable(loaded):
        raise ConfigurationError(f"{where}{dotted_name!r} is not callable")
    return loaded  # type: ignore[no-any-return]


def _raised(error: BaseException) -> str:
    """`AssertionError: no reward (sorting.py:12)`: what a module raised while it was imported, and where."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    importing = ("importlib/__init__.py", "importlib._bootstrap>", "importlib._bootstrap_external>")
    frames = [each for each in extract_tb(error.__traceback__)[1:] if not each.filename.endswith(importing)]
    if not frames:
        return describe_error(error)
    # The module's own line says more than that of a library which it calls.
    own = os.path.dirname(frames[0].filename)
    place = [each for each in frames if each.filename.startswith(own)][-1]
    described = describe_error(error) if str(error) else f"{type(error).__name__} in `{place.line}`"
    return f"{described} ({place.filename}:{place.lineno})"


def find_modules_here() -> None:
    """Import from the working directory, as `python -m` does and an installed command does not."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
