"""Step time of every trainer on the same model and batch, and what a second rank gains.

    python benchmarks/trainers.py [--repeats 7] [--json FILE]

Every trainer is built once, in processes of its own, and they take turns, one step each, so that a busy
machine slows all of them; medians are compared. One CPU thread per rank. That they compute the same is
seen from the loss and the gradient norm of the first step. With a CUDA device it also prints tokens per
second and model FLOPs utilization on a 0.5B-shaped model in bfloat16, one GPU. Exits with 1 when a goal
is missed or a trainer fails.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from model_shapes import HALF_BILLION, SMALL, write_model
from training_load import make_batch, num_tokens, train_flops

from envsdk.base.net.rendezvous import free_port
from envsdk.base.plugins import load_plugin, plugin_names
from envsdk.contracts.trainer import TrainBatch, TrainerConfig, TrainerRank

TRAINERS = "envsdk.trainers"
STEP_TIMEOUT_S = 900.0
MAX_MEGATRON_RATIO = 1.3
"""Of a step's time, Megatron over torch, one rank each."""
MAX_DEVIATION = 1e-3
"""Of loss and gradient norm from the torch trainer's, relative; float32 and another order of sums."""
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}
"""Dense bfloat16, by a part of the device's name; from the vendor's data sheets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A trainer and how its ranks divide the work."""

    name: str
    strategy: str
    num_ranks: int = 1
    strategy_config: Mapping[str, Any] = field(default_factory=dict)
    max_tokens_per_microbatch: int = 4096


