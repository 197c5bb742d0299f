"""Models that have a name, such as `smollm2`: entry points of the group `envsdk.models`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model that `pretrain: NAME` and `--model NAME` stand for. Its module must import fast."""

    title: str
    """Full name, as its authors write it."""
    license: str
    """SPDX identifier of the weights' license."""
    source: str
    """Where the weights come from, with a version."""
    caveat: str = ""
    """How they differ from those that the authors published."""
    recipe: str
    """Changes whenever `make` would write other files: a digest of the weights' file and of the method."""
    make: Callable[[Path], None]
    """Writes a Hugging Face folder into this empty one; whatever else it leaves beside that is removed.

    Called once on each machine. ConfigurationError says what is missing, and how to get it.
    """
