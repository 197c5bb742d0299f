"""Gym-style environments and asynchronous agentic rollouts for training LLM agents.

What stands in `__all__` is public; docs/python-api.md names the other public modules. Names that need more
than the environments do are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envsdk.base.processes.as_sync import as_sync
from envsdk.base.registry import list_specs, make, register, register_with_gymnasium, spec
from envsdk.base.settings.public import public_names
from envsdk.contracts.env import AsyncTextEnv, EnvSpec, Isolation, TextEnv
from envsdk.contracts.failures import Boundary, ConfigurationError, EnvsdkError, Failure
from envsdk.contracts.turn_env import InvalidAction, TurnEnv, TurnResult

if TYPE_CHECKING:
    from envsdk.contracts.policy import Policy, Reply, TurnContext
    from envsdk.contracts.trajectory import (
        FinishReason,
        Outcome,
        Task,
        TokenArrays,
        TokenLog,
        Trajectory,
        Turn,
        VersionSpan,
    )
    from envsdk.rollouts.play.local_engine import LocalEngine
    from envsdk.rollouts.play.rollout import rollout, rollout_sync
    from envsdk.rollouts.results.trajectories import Batch, Trajectories
    from envsdk.runs.rollouts import AsyncRollouts, Rollouts

__version__ = "0.1.0"

_LAZY = {
    "AsyncRollouts": "envsdk.runs.rollouts",
    "Batch": "envsdk.rollouts.results.trajectories",
    "FinishReason": "envsdk.contracts.trajectory",
    "LocalEngine": "envsdk.rollouts.play.local_engine",
    "Outcome": "envsdk.contracts.trajectory",
    "Policy": "envsdk.contracts.policy",
    "Reply": "envsdk.contracts.policy",
    "Rollouts": "envsdk.runs.rollouts",
    "Task": "envsdk.contracts.trajectory",
    "TokenArrays": "envsdk.contracts.trajectory",
    "TokenLog": "envsdk.contracts.trajectory",
    "Trajectories": "envsdk.rollouts.results.trajectories",
    "Trajectory": "envsdk.contracts.trajectory",
    "Turn": "envsdk.contracts.trajectory",
    "TurnContext": "envsdk.contracts.policy",
    "VersionSpan": "envsdk.contracts.trajectory",
    "rollout": "envsdk.rollouts.play.rollout",
    "rollout_sync": "envsdk.rollouts.play.rollout",
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
