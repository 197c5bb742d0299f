"""Tokens per second of the embedded engine against transformers' `generate`, on the same model.

    python benchmarks/engine.py [--architecture qwen3|llama] [--repeats 5] [--vllm eager|compiled]

Both sample 64 tokens after 32 with temperature 1 and return each token's log-probability, in
float32 on one thread. Runs alternate, so that a busy machine slows both; medians are compared. The
ratio is of CPU seconds, which a busy machine hardly changes; wall times are printed beside it.
With `--vllm` the `vllm` engine takes its turns too, by wall time, as it computes in other processes.
Exits with 1 when a goal of the embedded engine is missed.

Then, of each engine: how long its tokens stand still when 8 long replies get new weights, and how much of
the prompts of 16 episodes of 10 turns it computes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import transformers

from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.engine import Engine, EngineConfig, GenerationRequest
from envsdk.engines.sampling import SamplingParams

PROMPT_TOKENS, NEW_TOKENS, VOCAB_SIZE = 32, 64, 512
GOALS = {1: 2.5, 8: 2.5, 32: 1.7, 128: 1.7}
SEQUENCE_LENGTH = 512
NUM_UPDATES, NUM_LONG_REPLIES = 5, 8
NUM_EPISODES, NUM_TURNS, TURN_TOKENS, OBSERVATION_TOKENS = 16, 10, 8, 32


@dataclass(frozen=True, slots=True)
class Row:
    """One batch size."""

    sequences: int
    engine_tokens_per_s: float
    """By wall clock."""
    generate_tokens_per_s: float
    ratio: float
    """CPU seconds of `generate` over those of the engine."""
    wall_ratio: float
    goal: float
    vllm_tokens_per_s: float | None = None

    @property
    def passed(self) -> bool:
        return self.ratio >= self.goal


def make_model(architecture: str) -> Any:
    """About 0.9 million random parameters."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if architecture == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).eval()
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape)).eval()


def run_generate(model: Any, prompts: torch.Tensor) -> None:
    with torch.inference_mode():
        output = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=NEW_TOKENS,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        logprobs = torch.stack(output.logits, 1).log_softmax(-1)
        sampled = output.sequences[:, PROMPT_TOKENS:]
        chosen = logprobs.gather(2, sampled.unsqueeze(2))
    assert chosen.shape[:2] == (len(prompts), NEW_TOKENS)


@dataclass(frozen=True, slots=True)
class Behavior:
    """What an engine does beside sampling fast."""

    engine: str
    step_ms: float
    """Median time between two steps of 8 replies, without an update."""
    update_pause_ms: float
    """Median over updates of the longest time in which no token came."""
    update_s: float
    """Median duration of the update, most of which replies go on in."""
    prompt_tokens: int
    """Of all turns."""
    prefilled_tokens: int
    """Computed of those."""


async def run_engine(engine: Engine, prompts: list[np.ndarray]) -> None:
    futures = [
        engine.submit(
            GenerationRequest(
                request_id=str(number),
                prompt_ids=prompt,
                sampling=SamplingParams(max_new_tokens=NEW_TOKENS, seed=number),
            )
        )
        for number, prompt in enumerate(prompts)
    ]
    results = await asyncio.gather(*futures)
    assert all(len(result.logprobs) == NEW_TOKENS for result in results)


async def timed(run: Callable[[], Awaitable[None] | None]) -> tuple[float, float]:
    """CPU and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    pending = run()
    if pending is not None:
        await pending
    return time.process_time() - cpu, time.perf_counter() - wall


async def longest_gaps(engine: Engine, model: Any) -> tuple[float, float, float]:
    """Median step, median over updates of the longest time without a token, and median update; seconds."""
    steps: list[float] = []
    pauses: list[float] = []
    updates: list[float] = []
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    for number in range(NUM_UPDATES + 1):
        running = [
            engine.submit(
                GenerationRequest(
                    request_id=f"long-{number}-{index}",
                    prompt_ids=np.arange(PROMPT_TOKENS, dtype=np.int32) + index,
                    sampling=SamplingParams(max_new_tokens=SEQUENCE_LENGTH - PROMPT_TOKENS, seed=index),
                )
            )
            for index in range(NUM_LONG_REPLIES)
        ]
        watching = asyncio.ensure_future(token_times(engine, running))
        await asyncio.sleep(0.2)
        began = time.perf_counter()
        await engine.load_weights(iter(weights.items()), number + 1)
        ended = time.perf_counter()
        await asyncio.gather(*running)
        times = await watching
        gaps = [
            (later - earlier, earlier < ended and later > began)
            for earlier, later in itertools.pairwise(times)
        ]
        if number:  # the first one warms up
            steps += [gap for gap, during_update in gaps if not during_update]
            pauses.append(max(gap for gap, during_update in gaps if during_update))
            updates.append(ended - began)
    return statistics.median(steps), statistics.median(pauses), statistics.median(updates)


async def token_times(engine: Engine, running: list[asyncio.Future[Any]]) -> list[float]:
    """When the count of sampled tokens was seen to grow."""
    times: list[float] = []
    count = engine.health().num_tokens_sampled
    while not all(future.done() for future in running):
        await asyncio.sleep(0.0005)
        if (now := engine.health().num_tokens_sampled) > count:
            count = now
            times.append(time.perf_counter())
    return times


async def play_turns(engine: Engine) -> tuple[int, int]:
    """Prompt tokens of episodes in which each turn's prompt extends the one before, and those computed."""
    before = engine.health()
    draw = np.random.default_rng(0)

    async def episode(name: str) -> None:
        prompt = draw.integers(0, VOCAB_SIZE, OBSERVATION_TOKENS)
        for turn in range(NUM_TURNS):
            request = GenerationRequest(
                request_id=f"{name}-{turn}",
                prompt_ids=prompt.astype(np.int32),
                sampling=SamplingParams(max_new_tokens=TURN_TOKENS, seed=turn),
                session_id=name,
            )
            result = await engine.submit(request)
            observation = draw.integers(0, VOCAB_SIZE, OBSERVATION_TOKENS)
            prompt = np.concatenate([prompt, result.token_ids, observation])

    await asyncio.gather(*(episode(f"episode-{index}") for index in range(NUM_EPISODES)))
    after = engine.health()
    return (
        after.num_prompt_tokens - before.num_prompt_tokens,
        after.num_prefilled_tokens - before.num_prefilled_tokens,
    )


