"""Gym-style environments and asynchronous agentic rollouts for training LLM agents."""

from envsdk.env import AsyncTextEnv, EnvSpec, Isolation, TextEnv
from envsdk.failures import Boundary, ConfigurationError, EnvsdkError, Failure
from envsdk.processes.as_sync import as_sync
from envsdk.registry import list_specs, make, register, register_with_gymnasium, spec

__version__ = "0.1.0"

__all__ = [
    "AsyncTextEnv",
    "Boundary",
    "ConfigurationError",
    "EnvSpec",
    "EnvsdkError",
    "Failure",
    "Isolation",
    "TextEnv",
    "__version__",
    "as_sync",
    "list_specs",
    "make",
    "register",
    "spec",
]

register_with_gymnasium()
