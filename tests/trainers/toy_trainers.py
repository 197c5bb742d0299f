"""A trainer without a model, whose ranks do as they are told; for what a group of ranks must bear.

Each rank is a process that imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.failures import StorageError
from envsdk.contracts.trainer import TrainBatch, Trainer, TrainerConfig

NAME = "tests.trainers.toy_trainers:ToyTrainer"
WEIGHING = "tests.trainers.toy_trainers:WeighingTrainer"


class ToyTrainer(Trainer):
    """`strategy_config: {0: DEED, 1: DEED}`: what each rank does in `train_step`; no entry: it answers."""

    def __init__(self, config: TrainerConfig) -> None:
        self.rank = config.rank
        self.deed = config.strategy_config.get(str(self.rank.rank))

    @classmethod
    def create(cls, config: TrainerConfig) -> ToyTrainer:
        return cls(config)

    def train_step(self, batch: TrainBatch) -> dict[str, float]:
        match self.deed:
            case "hang":
                threading.Event().wait()
            case "raise":
                raise ValueError("a mistake in the trainer")
            case "refuse":
                raise StorageError("the disk is full")
            case "lose a peer":
                raise RuntimeError("Connection closed by peer")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "die late":
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return {"rank": self.rank.rank, "pid": os.getpid(), "batch": batch.step, f"sees {seen}": 1.0}

    def logprobs(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        return [np.full(len(ids), self.rank.rank, np.float32) for ids in sequences]

    def values(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        return self.logprobs(sequences)

    def weights(self) -> Iterable[tuple[str, NDArray[Any]]]:
        yield "weight", np.full(3, self.rank.rank)

    def save(self, folder: Path) -> None:
        (folder / f"rank_{self.rank.rank}").write_text(f"{self.rank.world_size}")

    def load(self, folder: Path) -> None:
        assert (folder / f"rank_{self.rank.rank}").read_text() == f"{self.rank.world_size}"

    def save_pretrained(self, folder: Path) -> None:
        self.save(folder)


def weights_at(step: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Some buckets' worth: small tensors, one larger than a bucket, a scalar and an empty one."""
    rng = np.random.default_rng(step)
    for index in range(30):
        yield f"layer.{index}", rng.standard_normal((50, index + 1)).astype(np.float32)
    yield "large", rng.standard_normal(60_000).astype(np.float32)
    yield "scalar", np.array(step, np.float32)
    yield "empty", np.zeros((0, 3), np.float16)
    yield "last", rng.integers(0, 9, 5)


class WeighingTrainer(ToyTrainer):
    """Its weights follow from the steps it took. `die` as `weights`: rank 0 dies while it sends."""

    num_steps = 0

    def train_step(self, batch: TrainBatch) -> dict[str, float]:
        self.num_steps += 1
        return {}

    def weights(self) -> Iterable[tuple[str, NDArray[Any]]]:
        for index, weight in enumerate(weights_at(self.num_steps)):
            if index == 30 and self.deed == "die" and self.num_steps == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield weight
