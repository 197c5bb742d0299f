"""Trainers of a tiny random policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envsdk.contracts.trainer import TrainerConfig


@pytest.fixture
def make_config(model_folder: Path) -> Callable[..., TrainerConfig]:
    def make(**changes: object) -> TrainerConfig:
        settings: dict[str, object] = {"model": model_folder, "sequence_length": 256, "seed": 3}
        return TrainerConfig(**{**settings, **changes})

    return make
