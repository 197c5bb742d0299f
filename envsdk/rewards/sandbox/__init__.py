"""Sandboxes: one contract (`contract`), chosen by name (`open_backend`)."""

from collections.abc import Mapping
from typing import Any, cast

from envsdk.base.plugins import load_plugin
from envsdk.rewards.sandbox.contract import (
    ExecEnd,
    ExecResult,
    Image,
    Limits,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxesFull,
    SandboxFileError,
    SandboxUnavailable,
    Snapshot,
)

__all__ = [
    "ExecEnd",
    "ExecResult",
    "Image",
    "Limits",
    "Sandbox",
    "SandboxBackend",
    "SandboxError",
    "SandboxFileError",
    "SandboxUnavailable",
    "SandboxesFull",
    "Snapshot",
    "open_backend",
]


GROUP = "envsdk.sandboxes"


def open_backend(name: str, settings: Mapping[str, Any] | None = None) -> SandboxBackend:
    """The backend `name`, or one by its dotted name; nothing is started until it is used.

    Raises ConfigurationError: the name, or a key of `settings`, is unknown.
    """
    return cast(SandboxBackend, load_plugin(GROUP, name)(settings or {}))
