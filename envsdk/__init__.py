"""Gym-style environments and asynchronous agentic rollouts for training LLM agents.

What stands in `__init__.pyi` is public; docs/python-api.md names the other public modules.
"""

from __future__ import annotations

from envsdk.base.registry import register_with_gymnasium
from envsdk.base.settings.public import names_in_stub, public_names

__version__ = "0.1.0"

_NAMES = names_in_stub(__file__)
_MODULES = ("algorithms", "collect", "evaluate", "rewards", "testing", "tracking", "trainers")
"""Public modules besides this one."""

__all__ = sorted([*_NAMES, "__version__"])
__getattr__, __dir__ = public_names(__name__, _NAMES, modules=_MODULES)

register_with_gymnasium()
