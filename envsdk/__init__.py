"""Gym-style environments and asynchronous agentic rollouts for training LLM agents.

What stands in `__all__` is public; docs/python-api.md names the other public modules. Names that need more
than the environments do are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envsdk.env import AsyncTextEnv, EnvSpec, Isolation, TextEnv
from envsdk.failures import Boundary, ConfigurationError, EnvsdkError, Failure
from envsdk.processes.as_sync import as_sync
from envsdk.registry import list_specs, make, register, register_with_gymnasium, spec
from envsdk.settings.public import public_names
from envsdk.turn_env import InvalidAction, TurnEnv, TurnResult

if TYPE_CHECKING:
    from envsdk.pipeline.rollouts import AsyncRollouts, Rollouts
    from envsdk.play.local_engine import LocalEngine
    from envsdk.play.rollout import rollout, rollout_sync
    from envsdk.policy import Policy, Reply, TurnContext
    from envsdk.results.trajectories import Batch, Trajectories
    from envsdk.trajectory import (
        FinishReason,
        Outcome,
        Task,
        TokenArrays,
        TokenLog,
        Trajectory,
        Turn,
        VersionSpan,
    )

__version__ = "0.1.0"

_LAZY = {
    "AsyncRollouts": "envsdk.pipeline.rollouts",
    "Batch": "envsdk.results.trajectories",
    "FinishReason": "envsdk.trajectory",
    "LocalEngine": "envsdk.play.local_engine",
    "Outcome": "envsdk.trajectory",
    "Policy": "envsdk.policy",
    "Reply": "envsdk.policy",
    "Rollouts": "envsdk.pipeline.rollouts",
    "Task": "envsdk.trajectory",
    "TokenArrays": "envsdk.trajectory",
    "TokenLog": "envsdk.trajectory",
    "Trajectories": "envsdk.results.trajectories",
    "Trajectory": "envsdk.trajectory",
    "Turn": "envsdk.trajectory",
    "TurnContext": "envsdk.policy",
    "VersionSpan": "envsdk.trajectory",
    "rollout": "envsdk.play.rollout",
    "rollout_sync": "envsdk.play.rollout",
}
"""The module of each public name that is imported at its first use."""

__all__ = [
    "AsyncRollouts",
    "AsyncTextEnv",
    "Batch",
    "Boundary",
    "ConfigurationError",
    "EnvSpec",
    "EnvsdkError",
    "Failure",
    "FinishReason",
    "InvalidAction",
    "Isolation",
    "LocalEngine",
    "Outcome",
    "Policy",
    "Reply",
    "Rollouts",
    "Task",
    "TextEnv",
    "TokenArrays",
    "TokenLog",
    "Trajectories",
    "Trajectory",
    "Turn",
    "TurnContext",
    "TurnEnv",
    "TurnResult",
    "VersionSpan",
    "__version__",
    "as_sync",
    "list_specs",
    "make",
    "register",
    "rollout",
    "rollout_sync",
    "spec",
]

_MODULES = ("algorithms", "collect", "evaluate", "rewards", "testing", "tracking", "trainers")
"""Public modules besides this one."""

__getattr__, __dir__ = public_names(__name__, _LAZY, modules=_MODULES)

register_with_gymnasium()
