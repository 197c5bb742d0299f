"""Rewards of responses to prompts: the contract of one, and how one is made by name (docs/rewards.md)."""

from __future__ import annotations

from envsdk.base.settings.public import names_in_stub, public_names

_NAMES = names_in_stub(__file__)
__all__ = sorted(_NAMES)
__getattr__, __dir__ = public_names(__name__, _NAMES)
