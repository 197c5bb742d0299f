"""Sandboxes: one contract (`contract`), chosen by name (`open_backend`)."""

from envsdk.rewards.sandbox.contract import (
    ExecEnd,
    ExecResult,
    Image,
    Limits,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxFileError,
    SandboxUnavailable,
    Snapshot,
)
from envsdk.rewards.sandbox.registry import open_backend

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
    "Snapshot",
    "open_backend",
]
