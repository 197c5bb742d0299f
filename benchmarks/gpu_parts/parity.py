"""Whether a device computes what a CPU computes in float32: trainer, losses and engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_parts.bench import Bench, Row
from benchmarks.training_load import make_batch
from envsdk.base.plugins import plugin_names
from envsdk.contracts.trainer import TrainBatch, TrainerConfig
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.engine import Engine, EngineConfig, GenerationRequest
from envsdk.engines.sampling import SamplingParams
from envsdk.trainers.torch_trainer import TorchTrainer

LEARNING_RATE = 1e-4
NUM_STEPS = 3
SEQUENCE_LENGTH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """How the device computes, and how far that may be from a CPU's float32."""

    name: str
    dtype: str = "float32"
    tf32: bool = False
    logprobs: float
    """Largest difference of a log-probability, in nats."""
    metrics: float
    """Of loss and gradient norm, relative."""
    update: float
    """Of the weights' change over the steps, as a norm relative to the CPU's change. Adam makes steps of one
    size from gradients of any size, so noise in the small ones shows here first."""


PRECISIONS = (
    Precision(name="float32", logprobs=1e-3, metrics=1e-3, update=0.05),
    Precision(name="TF32", tf32=True, logprobs=0.05, metrics=0.05, update=0.5),
    Precision(name="bfloat16", dtype="bfloat16", logprobs=0.2, metrics=0.1, update=0.5),
)


@dataclass(slots=True)
class Steps:
    """What some steps of training gave."""

    logprobs: list[np.ndarray]
    metrics: list[Mapping[str, float]]
    weights: dict[str, np.ndarray]


@contextmanager
def matrix_products(*, tf32: bool) -> Iterator[None]:
    """float32 products of a GPU with full mantissas, or with TF32's 10 bits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def trainer_on(bench: Bench, device: str, dtype: str, algorithm: Mapping[str, Any] | None = None) -> Any:
    """The torch trainer of the parity model."""
    return TorchTrainer.create(
        TrainerConfig(
            model=bench.model(bench.parity_shape),
            sequence_length=SEQUENCE_LENGTH,
            seed=0,
            algorithm=algorithm or {},
            training_args={"learning_rate": LEARNING_RATE},
            strategy_config={"device": device, "dtype": dtype},
        )
    )


def train(trainer: TorchTrainer, batch: TrainBatch) -> Steps:
    """Log-probabilities before, then some steps."""
    logprobs = trainer.logprobs([sequence.ids for sequence in batch.sequences])
    metrics = [trainer.train_step(replace(batch, step=step)) for step in range(NUM_STEPS)]
    return Steps(list(logprobs), metrics, dict(trainer.weights()))


def relative(value: float, reference: float) -> float:
    return abs(value - reference) / max(abs(reference), 1e-6)


def compared(
    found: Steps, reference: Steps, before: Mapping[str, np.ndarray], precision: Precision
) -> Iterator[Row]:
    """The rows of one precision."""
    name = precision.name
    difference = max(
        float(np.abs(a - b).max()) for a, b in zip(found.logprobs, reference.logprobs, strict=True)
    )
    yield Row(
        what=f"trainer {name}: log-probabilities, largest difference",
        value=difference,
        unit="nats",
        at_most=precision.logprobs,
    )
    for metric, title in (("actor/loss", "loss"), ("actor/grad_norm", "gradient norm")):
        pairs = zip(found.metrics, reference.metrics, strict=True)
        yield Row(
            what=f"trainer {name}: {title} of {NUM_STEPS} steps, largest relative difference",
            value=max(relative(ours[metric], theirs[metric]) for ours, theirs in pairs),
            at_most=precision.metrics,
        )
    apart = math.sqrt(sum(float(np.square(found.weights[n] - w).sum()) for n, w in reference.weights.items()))
    moved = math.sqrt(sum(float(np.square(w - before[n]).sum()) for n, w in reference.weights.items()))
    yield Row(
        what=f"trainer {name}: weights after {NUM_STEPS} steps, distance over the way gone",
        value=apart / moved,
        at_most=precision.update,
    )


def trainers(bench: Bench) -> Iterator[Row]:
    """The trainer's steps in each precision."""
    shape = bench.parity_shape
    batch = make_batch(shape.vocab_size, num_sequences=8, mean_length=96)
    trainer = trainer_on(bench, "cpu", "float32")
    before = dict(trainer.weights())
    reference = train(trainer, batch)
    for precision in PRECISIONS:
        if precision.tf32 and not bench.is_cuda:
            continue
        with matrix_products(tf32=precision.tf32):
            found = train(trainer_on(bench, bench.device, precision.dtype), batch)
        yield from compared(found, reference, before, precision)