MEGATRON_ON_CPU = "tests.trainers.megatron.cpu_trainer:MegatronOnCpu"
LAYOUTS = (
    Layout(name="torch", strategy="torch"),
    Layout(name="fsdp2, 1 rank", strategy="fsdp2_train"),
    Layout(name="megatron, 1 rank", strategy=MEGATRON_ON_CPU),
    Layout(name="fsdp2, 2 ranks", strategy="fsdp2_train", num_ranks=2),
    Layout(name="megatron, DP 2", strategy=MEGATRON_ON_CPU, num_ranks=2),
    Layout(
        name="megatron, TP 2",
        strategy=MEGATRON_ON_CPU,
        num_ranks=2,
        strategy_config={"tensor_model_parallel_size": 2},
    ),
    Layout(
        name="megatron, PP 2",
        strategy=MEGATRON_ON_CPU,
        num_ranks=2,
        strategy_config={"pipeline_model_parallel_size": 2},
    ),
)
CUDA_LAYOUTS = (
    Layout(
        name="torch",
        strategy="torch",
        strategy_config={"device": "cuda:0", "dtype": "bfloat16"},
        max_tokens_per_microbatch=16_384,
    ),
    Layout(
        name="megatron",
        strategy="megatron_train",
        strategy_config={"dtype": "bfloat16"},
        max_tokens_per_microbatch=16_384,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rank's account of one step."""

    wall_s: float
    cpu_s: float
    loss: float
    grad_norm: float
    padding: float
    """Share of the inputs that went through the model for nothing."""


class TrainerFailed(Exception):
    """A rank ended with an error; the message is its traceback."""


class Ranks:
    """The processes of one trainer: `start`, then any number of `step`; ended by `stop`."""

    def __init__(self, layout: Layout, model: Path, batch: TrainBatch) -> None:
        self.layout = layout
        context = multiprocessing.get_context("spawn")
        port = free_port("127.0.0.1")
        self._connections: list[Connection] = []
        self._processes = []
        for rank in range(layout.num_ranks):
            ours, theirs = context.Pipe()
            where = TrainerRank(rank=rank, world_size=layout.num_ranks, local_rank=rank, master_port=port)
            process = context.Process(target=_serve, args=(theirs, layout, model, where, batch), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
        self._answers()

    def step(self) -> list[Step]:
        """One training step on all ranks."""
        for connection in self._connections:
            connection.send("step")
        return self._answers()

    def stop(self) -> None:
        """End the processes, whatever they are doing."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def _answers(self) -> list[Any]:
        answers: list[Any] = []
        for connection in self._connections:
            if not connection.poll(STEP_TIMEOUT_S):
                raise TrainerFailed(f"{self.layout.name}: no answer within {STEP_TIMEOUT_S:.0f} s")
            try:
                answer = connection.recv()
            except EOFError:
                raise TrainerFailed(f"{self.layout.name}: a rank died without a word") from None
            if isinstance(answer, str):
                raise TrainerFailed(f"{self.layout.name}:\n{answer}")
            answers.append(answer)
        return answers


def _serve(
    connection: Connection, layout: Layout, model: Path, where: TrainerRank, batch: TrainBatch
) -> None:
    """A rank: answers each message with a `Step`, or with its traceback."""
    # Megatron's and torch's remarks, once per rank, would drown the table.
    warnings.simplefilter("ignore")
    try:
        trainer = load_plugin(TRAINERS, layout.strategy).create(
            TrainerConfig(
                model=model,
                sequence_length=4096,
                seed=0,
                training_args={
                    "learning_rate": 1e-5,
                    "max_tokens_per_microbatch": layout.max_tokens_per_microbatch,
                },
                strategy_config=layout.strategy_config,
                rank=where,
            )
        )
        connection.send(None)
        while connection.recv() == "step":
            cpu, wall = time.process_time(), time.perf_counter()
            metrics = trainer.train_step(batch)
            connection.send(
                Step(
                    wall_s=time.perf_counter() - wall,
                    cpu_s=time.process_time() - cpu,
                    loss=metrics["actor/loss"],
                    grad_norm=metrics["actor/grad_norm"],
                    padding=metrics["actor/padding_fraction"],
                )
            )
    except EOFError:
        return
    except Exception:  # noqa: BLE001 - whatever it is, the parent tells it
        connection.send(traceback.format_exc())


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trainer."""

    name: str
    num_ranks: int
    step_s: float
    """Of the slowest rank; median over the repeats."""
    cpu_s: float
    """Of all ranks."""
    tokens_per_s: float
    loss: float
    """Of the first step."""
    grad_norm: float
    padding: float
    over_torch: float
    """Its step time over that of torch."""


def measure(layouts: Sequence[Layout], model: Path, batch: TrainBatch, repeats: int) -> list[Row]:
    """Rows in the order of `layouts`, the first of which the others are compared with."""
    taken: dict[str, list[list[Step]]] = {layout.name: [] for layout in layouts}
    with ExitStack() as stack:
        trainers = [stack.enter_context(_ranks(layout, model, batch)) for layout in layouts]
        for _ in range(repeats + 1):
            for ranks in trainers:
                taken[ranks.layout.name].append(ranks.step())
    # The first step warms up; it alone began from the same weights.
    step_s = {
        name: statistics.median(max(rank.wall_s for rank in step) for step in steps[1:])
        for name, steps in taken.items()
    }
    return [
        Row(
            name=layout.name,
            num_ranks=layout.num_ranks,
            step_s=step_s[layout.name],
            cpu_s=statistics.median(sum(rank.cpu_s for rank in step) for step in taken[layout.name][1:]),
            tokens_per_s=num_tokens(batch) / step_s[layout.name],
            loss=taken[layout.name][0][0].loss,
            grad_norm=taken[layout.name][0][0].grad_norm,
            padding=taken[layout.name][0][0].padding,
            over_torch=step_s[layout.name] / step_s[layouts[0].name],
        )
        for layout in layouts
    ]


def print_cpu(rows: Sequence[Row], batch: TrainBatch) -> None:
    print(
        f"{num_tokens(batch)} tokens in {len(batch.sequences)} sequences, {_millions(SMALL)}, float32, "
        f"one thread per rank, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n\n"
        "trainer            s/step   CPU s  tokens/s  padding  x torch  x its 1 rank  loss, step 1  grad norm"
    )
    one_rank = {row.name.split(",")[0]: row.step_s for row in rows if row.num_ranks == 1}
    for row in rows:
        alone = one_rank.get(row.name.split(",")[0])
        faster = f"{alone / row.step_s:.2f}" if alone and row.num_ranks > 1 else "-"
        print(
            f"{row.name:17} {row.step_s:7.3f} {row.cpu_s:7.3f} {row.tokens_per_s:9.0f} {row.padding:8.0%} "
            f"{row.over_torch:8.2f} {faster:>13} {row.loss:13.6f} {row.grad_norm:11.6f}"
        )


def goals(rows: Sequence[Row]) -> list[tuple[bool, str]]:
    """What is promised, and whether it is kept."""
    reference = rows[0]
    deviation = max(
        max(
            abs(row.loss - reference.loss) / abs(reference.loss),
            abs(row.grad_norm - reference.grad_norm) / reference.grad_norm,
        )
        for row in rows
    )
    found = [
        (
            deviation <= MAX_DEVIATION,
            f"loss and gradient norm are {reference.name}'s within {deviation:.1e} (goal: {MAX_DEVIATION:g})",
        )
    ]
    for row in rows:
        if row.name == "megatron, 1 rank":
            words = f"a step of megatron takes {row.over_torch:.2f} of torch's (goal: {MAX_MEGATRON_RATIO:g})"
            found.append((row.over_torch <= MAX_MEGATRON_RATIO, words))
    return found


def measure_cuda(folder: Path, repeats: int, peak_flops: float | None) -> list[dict[str, Any]]:
    """Tokens per second and model FLOPs utilization of each trainer, alone on the GPU."""
    import torch

    device = torch.cuda.get_device_name(0)
    peak = peak_flops or next((flops for name, flops in PEAK_FLOPS.items() if name in device), None)
    model = write_model(folder / "half_billion", HALF_BILLION)
    batch = make_batch(HALF_BILLION.vocab_size, num_sequences=128, mean_length=1024)
    flops = train_flops(HALF_BILLION, batch.sequences)
    print(f"\n{device}, {_millions(HALF_BILLION)}, bfloat16, {num_tokens(batch)} tokens per step\n")
    print("trainer     s/step   tokens/s  model TFLOP/s  utilization  loss of step 1")
    found = []
    for layout in registered(CUDA_LAYOUTS):
        (row,) = measure([layout], model, batch, repeats)
        per_s = flops / row.step_s
        used = f"{per_s / peak:.1%}" if peak else "peak unknown"
        print(
            f"{row.name:10} {row.step_s:7.3f} {row.tokens_per_s:10.0f} {per_s / 1e12:14.1f} "
            f"{used:>12} {row.loss:15.5f}",
            flush=True,
        )
        found.append({"device": device, "flops_per_s": per_s, "peak_flops": peak, **asdict(row)})
    return found


def registered(layouts: Sequence[Layout]) -> list[Layout]:
    """Those whose trainer is installed; the others are named."""
    known = plugin_names(TRAINERS)
    for layout in layouts:
        if ":" not in layout.strategy and layout.strategy not in known:
            print(f"left out: {layout.name}, because no trainer {layout.strategy} is registered")
    return [layout for layout in layouts if ":" in layout.strategy or layout.strategy in known]


@contextmanager
def _ranks(layout: Layout, model: Path, batch: TrainBatch) -> Iterator[Ranks]:
    ranks = Ranks(layout, model, batch)
    try:
        yield ranks
    finally:
        ranks.stop()


def _millions(shape: Any) -> str:
    return f"{(shape.num_layer_parameters + shape.vocab_size * shape.hidden_size) / 1e6:.1f} M parameters"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="steps measured (default 7)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--peak-tflops", type=float, help="of the GPU in dense bfloat16, if it is not known")
    options = parser.parse_args()

    import torch

    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        batch = make_batch(SMALL.vocab_size, num_sequences=32, mean_length=160)
        model = write_model(Path(folder) / "small", SMALL)
        # Where there is a GPU, fsdp2 and megatron take it; the CPU comparison would be of different devices.
        if torch.cuda.is_available():
            peak = options.peak_tflops and options.peak_tflops * 1e12
            record["cuda"] = measure_cuda(Path(folder), options.repeats, peak)
            kept = []
        else:
            rows = measure(registered(LAYOUTS), model, batch, options.repeats)
            print_cpu(rows, batch)
            record["cpu"] = [asdict(row) for row in rows]
            kept = goals(rows)
            print("\nno CUDA device: tokens/s and model FLOPs utilization of a 0.5B model are not measured")
    for is_met, words in kept:
        print(f"{'PASS' if is_met else 'FAIL'}  {words}")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(is_met for is_met, _ in kept) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrainerFailed as failure:
        print(f"FAIL  {failure}", file=sys.stderr)
        sys.exit(1)