async def behave(name: str, engine: Engine, model: Any) -> Behavior:
    step_s, pause_s, update_s = await longest_gaps(engine, model)
    prompt_tokens, prefilled_tokens = await play_turns(engine)
    return Behavior(
        engine=name,
        step_ms=step_s * 1000,
        update_pause_ms=pause_s * 1000,
        update_s=update_s,
        prompt_tokens=prompt_tokens,
        prefilled_tokens=prefilled_tokens,
    )


async def start_vllm(folder: str, vllm: str) -> Engine | None:
    if not vllm:
        return None
    from envsdk.engines.vllm.engine import VLLMEngine

    engine = VLLMEngine.create(
        EngineConfig(
            model=Path(folder),
            sequence_length=SEQUENCE_LENGTH,
            max_running=max(GOALS),
            strategy_config={"enforce_eager": vllm == "eager"},
        )
    )
    await engine.start()
    return engine


async def measure(architecture: str, repeats: int, vllm: str) -> tuple[list[Row], list[Behavior]]:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = make_model(architecture)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = EngineConfig(model=Path(folder), sequence_length=SEQUENCE_LENGTH, max_running=max(GOALS))
        engine = EmbeddedEngine.create(config)
        await engine.start()
        other = await start_vllm(folder, vllm)
        for count, goal in GOALS.items():
            prompts = np.random.default_rng(count).integers(0, VOCAB_SIZE, (count, PROMPT_TOKENS))
            tensor, arrays = torch.from_numpy(prompts), list(prompts.astype(np.int32))
            ours, theirs = [], []
            others: list[float] = []
            for repeat in range(repeats + 1):
                times = (
                    await timed(lambda arrays=arrays: run_engine(engine, arrays)),
                    await timed(lambda tensor=tensor: run_generate(model, tensor)),
                )
                if other is not None:
                    _, wall = await timed(lambda arrays=arrays: run_engine(other, arrays))
                    others += [wall] if repeat else []
                if repeat:  # the first one warms up
                    ours.append(times[0])
                    theirs.append(times[1])
            (our_cpu, our_wall), (their_cpu, their_wall) = (
                [statistics.median(column) for column in zip(*pairs, strict=True)] for pairs in (ours, theirs)
            )
            rows.append(
                Row(
                    sequences=count,
                    engine_tokens_per_s=count * NEW_TOKENS / our_wall,
                    generate_tokens_per_s=count * NEW_TOKENS / their_wall,
                    ratio=their_cpu / our_cpu,
                    wall_ratio=their_wall / our_wall,
                    goal=goal,
                    vllm_tokens_per_s=count * NEW_TOKENS / statistics.median(others) if others else None,
                )
            )
        behaviors = [await behave("embedded", engine, model)]
        await engine.close()
        if other is not None:
            behaviors.append(await behave(f"vllm {vllm}", other, model))
            await other.close()
    return rows, behaviors


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", choices=("qwen3", "llama"), default="qwen3")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--vllm", choices=("eager", "compiled"), default="", help="measure vLLM too, where it is installed"
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    rows, behaviors = asyncio.run(measure(arguments.architecture, arguments.repeats, arguments.vllm))
    print(f"{arguments.architecture}, {PROMPT_TOKENS} + {NEW_TOKENS} tokens, float32, one thread")
    print("sequences  engine tok/s  generate tok/s  vllm tok/s  ratio (CPU)  ratio (wall)  goal")
    for row in rows:
        vllm = f"{row.vllm_tokens_per_s:.0f}" if row.vllm_tokens_per_s else "-"
        print(
            f"{row.sequences:9d}  {row.engine_tokens_per_s:12.0f}  {row.generate_tokens_per_s:14.0f}"
            f"  {vllm:>10}  {row.ratio:11.2f}  {row.wall_ratio:12.2f}"
            f"  {row.goal:.1f} {'PASS' if row.passed else 'FAIL'}"
        )
    print("engine         step ms  pause at update ms  update s  prompt tokens  computed")
    for found in behaviors:
        print(
            f"{found.engine:<13}  {found.step_ms:7.1f}  {found.update_pause_ms:18.1f}  {found.update_s:8.3f}"
            f"  {found.prompt_tokens:13d}  {found.prefilled_tokens / found.prompt_tokens:7.1%}"
        )
    if arguments.json:
        record = {
            "architecture": arguments.architecture,
            "rows": [asdict(row) for row in rows],
            "behaviors": [asdict(found) for found in behaviors],
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
