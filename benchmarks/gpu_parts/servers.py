"""Engines that bring their own kernels, where they are installed: their speed, and whether they conform."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import torch
from transformers import AutoModelForCausalLM

from benchmarks.gpu_parts.bench import Bench, Row, Skipped, missing
from benchmarks.gpu_parts.marked_tests import outcomes
from benchmarks.gpu_parts.parity import requests, sampled
from benchmarks.gpu_parts.speed import (
    BATCHES,
    NEW_TOKENS,
    PROMPT_TOKENS,
    attempted,
    conclude,
    forget_memory,
    update,
)
from envsdk.base.plugins import load_plugin
from envsdk.contracts.held import Held
from envsdk.engines.engine import Engine, EngineConfig, PauseMode

SUITES = {
    "vllm": ("tests/vllm_engine/test_vllm_conforms.py", "vllm"),
    "sglang": ("tests/envsdk/engines/test_sglang_server_conforms.py", "gpu"),
}
"""By engine: the file with its conformance suite, and the marker of its tests."""


def engine_rows(bench: Bench, name: str) -> Iterator[Row]:
    """Tokens per second and an update in flight, of one engine."""
    if not bench.is_cuda:
        raise Skipped(f"{name} is measured on a GPU")
    model, shape = next(iter(bench.shapes.items()))
    folder = bench.model(shape)
    engine = load_plugin("envsdk.engines", name).create(
        EngineConfig(
            model=folder,
            sequence_length=PROMPT_TOKENS + NEW_TOKENS,
            max_running=max(BATCHES),
            strategy_config={"python": sglang} if name == "sglang" and (sglang := other_python()) else {},
            takes_turns=True,
        )
    )
    with asyncio.Runner() as runner:
        seconds = bench.seconds(lambda: runner.run(engine.start()))
        yield Row(what=f"{name}, {model}: start", value=seconds, unit="s")
        try:
            for count in BATCHES:
                wanted = requests(shape.vocab_size, count, NEW_TOKENS, PROMPT_TOKENS)
                seconds = bench.median_s(lambda wanted=wanted: runner.run(sampled(engine, wanted)), repeats=3)
                yield Row(
                    what=f"{name}, {model}: {count} replies",
                    value=count * NEW_TOKENS / seconds,
                    unit="tokens/s",
                )
            weights = dict(
                AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).named_parameters()
            )
            wanted = requests(shape.vocab_size, 8, NEW_TOKENS, PROMPT_TOKENS)
            took, pause = runner.run(
                update(
                    engine, {key: value.detach() for key, value in weights.items()}, sampled(engine, wanted)
                )
            )
            yield Row(what=f"{name}, {model}: weight update while replies run", value=1000 * took, unit="ms")
            yield Row(what=f"{name}, {model}: longest time without a token", value=1000 * pause, unit="ms")
            yield from turn_rows(bench, f"{name}, {model}", runner, engine, weights)
        finally:
            runner.run(engine.close())


def turn_rows(
    bench: Bench, name: str, runner: asyncio.Runner, engine: Engine, weights: dict[str, torch.Tensor]
) -> Iterator[Row]:
    """What one turn gives back of the card, and how long each switch takes; a reply under the new weights."""

    def taken_gib() -> float:
        free, total = torch.cuda.mem_get_info(bench.device)
        return (total - free) / 2**30

    runner.run(engine.pause(PauseMode.KEEP))
    yield Row(what=f"{name}: card's memory while it samples", value=taken_gib(), unit="GiB")
    for held in (Held.NOTHING, Held.WEIGHTS, Held.ALL):
        if held is Held.ALL:
            sent = iter({key: value.detach() for key, value in weights.items()}.items())
            seconds = bench.seconds(lambda sent=sent: runner.run(engine.load_weights(sent, 2)))
            yield Row(what=f"{name}: update between turns", value=1000 * seconds, unit="ms")
        seconds = bench.seconds(lambda held=held: runner.run(engine.hold(held)))
        yield Row(what=f"{name}: to {held.name.lower()}", value=seconds, unit="s")
        yield Row(what=f"{name}: card's memory with {held.name.lower()}", value=taken_gib(), unit="GiB")
    runner.run(engine.resume())
    runner.run(sampled(engine, requests(1000, 1, 4, PROMPT_TOKENS)))


def other_python() -> str:
    """Interpreter of the environment that has SGLang, which pins other versions than the rest; or nothing."""
    return os.environ.get("ENVSDK_SGLANG_PYTHON", "")


def conformance(bench: Bench, name: str) -> Iterator[Row]:
    """The shared suite of all engines (`envsdk.testing.engines`), on the engine itself with tiny models."""
    if not bench.is_cuda:
        raise Skipped(f"the conformance of {name} is tested on a GPU")
    file, marker = SUITES[name]
    yield from outcomes(bench, f"{name}: conformance checks", [file], marker=marker)


def run(bench: Bench) -> Iterator[Row]:
    skipped: list[str] = []
    broken: list[str] = []
    for name in SUITES:
        if missing([name]) and not (name == "sglang" and other_python()):
            skipped.append(f"{name} is not installed")
            continue
        for rows in (engine_rows, conformance):
            forget_memory(bench)
            yield from attempted(lambda n=name, r=rows: r(bench, n), skipped, broken)
    conclude(skipped, broken)
