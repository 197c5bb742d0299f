"""What is said when the package behind an adapter is not installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from envsdk.contracts.failures import ConfigurationError


def import_extra(module: str, *, extra: str, shown_as: str | None = None) -> Any:
    """The module; ConfigurationError names the extra to install when it or what it needs is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise ConfigurationError(
            f"{shown_as or module} is not installed (no module {missing}): pip install 'envsdk[{extra}]'"
        ) from error
