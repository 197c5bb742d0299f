"""What a trainer saves by prefixes that rows share, and by logits that it does not keep.

    python benchmarks/computed_once.py [--model FOLDER] [--prompt 1024] [--reply 96] [--groups 1] [--pairs 3]

Tokens that are all scored: one pass, forward and backward, with all logits kept and with those of a few at a
time, in turns. Groups of 8 replies to one long prompt: the same without and with sharing. One thread; time is
the CPU's, a ratio the median over pairs, memory the most that one more pass adds to a process. Without
`--model` a random model of the quickstart's shape. Exits with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from model_shapes import QUICKSTART, write_model

from envsdk.base.display.terminal import say
from envsdk.base.processes.memory import give_back_freed
from envsdk.trainers.causal_lm import CausalLM
from envsdk.trainers.packing import Row, make_row, pack
from envsdk.trainers.training_args import TorchStrategyConfig

GROUP_SIZE = 8
MIN_TOKENS, MIN_SPEED = 3.0, 2.0
"""Tokens computed, and CPU time, without sharing over those with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward and backward pass over some rows."""

    loss: float
    gradients: list[torch.Tensor]
    num_tokens: int
    cpu_s: float


def make_rows(vocab_size: int, *, groups: int, prompt: int, reply: int) -> list[Row]:
    """Random tokens; replies of half to all of `reply` tokens."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(groups):
        shared = rng.integers(0, vocab_size, prompt)
        for _ in range(GROUP_SIZE):
            ids = np.concatenate([shared, rng.integers(0, vocab_size, rng.integers(reply // 2, reply + 1))])
            rows.append(make_row(ids.astype(np.int32), (np.arange(len(ids)) >= prompt).astype(np.int8)))
    return [row for row in rows if row is not None]


def run(model: CausalLM, rows: Sequence[Row], *, shares: bool, at_once: int) -> Pass:
    """The loss is the mean surprisal of the scored tokens."""
    for _, weight in model.parameters():
        weight.grad = None
    num_scored, loss, num_tokens = sum(len(row.scored) for row in rows), 0.0, 0
    started = time.process_time()
    for micro in pack(rows, at_once, pairs_per_token=model.pairs_per_token if shares else 0.0):
        scores, _ = model.scores(micro)
        part = -scores.logprobs_N.sum() / num_scored
        part.backward()  # type: ignore[no-untyped-call]
        loss, num_tokens = loss + float(part.detach()), num_tokens + micro.input_ids_BT.size
    return Pass(
        loss=loss,
        gradients=[weight.grad for _, weight in model.parameters() if weight.grad is not None],
        num_tokens=num_tokens,
        cpu_s=time.process_time() - started,
    )


def peak_mib(work: Callable[[], object]) -> float:
    """What the work adds to a process that is like this one: a child."""
    reading, writing = os.pipe()
    if child := os.fork():
        os.waitpid(child, 0)
        return int(os.read(reading, 32)) / 2**20
    try:
        give_back_freed()
        Path("/proc/self/clear_refs").write_text("5")
        before = _memory("VmRSS")
        work()
        os.write(writing, str(_memory("VmHWM") - before).encode())
    finally:
        os._exit(0)


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def difference(one: Pass, other: Pass) -> str:
    """Of losses, and of gradients over the norm of one."""
    pairs = zip(one.gradients, other.gradients, strict=True)
    apart = sum(float((a - b).double().square().sum()) for a, b in pairs)
    norm = sum(float(a.double().square().sum()) for a in one.gradients)
    return (
        f"loss by {abs(one.loss - other.loss):.1e}, gradients by {math.sqrt(apart / norm):.1e} of their norm"
    )


def compare(num_pairs: int, before: Callable[[], Pass], after: Callable[[], Pass]) -> tuple[float, float]:
    """Print what is saved; how many times fewer tokens, and how many times faster."""
    speeds = []
    for _ in range(num_pairs):
        one, other = before(), after()
        speeds.append(one.cpu_s / other.cpu_s)
    tokens, speed = one.num_tokens / other.num_tokens, statistics.median(speeds)
    pairs = ", ".join(f"{each:.2f}" for each in speeds)
    one_mib, other_mib = peak_mib(before), peak_mib(after)
    say(
        f"  tokens computed  {one.num_tokens:,} -> {other.num_tokens:,}: {tokens:.1f} times fewer\n"
        f"  CPU time         {one.cpu_s:.2f} -> {other.cpu_s:.2f} s: {speed:.2f} times faster "
        f"(pairs: {pairs})\n"
        f"  peak memory      {one_mib:,.0f} -> {other_mib:,.0f} MiB: {one_mib / other_mib:.1f} times less\n"
        f"  differ           {difference(one, other)}"
    )
    return tokens, speed


def compare_logits(model: CausalLM, options: argparse.Namespace) -> None:
    rows = make_rows(model.vocab_size, groups=1, prompt=0, reply=options.at_once // GROUP_SIZE)
    transform = model.transform

    def one_pass(*, keeps: bool) -> Pass:
        model.transform = None if keeps else transform
        return run(model, rows, shares=False, at_once=options.at_once)

    say(f"logits of a few tokens at a time: all tokens scored, vocabulary of {model.vocab_size:,}")
    compare(options.pairs, partial(one_pass, keeps=True), partial(one_pass, keeps=False))


def compare_sharing(model: CausalLM, options: argparse.Namespace) -> bool:
    rows = make_rows(model.vocab_size, groups=options.groups, prompt=options.prompt, reply=options.reply)
    one_pass = partial(run, model, rows, at_once=options.at_once)
    say(f"shared prefixes: {options.groups} x {GROUP_SIZE} rows, prompts of {options.prompt} tokens")
    tokens, speed = compare(options.pairs, partial(one_pass, shares=False), partial(one_pass, shares=True))
    return tokens >= MIN_TOKENS and speed >= MIN_SPEED


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--reply", type=int, default=96)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=4096, help="max_tokens_per_microbatch")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = CausalLM.load(
            options.model or write_model(Path(folder), replace(QUICKSTART, max_positions=8192)),
            with_value_head=False,
            settings=TorchStrategyConfig(dtype=options.dtype),
        )
    compare_logits(model, options)
    return 0 if compare_sharing(model, options) else 1


if __name__ == "__main__":
    sys.exit(main())
