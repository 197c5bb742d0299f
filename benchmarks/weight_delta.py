"""Bytes and seconds of weight updates as differences, against whole ones, for real consecutive steps.

    python benchmarks/weight_delta.py [--json FILE] [--only quickstart|half-billion] [--steps 5]

    quickstart      the tiny policy learns in this process from episodes that it plays, at the run file's rate
    half-billion    a random Qwen3-shaped model of 0.5 billion parameters, AdamW at a rate of 1e-6, as in
                    reinforcement learning of large models; some 12 GB of memory

Each in float32, as trained, and rounded to bfloat16, as engines sample. Every update is decoded and compared
with what was sent, bit for bit; the exit code is 1 when one differs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model_shapes import HALF_BILLION, write_model
from benchmarks.training_load import make_batch
from envsdk.weights.buckets import as_bytes
from envsdk.weights.delta import WeightBase

LEARNING_RATE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model in one precision: medians over updates."""

    model: str
    dtype: str
    whole_mb: float
    delta_mb: float
    changed_share: float
    """Of all elements."""
    encode_s: float
    decode_s: float


class Measured:
    """One precision: both ends of the updates, in this process."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self._sender, self._receiver = WeightBase(), WeightBase()
        self._before: dict[str, Any] = {}
        self.rows: list[tuple[int, int, float, float, float]] = []

    def update(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Send these; the first time they are sent whole."""
        cast = {
            name: tensor.bfloat16() if self.dtype == "bfloat16" else tensor
            for name, tensor in weights.items()
        }
        began = time.perf_counter()
        sent = list(self._sender.encoded(cast.items(), as_delta=bool(self._before)))
        encoded = time.perf_counter()
        arrived = dict(self._receiver.decoded(sent))
        decoded = time.perf_counter()
        num_bytes = num_elements = num_changed = 0
        for name, tensor in cast.items():
            sent = as_bytes(tensor)[0]
            if not np.array_equal(sent, as_bytes(arrived[name])[0]):
                sys.exit(f"{name} arrived with other bits")
            num_bytes += len(sent)
            num_elements += tensor.numel()
            if name in self._before:
                num_changed += int((tensor != self._before[name]).sum())
        if self._before:
            size = sum(len(tensor) for _, tensor in sent)
            self.rows.append(
                (num_bytes, size, num_changed / num_elements, encoded - began, decoded - encoded)
            )
        self._before = {name: tensor.clone() for name, tensor in cast.items()}

    def row(self, model: str) -> Row:
        """The medians."""
        whole, delta, share, encode, decode = (
            statistics.median(column) for column in zip(*self.rows, strict=True)
        )
        return Row(
            model=model,
            dtype=self.dtype,
            whole_mb=whole / 1e6,
            delta_mb=delta / 1e6,
            changed_share=share,
            encode_s=encode,
            decode_s=decode,
        )


def quickstart(steps: int) -> Iterator[dict[str, torch.Tensor]]:
    """Weights before the first and after each step of the quickstart's recipe."""
    import envsdk
    from benchmarks.gpu_parts.learning import recipe
    from envsdk.algorithms.batches import ModelScores, learnable, prepare_batch
    from envsdk.contracts.trainer import TrainerConfig
    from envsdk.trainers.torch_trainer import TorchTrainer
    from envsdk.trainers.warm_start.prepare import prepare_policy

    config = recipe(42, is_small=False)
    folder = prepare_policy(config)
    training = config.actor_train.training_args
    trainer = TorchTrainer.create(
        TrainerConfig(
            model=folder,
            sequence_length=config.sequence_length,
            seed=42,
            algorithm=config.algorithm.model_dump(),
            training_args=training if isinstance(training, dict) else training.model_dump(),
        )
    )
    yield tensors(trainer.weights())
    with envsdk.LocalEngine(folder, sequence_length=config.sequence_length) as engine:
        for step in range(steps):
            tasks = range(step * 8, (step + 1) * 8)
            played = envsdk.rollout_sync(config, policy=engine, tasks=tasks, group_size=8)
            trainer.train_step(
                prepare_batch(config.algorithm, step, learnable(list(played)), ModelScores()).batch
            )
            weights = tensors(trainer.weights())
            engine.publish(weights)
            yield weights


def half_billion(steps: int) -> Iterator[dict[str, torch.Tensor]]:
    """Weights before the first and after each step of a large model at a small learning rate."""
    from envsdk.contracts.trainer import TrainerConfig
    from envsdk.trainers.torch_trainer import TorchTrainer

    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer.create(
            TrainerConfig(
                model=write_model(Path(folder), HALF_BILLION),
                sequence_length=256,
                seed=0,
                training_args={"learning_rate": LEARNING_RATE, "max_tokens_per_microbatch": 128},
                strategy_config={"num_threads": 2},
            )
        )
    batch = make_batch(HALF_BILLION.vocab_size, num_sequences=4, mean_length=64)
    yield tensors(trainer.weights())
    for step in range(steps):
        trainer.train_step(replace(batch, step=step))
        yield tensors(trainer.weights())


def tensors(weights: Iterable[tuple[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """As tensors."""
    return {name: torch.from_numpy(array) for name, array in weights}


MODELS = {"quickstart": quickstart, "half-billion": half_billion}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"]
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    rows = []
    print(f"{'model':14} {'sent as':9} {'whole':>9} {'delta':>9} {'ratio':>6} {'changed':>8}  encode  decode")
    for name, steps in MODELS.items():
        if options.only not in (None, name):
            continue
        found = [Measured(dtype) for dtype in options.dtypes]
        for weights in steps(options.steps):
            for each in found:
                each.update(weights)
        for each in found:
            row = each.row(name)
            rows.append(row)
            share = row.delta_mb / row.whole_mb
            print(
                f"{row.model:14} {row.dtype:9} {row.whole_mb:6.1f} MB {row.delta_mb:6.2f} MB {share:6.1%} "
                f"{row.changed_share:8.2%}  {row.encode_s:4.2f} s  {row.decode_s:4.2f} s",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
