"""The tiny policy that `pretrain: embedded_default` names, and supervised learning of replies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from envsdk.base.settings.extras import require

if TYPE_CHECKING:
    from envsdk.config import RunConfig


def make_tiny_policy(config: RunConfig) -> Path:
    """`prepare.prepare_policy`; ConfigurationError when a package that it needs is missing."""
    require("making the tiny policy", "torch", "transformers", "safetensors")
    from envsdk.trainers.warm_start.prepare import prepare_policy

    return prepare_policy(config)
