"""Shell: one trainer in a Ray actor, so that training and generation overlap."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from envsdk.plugins import load_plugin
from envsdk.training import TrainBatch, Trainer, TrainerConfig


class TrainerHost:
    """Body of the actor: calls run one after another, `start` first."""

    _trainer: Trainer

    def __init__(self, strategy_name: str, config: TrainerConfig) -> None:
        self._strategy_name = strategy_name
        self._config = config

    def start(self) -> None:
        """Load the model. Not in the constructor, whose errors Ray turns into text."""
        trainer_class: type[Trainer] = load_plugin("envsdk.trainers", self._strategy_name)
        self._trainer = trainer_class.create(self._config)

    def train_step(self, batch: TrainBatch) -> tuple[dict[str, float], float]:
        """Metrics of the step and the seconds it took."""
        before = time.perf_counter()
        metrics = self._trainer.train_step(batch)
        return metrics, time.perf_counter() - before

    def logprobs(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        return self._trainer.logprobs(sequences)

    def values(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        return self._trainer.values(sequences)

    def weights(self) -> list[Any]:
        """A reference to the current weights in the object store, which every engine reads in place."""
        weights: Mapping[str, NDArray[Any]] = dict(self._trainer.weights())
        return [ray.put(weights)]

    def save(self, folder: Path) -> None:
        """The trainer's state in `folder/trainer` and a Hugging Face model in `folder/model`."""
        for name in ("trainer", "model"):
            (folder / name).mkdir()
        self._trainer.save(folder / "trainer")
        self._trainer.save_pretrained(folder / "model")

    def load(self, folder: Path) -> None:
        self._trainer.load(folder / "trainer")

    def close(self) -> None:
        self._trainer.close()
