"""Advantages, losses and divergences as pure functions; every trainer uses the same ones.

Public: estimators of advantages, policy losses, group filters, and what plug-ins of each kind build on.
Losses need torch and are imported at their first use; the rest needs NumPy only.
"""

from __future__ import annotations

from envsdk.base.settings.public import names_in_stub, public_names

_NAMES = names_in_stub(__file__)
__all__ = sorted(_NAMES)
__getattr__, __dir__ = public_names(__name__, _NAMES)
