"""What each policy loss costs, as a share of the model's forward pass on the same tokens.

    python benchmarks/losses.py [--repeats 15] [--json FILE]

The model is the quickstart's (0.9 M parameters): on a larger one the shares are smaller still. A loss is
timed from log-probabilities to their gradient, alone and with all that the trainer computes around it
(weights, entropy, metrics). Forward passes and losses take turns; medians of CPU time on one thread.
Exits with 1 when the goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from model_shapes import QUICKSTART, write_model
from numpy.typing import NDArray
from training_load import make_batch, num_tokens

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.logits import token_logprobs_and_entropy
from envsdk.algorithms.loss_settings import POLICY_LOSSES
from envsdk.algorithms.losses import PolicyTokens, load_policy_loss
from envsdk.base.plugins import plugin_names
from envsdk.contracts.trainer import TrainBatch
from envsdk.trainers.causal_lm import CausalLM
from envsdk.trainers.objective import Objective, TokenOutputs, TrainRow
from envsdk.trainers.packing import MicroBatch, pack
from envsdk.trainers.policy_trainer import BatchRows
from envsdk.trainers.step_metrics import StepMetrics
from envsdk.trainers.training_args import TorchStrategyConfig

MAX_TOKENS_PER_MICROBATCH = 4096
"""As `actor_train.training_args` has it by default."""
MAX_SHARE = 0.02
"""Of the forward pass, for any loss with all around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One `pg_variant`; CPU milliseconds for the whole batch."""

    variant: str
    loss_ms: float
    """The function and its gradient."""
    objective_ms: float
    """With the fields of the rows, their weights and the metrics."""
    loss_share: float
    """Of the forward pass."""
    objective_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A micro-batch with what the model says of it."""

    micro: MicroBatch
    rows: Sequence[TrainRow]
    logprobs_N: torch.Tensor
    entropy_N: torch.Tensor
    tokens: PolicyTokens


def make_parts(model: CausalLM, batch: TrainBatch, args: AlgorithmArgs) -> list[Part]:
    """The batch as the trainer divides it, proximal log-probabilities included."""
    made = BatchRows(batch, args, seed=0, with_values=False)
    rows = made.step_rows(range(len(batch.sequences)))
    parts = []
    for micro in pack([row.row for row in rows], MAX_TOKENS_PER_MICROBATCH):
        own = [rows[index] for index in micro.rows]
        with torch.no_grad():
            logprobs_N, entropy_N = forward(model, micro)
        lengths = torch.tensor([len(row.row.scored) for row in own])
        behavior_N = _scored([row.sequence.behavior_logprobs for row in own], own)
        begins_N = torch.cat(
            [torch.tensor([True, *(row.row.scored[1:] - row.row.scored[:-1] > 1).tolist()]) for row in own]
        )
        parts.append(
            Part(
                micro=micro,
                rows=own,
                logprobs_N=logprobs_N,
                entropy_N=entropy_N,
                tokens=PolicyTokens(
                    logprobs=logprobs_N,
                    proximal_logprobs=logprobs_N + 0.01,
                    behavior_logprobs=behavior_N,
                    advantages=_scored([row.sequence.advantages for row in own], own),
                    sequence_ids=torch.repeat_interleave(torch.arange(len(own)), lengths),
                    segment_ids=begins_N.cumsum(0) - 1,
                ),
            )
        )
    return parts


def _scored(arrays: Sequence[NDArray[np.float32]], rows: Sequence[TrainRow]) -> torch.Tensor:
    found = zip(arrays, rows, strict=True)
    return torch.cat([torch.from_numpy(array[each.row.scored]) for array, each in found])


def forward(model: CausalLM, micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of the scored tokens."""
    logits_NV, _ = model.forward(micro)
    return token_logprobs_and_entropy(logits_NV, torch.from_numpy(micro.targets_N), temperature=1.0)


def run_loss(variant: str, args: AlgorithmArgs, parts: Sequence[Part]) -> None:
    loss = load_policy_loss(args)
    for part in parts:
        logprobs_N = part.logprobs_N.requires_grad_()
        result = loss(_with(part.tokens, logprobs_N), args)
        torch.autograd.grad(result.loss.sum(), logprobs_N)


def run_objective(objective: Objective, parts: Sequence[Part]) -> None:
    tally = StepMetrics()
    for part in parts:
        logprobs_N = part.logprobs_N.requires_grad_()
        outputs = TokenOutputs(logprobs_N=logprobs_N, entropy_N=part.entropy_N)
        loss = objective(part.rows, outputs, tally)
        torch.autograd.grad(loss, logprobs_N)
        tally.add_micro_batch(loss, num_real_tokens=0, num_padded_tokens=0)


def _with(tokens: PolicyTokens, logprobs_N: torch.Tensor) -> PolicyTokens:
    return replace(tokens, logprobs=logprobs_N)


def cpu_ms(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return 1000 * (time.process_time() - began)


def measure(model: CausalLM, batch: TrainBatch, repeats: int) -> tuple[float, list[Row]]:
    """Milliseconds of the forward pass, and a row for each registered loss."""
    variants = plugin_names(POLICY_LOSSES)
    settings = {name: AlgorithmArgs.model_validate({"pg_variant": name}) for name in variants}
    parts = make_parts(model, batch, AlgorithmArgs())
    objectives = {name: Objective(settings[name]) for name in variants}
    forward_ms: list[float] = []
    loss_ms: dict[str, list[float]] = {name: [] for name in variants}
    objective_ms: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(repeats + 1):
        passed = cpu_ms(lambda: [forward(model, part.micro) for part in parts])
        if repeat:  # the first round warms up
            forward_ms.append(passed)
        for name in variants:
            alone = cpu_ms(lambda name=name: run_loss(name, settings[name], parts))
            whole = cpu_ms(lambda name=name: run_objective(objectives[name], parts))
            if repeat:
                loss_ms[name].append(alone)
                objective_ms[name].append(whole)
    base = statistics.median(forward_ms)
    rows = []
    for name in variants:
        alone, whole = statistics.median(loss_ms[name]), statistics.median(objective_ms[name])
        rows.append(
            Row(
                variant=name,
                loss_ms=alone,
                objective_ms=whole,
                loss_share=alone / base,
                objective_share=whole / base,
            )
        )
    return base, rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="rounds measured (default 15)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = CausalLM.load(
            write_model(Path(folder) / "model", QUICKSTART),
            with_value_head=False,
            settings=TorchStrategyConfig(),
        )
    batch = make_batch(QUICKSTART.vocab_size, num_sequences=128, mean_length=200)
    forward_ms, rows = measure(model, batch, options.repeats)
    num_scored = sum(int(sequence.response_mask.sum()) for sequence in batch.sequences)
    print(
        f"{num_tokens(batch)} tokens, {num_scored} of them scored; forward pass {forward_ms:.0f} ms of CPU "
        f"time, load {os.getloadavg()[0]:.1f}\n\n"
        "pg_variant              loss, ms  of forward   with metrics, ms  of forward"
    )
    for row in rows:
        print(
            f"{row.variant:22} {row.loss_ms:9.2f} {row.loss_share:11.2%} {row.objective_ms:18.2f} "
            f"{row.objective_share:11.2%}"
        )
    worst = max(rows, key=lambda row: row.objective_share)
    is_met = worst.objective_share <= MAX_SHARE
    print(
        f"\n{'PASS' if is_met else 'FAIL'}  the dearest, {worst.variant}, costs {worst.objective_share:.2%} "
        f"of the forward pass (goal: {MAX_SHARE:.0%})"
    )
    if options.json:
        record = {"forward_ms": forward_ms, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
