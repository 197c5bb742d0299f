"""Where a trainer's weights go when other programs are to have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class WeightOutlet(Protocol):
    """Travels to the process of the trainer's first rank and takes the weights there."""

    def take(self, weights: Iterable[tuple[str, Any]]) -> Mapping[str, Any]:
        """Go through all of them; returns where they are now. StorageError for what may work later."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutletReport:
    """What became of the weights."""

    location: Mapping[str, Any] | None
    """As `take` returned it; None when it failed."""
    problem: str = ""
    """Why it failed, for the user."""
