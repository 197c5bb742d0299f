from __future__ import annotations

from tests.agents.programs import repository

__all__ = ["repository"]
