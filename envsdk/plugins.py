"""Finds plug-ins by entry point or by dotted name, and says which packages are missing."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from envsdk.failures import ConfigurationError
from envsdk.settings.nearest import suggest

EXTRA_OF = {
    "httpx2": "openai",
    "hypothesis": "testing",
    "jsonschema": "tools",
    "llguidance": "train",
    "mcp": "mcp",
    "megatron": "megatron",
    "peft": "lora",
    "psutil": "train",
    "pytest": "testing",
    "ray": "train",
    "safetensors": "train",
    "starlette": "view",
    "tensorboard": "train",
    "torch": "train",
    "transformers": "train",
    "uvicorn": "view",
    "vllm": "vllm",
    "websockets": "openenv",
}
"""By importable module: the extra of `pip install` with everything that a command importing it needs."""


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
            raise ConfigurationError(str(error)) from error
        raise ConfigurationError(
            f"{dotted_name!r} cannot be loaded (package.module:attribute is expected): {error}"
        ) from error


def missing_package(error: ModuleNotFoundError) -> str | None:
    """What to install where `error` names a package of an extra; None when it names anything else."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(module)
    return None if extra is None else f"{module} is not installed: pip install 'envsdk[{extra}]'"


def require(purpose: str, *modules: str) -> None:
    """ConfigurationError when one of these modules of extras is not installed; nothing is imported."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        extras = ",".join(sorted({EXTRA_OF[module] for module in missing}))
        raise ConfigurationError(
            f"{purpose} needs {', '.join(missing)}, not installed here: pip install 'envsdk[{extras}]'"
        )