def losses(bench: Bench) -> Iterator[Row]:
    """One step of every policy loss: the algorithms on the device's tensors."""
    batch = make_batch(bench.parity_shape.vocab_size, num_sequences=4, mean_length=64)
    for variant in plugin_names("envsdk.policy_losses"):
        algorithm = {"pg_variant": variant, "entropy_loss_coef": 0.01}
        ours, reference = (
            trainer_on(bench, device, "float32", algorithm).train_step(batch)
            for device in (bench.device, "cpu")
        )
        worst = max(relative(ours[name], reference[name]) for name in ("actor/loss", "actor/grad_norm"))
        yield Row(
            what=f"loss {variant}: loss and gradient norm, largest relative difference",
            value=worst,
            at_most=2e-3,
        )


def requests(
    vocab_size: int, count: int, new_tokens: int, prompt_tokens: int = 24
) -> list[GenerationRequest]:
    """Random prompts, each with a seed of its own."""
    prompts = np.random.default_rng(count).integers(0, vocab_size, (count, prompt_tokens), np.int32)
    return [
        GenerationRequest(
            request_id=str(number),
            prompt_ids=prompt,
            sampling=SamplingParams(max_new_tokens=new_tokens, seed=number),
        )
        for number, prompt in enumerate(prompts)
    ]


async def sampled(
    engine: Engine, wanted: list[GenerationRequest]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Whole sequences, and the log-probabilities of what was sampled."""
    results = await asyncio.gather(*(engine.submit(request) for request in wanted))
    ids = [
        np.concatenate([request.prompt_ids, result.token_ids])
        for request, result in zip(wanted, results, strict=True)
    ]
    return ids, [np.asarray(result.logprobs) for result in results]


async def engine_gaps(bench: Bench, dtype: str) -> list[float]:
    """Largest difference between the engine's and the trainer's log-probabilities, after every update."""
    trainer = trainer_on(bench, bench.device, dtype)
    shape = bench.parity_shape
    batch = make_batch(shape.vocab_size, num_sequences=8, mean_length=96)
    settings = {"device": bench.device, "dtype": dtype}
    engine = EmbeddedEngine.create(
        EngineConfig(
            model=bench.model(shape), sequence_length=SEQUENCE_LENGTH, max_running=8, strategy_config=settings
        )
    )
    await engine.start()
    gaps = []
    try:
        for step in range(NUM_STEPS + 1):
            ids, logprobs = await sampled(engine, requests(shape.vocab_size, 8, new_tokens=32))
            scored = trainer.logprobs(ids)
            gaps.append(
                max(
                    float(np.abs(ours - theirs[-len(ours) :]).max())
                    for ours, theirs in zip(logprobs, scored, strict=True)
                )
            )
            trainer.train_step(replace(batch, step=step))
            await engine.load_weights(iter(dict(trainer.weights()).items()), step + 1)
    finally:
        await engine.close()
    return gaps


def engines(bench: Bench) -> Iterator[Row]:
    """The engine against the trainer, on the same device."""
    for dtype, at_most in (("float32", 1e-3), ("bfloat16", 0.3)):
        with matrix_products(tf32=False):
            gaps = asyncio.run(engine_gaps(bench, dtype))
        yield Row(
            what=f"engine and trainer {dtype}: log-probabilities, largest difference",
            value=max(gaps),
            unit="nats",
            at_most=at_most,
            note=f"before and after {NUM_STEPS} updates: " + ", ".join(f"{gap:.2g}" for gap in gaps),
        )


def run(bench: Bench) -> Iterator[Row]:
    yield from trainers(bench)
    yield from engines(bench)
    yield from losses(bench)
