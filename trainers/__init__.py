"""Trainers: the contract of one, and those that ship.

A trainer takes batches of token sequences with advantages and gives weights under Hugging Face names. It
plugs in under the entry-point group `envsdk.trainers`.
"""

from __future__ import annotations

from envsdk.base.settings.public import names_in_stub, public_names

_NAMES = names_in_stub(__file__)
__all__ = sorted(_NAMES)
__getattr__, __dir__ = public_names(__name__, _NAMES)
