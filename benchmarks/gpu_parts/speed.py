"""How fast a device samples and learns, against `generate` and against its own matrix products."""

from __future__ import annotations

import asyncio
import itertools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList

from benchmarks.gpu_parts.bench import Bench, Broken, Row, Skipped, missing
from benchmarks.gpu_parts.parity import requests, sampled
from benchmarks.model_shapes import ModelShape
from benchmarks.training_load import make_batch, num_tokens, train_flops
from envsdk.base.plugins import load_plugin
from envsdk.base.store.model_files import model_sizes
from envsdk.contracts.trainer import TrainBatch, TrainerConfig
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.engine import Engine, EngineConfig

BATCHES = (1, 8, 32, 128)
PROMPT_TOKENS = 128
NEW_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerKind:
    """A trainer that is built in this process, as its only rank."""

    name: str
    strategy: str
    needs: tuple[str, ...] = ()
    cuda_only: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


TRAINERS = (
    TrainerKind(name="torch", strategy="torch"),
    TrainerKind(name="FSDP2", strategy="fsdp2_train"),
    TrainerKind(name="Megatron-core", strategy="megatron_train", needs=("megatron.core",), cuda_only=True),
)


def matrix_peak(bench: Bench) -> float:
    """Floating-point operations per second of a large bfloat16 matrix product, the fastest of several."""
    size = 8192 if bench.is_cuda else 512
    one, other = (torch.randn(size, size, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
    times = [bench.seconds(lambda: one @ other) for _ in range(20)]
    return float(2 * size**3 / min(times))


def memory_gib(bench: Bench) -> float | None:
    """Most memory that tensors took on the device since `forget_memory`."""
    return torch.cuda.max_memory_allocated(bench.device) / 2**30 if bench.is_cuda else None


def forget_memory(bench: Bench) -> None:
    """Free what nobody holds, and count anew."""
    if bench.is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(bench.device)


class TokenLogprobs(LogitsProcessor):  # type: ignore[misc]
    """The log-probability of each sampled token; of no more than one step the distribution is kept.

    What a step sampled is known at the next one, and of the last one at the end.
    """

    def __init__(self) -> None:
        self.of_tokens: list[torch.Tensor] = []
        self._of_vocabulary: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.take(input_ids)
        self._of_vocabulary = scores.float().log_softmax(-1)
        return scores

    def take(self, sequences: torch.Tensor) -> None:
        """Note the newest token of each of `sequences`."""
        if self._of_vocabulary is not None:
            self.of_tokens.append(self._of_vocabulary.gather(1, sequences[:, -1:])[:, 0])


def generate(model: Any, prompts: torch.Tensor, new_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """transformers' own sampling: the tokens, and each one's log-probability."""
    logprobs = TokenLogprobs()
    with torch.inference_mode():
        sequences = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([logprobs]),
        )
        logprobs.take(sequences)
    return sequences[:, prompts.shape[1] :], torch.stack(logprobs.of_tokens, 1)


async def embedded(bench: Bench, shape: ModelShape, max_running: int, **settings: Any) -> Engine:
    """The embedded engine in bfloat16, started."""
    settings = {"device": bench.device, "dtype": "bfloat16", "kv_slots": max_running} | settings
    engine = EmbeddedEngine.create(
        EngineConfig(
            model=bench.model(shape),
            sequence_length=PROMPT_TOKENS + NEW_TOKENS,
            max_running=max_running,
            strategy_config=settings,
        )
    )
    await engine.start()
    return engine


async def update(engine: Engine, weights: Mapping[str, torch.Tensor], busy: Any) -> tuple[float, float]:
    """Seconds of an update while replies are sampled, and the longest time without a token around it."""
    counts: list[tuple[float, int]] = []
    replies = asyncio.ensure_future(busy)

    async def watch() -> None:
        while not replies.done():
            counts.append((time.perf_counter(), engine.health().num_tokens_sampled))
            await asyncio.sleep(0.0005)

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0)  # the replies are asked for; the update comes between their prompts and their end
    began = time.perf_counter()
    await engine.load_weights(iter(weights.items()), engine.health().version + 1)
    if torch.cuda.is_available():
        # The engine has taken the weights when the device has them, which is after they were asked for.
        reached = torch.cuda.Event()
        reached.record()
        await asyncio.to_thread(reached.synchronize)
    ended = time.perf_counter()
    await replies
    await watching
    seen = [at for (at, count), (_, before) in zip(counts[1:], counts, strict=False) if count > before]
    pauses = [b - a for a, b in itertools.pairwise(seen) if a < ended and b > began]
    return ended - began, max(pauses, default=ended - began)


def without_graphs(bench: Bench, name: str, shape: ModelShape, runner: asyncio.Runner) -> Row:
    """What the engine's CUDA graphs are worth: the same replies with each kernel launched by itself."""
    count, new_tokens = (2, 8) if bench.is_small else (8, NEW_TOKENS)
    engine = runner.run(embedded(bench, shape, count, cuda_graphs=False))
    try:
        wanted = requests(shape.vocab_size, count, new_tokens, PROMPT_TOKENS)
        seconds = bench.median_s(lambda: runner.run(sampled(engine, wanted)), repeats=3)
    finally:
        runner.run(engine.close())
    what = f"{name}: engine without CUDA graphs, {count} replies"
    return Row(what=what, value=count * new_tokens / seconds, unit="tokens/s")


def sampling(bench: Bench, name: str, shape: ModelShape) -> Iterator[Row]:
    """The engine over `generate` at several numbers of replies, and a weight update on the same device."""
    new_tokens, batches = (8, BATCHES[:2]) if bench.is_small else (NEW_TOKENS, BATCHES)
    model = (
        AutoModelForCausalLM.from_pretrained(bench.model(shape), dtype=torch.bfloat16).to(bench.device).eval()
    )
    with asyncio.Runner() as runner:
        engine = runner.run(embedded(bench, shape, max(batches)))
        try:
            for count in batches:
                wanted = requests(shape.vocab_size, count, new_tokens, PROMPT_TOKENS)
                prompts = torch.from_numpy(np.stack([each.prompt_ids for each in wanted]).astype(np.int64))
                prompts = prompts.to(bench.device)
                ours = bench.median_s(lambda wanted=wanted: runner.run(sampled(engine, wanted)), repeats=3)
                theirs = bench.median_s(
                    lambda prompts=prompts: generate(model, prompts, new_tokens), repeats=1, warm_ups=1
                )
                tokens = count * new_tokens
                yield Row(what=f"{name}: engine, {count} replies", value=tokens / ours, unit="tokens/s")
                yield Row(what=f"{name}: generate, {count} replies", value=tokens / theirs, unit="tokens/s")
                yield Row(
                    what=f"{name}: engine over generate, {count} replies", value=theirs / ours, unit="x"
                )
            yield without_graphs(bench, name, shape, runner)
            weights = {key: value.detach() for key, value in model.named_parameters()}
            wanted = requests(shape.vocab_size, 8, new_tokens, PROMPT_TOKENS)
            found = [runner.run(update(engine, weights, sampled(engine, wanted))) for _ in range(3)]
            bytes_moved = sum(value.numel() * value.element_size() for value in weights.values())
            yield Row(
                what=f"{name}: weight update from tensors of the same device",
                value=1000 * min(seconds for seconds, _ in found),
                unit="ms",
                note=f"{bytes_moved / 1e6:.0f} MB, the fastest of {len(found)}",
            )
            yield Row(
                what=f"{name}: longest time without a token around an update",
                value=1000 * min(pause for _, pause in found),
                unit="ms",
                note=f"8 replies, the shortest of {len(found)}",
            )
        finally:
            runner.run(engine.close())
    if (peak := memory_gib(bench)) is not None:
        yield Row(what=f"{name}: memory of engine and `generate` together", value=peak, unit="GiB")


def estimated_gib(
    folder: Path, strategy: str, settings: Mapping[str, Any], at_once: int, batch: TrainBatch
) -> float:
    """`--explain`'s estimate of a trainer's memory, with logits of the tokens that are scored alone."""
    sizes = model_sizes(folder)
    assert sizes is not None
    estimates = load_plugin("envsdk.settings", f"trainers.{strategy}.strategy_config")(**settings)
    memory = dict(estimates.training_memory(sizes, num_ranks=1, num_tokens=at_once))
    masks = np.concatenate([sequence.response_mask for sequence in batch.sequences])
    logits = memory.get("logits, if every token is scored", 0.0)
    return float(sum(memory.values()) - logits * (1 - masks.mean())) / 2**30


def training(bench: Bench, name: str, shape: ModelShape, kind: TrainerKind, peak: float) -> Iterator[Row]:
    """One trainer's tokens per second and utilization."""
    if kind.cuda_only and not bench.is_cuda:
        raise Skipped(f"{kind.name} needs a GPU")
    if absent := missing(kind.needs):
        raise Skipped(f"{kind.name} needs {', '.join(absent)}")
    lengths = (
        {"num_sequences": 4, "mean_length": 64}
        if bench.is_small
        else {"num_sequences": 32, "mean_length": 1024}
    )
    batch = make_batch(shape.vocab_size, **lengths)
    at_once = 256 if bench.is_small else 16_384
    settings: dict[str, Any] = {"dtype": "bfloat16"}
    if kind.strategy == "torch":
        settings["device"] = bench.device
    forget_memory(bench)
    trainer = load_plugin("envsdk.trainers", kind.strategy).create(
        TrainerConfig(
            model=bench.model(shape),
            sequence_length=2048,
            seed=0,
            training_args={"max_tokens_per_microbatch": at_once},
            strategy_config=settings,
        )
    )
    try:
        seconds = bench.median_s(lambda: trainer.train_step(batch), repeats=3, warm_ups=1)
        rate = num_tokens(batch) / seconds
        took = ", ".join(f"{what} by {kernel}" for what, kernel in trainer.kernels().items())
        yield Row(what=f"{name}: {kind.name} trainer", value=rate, unit="tokens/s", note=took)
        share = train_flops(shape, batch.sequences) / seconds / peak
        yield Row(what=f"{name}: {kind.name} trainer, model FLOPs utilization", value=100 * share, unit="%")
        if (most := memory_gib(bench)) is not None:
            yield Row(what=f"{name}: {kind.name} trainer, memory", value=most, unit="GiB")
        estimate = estimated_gib(bench.model(shape), kind.strategy, settings, at_once, batch)
        yield Row(
            what=f"{name}: {kind.name} trainer, memory as `--explain` has it", value=estimate, unit="GiB"
        )
    finally:
        trainer.close()


def attempted(work: Callable[[], Iterator[Row]], skipped: list[str], broken: list[str]) -> Iterator[Row]:
    """The rows of `work`; what it lacks and what broke it are noted, and the rest goes on."""
    try:
        yield from work()
    except (Skipped, ModuleNotFoundError) as reason:
        skipped.append(str(reason))
    except Exception:  # noqa: BLE001 - a trainer that breaks, or has too little memory, costs its own rows alone
        broken.append(traceback.format_exc())


def conclude(skipped: Sequence[str], broken: Sequence[str]) -> None:
    """Say what `attempted` noted, as the end of a part."""
    reasons = "; ".join(dict.fromkeys(skipped))
    if broken:
        raise Broken("\n".join([*broken, *([f"skipped: {reasons}"] if reasons else [])]))
    if skipped:
        raise Skipped(reasons)


def run(bench: Bench) -> Iterator[Row]:
    peak = matrix_peak(bench)
    yield Row(what="bfloat16 matrix product, measured peak", value=peak / 1e12, unit="TFLOP/s")
    skipped: list[str] = []
    broken: list[str] = []
    for name, shape in bench.shapes.items():
        forget_memory(bench)
        yield from attempted(lambda n=name, s=shape: sampling(bench, n, s), skipped, broken)
        for kind in TRAINERS:
            yield from attempted(
                lambda n=name, s=shape, k=kind: training(bench, n, s, k, peak), skipped, broken
            )
    conclude(skipped, broken)
