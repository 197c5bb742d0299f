"""Engines that bring their own kernels, where they are installed: vLLM; and two cards' broadcast."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from benchmarks.gpu_parts.bench import Bench, Row, Skipped, missing
from benchmarks.gpu_parts.parity import requests, sampled
from benchmarks.gpu_parts.speed import BATCHES, NEW_TOKENS, PROMPT_TOKENS, update
from envsdk.inference.engine import EngineConfig
from envsdk.net.rendezvous import free_port
from envsdk.plugins import load_plugin

BROADCAST_BYTES = 1 << 30
NUM_BROADCASTS = 5


def engine_rows(bench: Bench, name: str) -> Iterator[Row]:
    """Tokens per second and an update in flight, of one engine."""
    if not bench.is_cuda:
        raise Skipped(f"{name} is measured on a GPU")
    model, shape = next(iter(bench.shapes.items()))
    folder = bench.model(shape)
    engine = load_plugin("envsdk.engines", name).create(
        EngineConfig(model=folder, sequence_length=PROMPT_TOKENS + NEW_TOKENS, max_running=max(BATCHES))
    )
    with asyncio.Runner() as runner:
        runner.run(engine.start())
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
        finally:
            runner.run(engine.close())


def _broadcast(rank: int, port: int, times: torch.Tensor) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    tensor = torch.empty(BROADCAST_BYTES, dtype=torch.uint8, device=rank)
    for index in range(NUM_BROADCASTS):
        dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        dist.broadcast(tensor, 0)
        end.record()
        torch.cuda.synchronize()
        if rank == 0:
            times[index] = begin.elapsed_time(end)
    dist.destroy_process_group()


def broadcast(bench: Bench) -> Iterator[Row]:
    """NCCL between two cards of this machine."""
    if not bench.is_cuda or torch.cuda.device_count() < 2:
        raise Skipped("a broadcast needs two GPUs")
    times = torch.zeros(NUM_BROADCASTS).share_memory_()
    torch.multiprocessing.spawn(_broadcast, args=(free_port(), times), nprocs=2)
    best = float(times[1:].min()) / 1000
    yield Row(what="NCCL broadcast to a second card", value=BROADCAST_BYTES / best / 1e9, unit="GB/s")


def run(bench: Bench) -> Iterator[Row]:
    skipped = []
    for name in ("vllm", "sglang"):
        if missing([name]):
            skipped.append(f"{name} is not installed")
            continue
        try:
            yield from engine_rows(bench, name)
        except Skipped as reason:
            skipped.append(str(reason))
    try:
        yield from broadcast(bench)
    except Skipped as reason:
        skipped.append(str(reason))
    if skipped:
        raise Skipped("; ".join(skipped))
