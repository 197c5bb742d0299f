"""Gym-style environments and asynchronous agentic rollouts for training LLM agents."""

from envsdk.env import EnvSpec, Isolation, TextEnv
from envsdk.failures import Boundary, ConfigurationError, EnvsdkError, Failure

__version__ = "0.1.0"

__all__ = [
    "Boundary",
    "ConfigurationError",
    "EnvSpec",
    "EnvsdkError",
    "Failure",
    "Isolation",
    "TextEnv",
    "__version__",
]
