"""Tokens per second of the embedded engine against transformers' `generate`, on the same model.

    python benchmarks/engine.py [--architecture qwen3|llama] [--repeats 5] [--json FILE]

Both sample 64 tokens after 32 with temperature 1 and return each token's log-probability, in
float32 on one thread. Runs alternate, so that a busy machine slows both; medians are compared. The
ratio is of CPU seconds, which a busy machine hardly changes; wall times are printed beside it.
Exits with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
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

from envsdk.inference.embedded import EmbeddedEngine
from envsdk.inference.engine import EngineConfig, GenerationRequest, SamplingParams

PROMPT_TOKENS, NEW_TOKENS, VOCAB_SIZE = 32, 64, 512
GOALS = {1: 2.5, 8: 2.5, 32: 1.7, 128: 1.7}


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


async def run_engine(engine: EmbeddedEngine, prompts: list[np.ndarray]) -> None:
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


async def measure(architecture: str, repeats: int) -> list[Row]:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = make_model(architecture)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = EngineConfig(model=Path(folder), sequence_length=512, max_running=max(GOALS))
        engine = EmbeddedEngine.create(config)
        await engine.start()
        for count, goal in GOALS.items():
            prompts = np.random.default_rng(count).integers(0, VOCAB_SIZE, (count, PROMPT_TOKENS))
            tensor, arrays = torch.from_numpy(prompts), list(prompts.astype(np.int32))
            ours, theirs = [], []
            for repeat in range(repeats + 1):
                times = (
                    await timed(lambda arrays=arrays: run_engine(engine, arrays)),
                    await timed(lambda tensor=tensor: run_generate(model, tensor)),
                )
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
                )
            )
        await engine.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", choices=("qwen3", "llama"), default="qwen3")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    rows = asyncio.run(measure(arguments.architecture, arguments.repeats))
    print(f"{arguments.architecture}, {PROMPT_TOKENS} + {NEW_TOKENS} tokens, float32, one thread")
    print("sequences  engine tok/s  generate tok/s  ratio (CPU)  ratio (wall)  goal")
    for row in rows:
        print(
            f"{row.sequences:9d}  {row.engine_tokens_per_s:12.0f}  {row.generate_tokens_per_s:14.0f}"
            f"  {row.ratio:11.2f}  {row.wall_ratio:12.2f}  {row.goal:.1f} {'PASS' if row.passed else 'FAIL'}"
        )
    if arguments.json:
        record = {"architecture": arguments.architecture, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
