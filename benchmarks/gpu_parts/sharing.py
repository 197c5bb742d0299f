"""One device in turns: what each phase takes of it, what a switch costs, and that nothing changes by it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import torch

from benchmarks.gpu_parts.bench import Bench, Row
from benchmarks.gpu_parts.parity import requests, sampled
from benchmarks.gpu_parts.speed import NEW_TOKENS, PROMPT_TOKENS, embedded, forget_memory
from benchmarks.model_shapes import ModelShape
from benchmarks.training_load import make_batch
from envsdk.base.plugins import load_plugin
from envsdk.contracts.held import Held
from envsdk.contracts.trainer import TrainerConfig
from envsdk.engines.engine import Engine, PauseMode

STEPS = 3
MAX_RUNNING = 64


def held_gib(bench: Bench) -> float:
    """Memory that tensors take on the device now."""
    return torch.cuda.memory_allocated(bench.device) / 2**30 if bench.is_cuda else 0.0


def steps(bench: Bench, shape: ModelShape, *, in_turns: bool) -> tuple[dict[str, float], list[float]]:
    """Some synchronous steps: figures of the last one, and the sum of each weight."""
    trainer = load_plugin("envsdk.trainers", "torch").create(
        TrainerConfig(
            model=bench.model(shape),
            sequence_length=PROMPT_TOKENS + NEW_TOKENS,
            seed=0,
            strategy_config={"device": bench.device},
        )
    )
    batch = make_batch(shape.vocab_size, num_sequences=8, mean_length=128)
    found: dict[str, float] = {}
    with asyncio.Runner() as runner:
        engine: Engine = runner.run(embedded(bench, shape, MAX_RUNNING))

        def hold(who: str, held: Held) -> None:
            """`trainer` or `engine`, where they take turns."""
            if in_turns:
                work = trainer.hold if who == "trainer" else lambda held: runner.run(engine.hold(held))
                found[f"{who} to {held.name.lower()}, s"] = bench.seconds(lambda: work(held))

        runner.run(engine.pause(PauseMode.KEEP))
        hold("engine", Held.NOTHING)
        for step in range(STEPS):
            hold("trainer", Held.NOTHING)
            hold("engine", Held.WEIGHTS)
            found["publish, GiB"] = held_gib(bench)
            runner.run(engine.load_weights(iter(dict(trainer.weights()).items()), step))
            hold("engine", Held.ALL)
            found["generate, GiB"] = held_gib(bench)
            runner.run(engine.resume())
            runner.run(sampled(engine, requests(shape.vocab_size, 16, NEW_TOKENS // 4)))
            runner.run(engine.pause(PauseMode.KEEP))
            hold("engine", Held.NOTHING)
            hold("trainer", Held.ALL)
            found["train, GiB"] = held_gib(bench)
            trainer.train_step(batch)
        runner.run(engine.close())
    return found, [float(torch.from_numpy(weight).double().sum()) for _, weight in trainer.weights()]


def run(bench: Bench) -> Iterator[Row]:
    """Each model in turns, then side by side: the weights after some steps are the same."""
    for name, shape in bench.shapes.items():
        figures, weights = steps(bench, shape, in_turns=True)
        for what, value in figures.items():
            what, unit = what.split(", ")
            yield Row(what=f"{name}: {what}", value=value, unit=unit)
        forget_memory(bench)
        apart, expected = steps(bench, shape, in_turns=False)
        forget_memory(bench)
        yield Row(what=f"{name}: without turns", value=apart["train, GiB"], unit="GiB")
        differ = sum(one != other for one, other in zip(weights, expected, strict=True))
        yield Row(what=f"{name}: weights that differ from those", value=float(differ), at_most=0.0)
