"""One training step on a real model, beside a plain PyTorch loop and TRL.

    python benchmarks/real_model_training.py --model FOLDER [--quick] [--steps 2] [--threads 1] [--dtype auto]

Groups of replies to one prompt, as in GRPO. All train the same rows in bfloat16 with float32 weights:
`envsdk` is the trainer `torch`; `loop` is transformers under autocast with padded rows; `trl` is
`GRPOTrainer`, its generation replaced by the rows, where TRL is installed. Each is a process of its own; the
first step, which allocates, is left out. Compared are seconds of CPU time, which other work on the machine
disturbs less than the clock, and the peak of memory. Exits with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from envsdk.contracts.trainer import TrainBatch, TrainerConfig, TrainSequence

REPLY_TOKENS, GROUP_SIZE = 16, 8
MIN_SPEED, MAX_MEMORY = 1.3, 0.6
"""Tokens per second and peak memory of `envsdk`, over those of the others."""


class Steps:
    """Seconds that steps took."""

    def __init__(self) -> None:
        self.cpu_s: list[float] = []
        self.wall_s: list[float] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure one."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu_s.append(time.process_time() - cpu)
        self.wall_s.append(time.perf_counter() - wall)


def make_rows(model: Path, num_groups: int) -> list[TrainSequence]:
    """Prompts in the model's own chat format; replies of random tokens, half of them rewarded."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    rng, rows = np.random.default_rng(0), []
    for _ in range(num_groups):
        one, other = rng.integers(2, 81, 2)
        question = [{"role": "user", "content": f"What is {one} + {other}? Answer with one number."}]
        prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
        for member in range(GROUP_SIZE):
            reply = rng.integers(0, len(tokenizer), rng.integers(REPLY_TOKENS // 4, REPLY_TOKENS + 1))
            mask = np.repeat([0, 1], [len(prompt), len(reply)])
            rows.append(
                TrainSequence(
                    ids=np.concatenate([prompt, reply]).astype(np.int32),
                    response_mask=mask.astype(np.int8),
                    behavior_logprobs=np.zeros(len(mask), np.float32),
                    advantages=((1.0 if member % 2 else -1.0) * mask).astype(np.float32),
                )
            )
    return rows


def run_envsdk(options: argparse.Namespace, rows: list[TrainSequence], steps: Steps) -> dict[str, Any]:
    from envsdk.trainers.torch_trainer import TorchTrainer

    trainer = TorchTrainer.create(
        TrainerConfig(
            model=options.model,
            sequence_length=1024,
            seed=0,
            algorithm={"pg_variant": "vanilla"},
            training_args={"learning_rate": 1e-6, "max_tokens_per_microbatch": options.tokens_at_once},
            strategy_config={"dtype": options.dtype, "num_threads": options.threads},
        )
    )
    behavior = trainer.logprobs([row.ids for row in rows])
    rows = [replace(row, behavior_logprobs=each) for row, each in zip(rows, behavior, strict=True)]
    for number in range(options.steps + 1):
        with steps.step():
            metrics = trainer.train_step(TrainBatch(step=number, sequences=rows))
    return {"computed": metrics["actor/num_computed_tokens"], "grad_norm": metrics["actor/grad_norm"]}


def run_loop(options: argparse.Namespace, rows: list[TrainSequence], steps: Steps) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
    num_scored = sum(int(row.response_mask.sum()) for row in rows)
    computed = 0
    for _ in range(options.steps + 1):
        computed = 0
        with steps.step():
            for start in range(0, len(rows), options.rows_at_once):
                part = rows[start : start + options.rows_at_once]
                ids, mask, advantages = (
                    torch.nn.utils.rnn.pad_sequence([torch.from_numpy(value(row)) for row in part], True)
                    for value in _COLUMNS
                )
                computed += ids.numel()
                with torch.autocast("cpu", torch.bfloat16):
                    logits = model(input_ids=ids.long(), attention_mask=(ids >= 0).long()).logits[:, :-1]
                table = torch.log_softmax(logits.float(), -1)
                logprobs = table.gather(-1, ids[:, 1:, None].long())[..., 0]
                loss = -(logprobs * advantages[:, 1:] * mask[:, 1:]).sum() / num_scored
                loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            adam.zero_grad()
    return {"computed": computed, "grad_norm": float(norm)}


_COLUMNS: tuple[Callable[[TrainSequence], Any], ...] = (
    lambda row: row.ids,
    lambda row: row.response_mask,
    lambda row: row.advantages,
)


def run_trl(options: argparse.Namespace, rows: list[TrainSequence], steps: Steps) -> dict[str, Any]:
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(options.threads)
    num_prompt = [int(np.argmax(row.response_mask)) for row in rows]

    def padded(parts: list[Any], *, side: str) -> tuple[torch.Tensor, torch.Tensor]:
        ids = [torch.from_numpy(part.astype(np.int64)) for part in parts]
        ones = [torch.ones_like(each) for each in ids]
        return tuple(torch.nn.utils.rnn.pad_sequence(each, True, padding_side=side) for each in (ids, ones))  # type: ignore[return-value]

    class OfRows(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            prompts = padded([row.ids[:n] for row, n in zip(rows, num_prompt, strict=True)], side="left")
            replies = padded([row.ids[n:] for row, n in zip(rows, num_prompt, strict=True)], side="right")
            return {
                "prompt_ids": prompts[0],
                "prompt_mask": prompts[1],
                "completion_ids": replies[0],
                "completion_mask": replies[1],
                "advantages": torch.tensor([float(row.advantages[-1]) for row in rows]),
                "num_items_in_batch": replies[1].sum(),
            }

    class Measure(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.measured = steps.step()
            self.measured.__enter__()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.measured.__exit__(None, None, None)

    with tempfile.TemporaryDirectory() as folder:
        trainer = OfRows(
            model=str(options.model),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=min(len(rows), options.rows_at_once),
                gradient_accumulation_steps=max(1, len(rows) // options.rows_at_once),
                num_generations=GROUP_SIZE,
                max_completion_length=REPLY_TOKENS,
                max_steps=options.steps + 1,
                learning_rate=1e-6,
                beta=0.0,
                bf16=True,
                use_cpu=True,
                gradient_checkpointing=False,
                model_init_kwargs={"dtype": "float32"},
                report_to=[],
                disable_tqdm=True,
                save_strategy="no",
                logging_strategy="no",
            ),
            train_dataset=Dataset.from_dict({"prompt": ["?"] * len(rows)}),
            processing_class=AutoTokenizer.from_pretrained(options.model),
            callbacks=[Measure()],
        )
        trainer.train()
    longest = max(num_prompt) + max(len(row.ids) - n for row, n in zip(rows, num_prompt, strict=True))
    return {"computed": longest * len(rows)}


RUNS = {"envsdk": run_envsdk, "loop": run_loop, "trl": run_trl}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One of `RUNS`, in this process."""
    rows, steps = make_rows(options.model, options.groups), Steps()
    found = RUNS[name](options, rows, steps)
    return {
        **found,
        "tokens": sum(len(row.ids) for row in rows),
        "cpu_s": statistics.median(steps.cpu_s[1:]),
        "wall_s": statistics.median(steps.wall_s[1:]),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a Hugging Face folder with a chat template")
    parser.add_argument("--groups", type=int, default=16, help="prompts; each has 8 replies")
    parser.add_argument("--steps", type=int, default=2, help="measured after the first")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--tokens-at-once", type=int, default=4096, help="max_tokens_per_microbatch of envsdk"
    )
    parser.add_argument(
        "--rows-at-once", type=int, default=64, help="of the others; 64 are some 4,000 tokens"
    )
    parser.add_argument("--dtype", default="auto", help="of envsdk")
    parser.add_argument("--quick", action="store_true", help="4 prompts and one step")
    parser.add_argument("--only", choices=RUNS, nargs="+", default=list(RUNS))
    parser.add_argument("--one", choices=RUNS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model is None:
        print("nothing is measured without --model FOLDER")
        return 0
    if options.quick:
        options.groups, options.steps = 4, 1
    if options.one:
        print(json.dumps(measure(options.one, options)))
        return 0
    found: dict[str, dict[str, Any]] = {}
    for name in options.only:
        if name == "trl" and find_spec("trl") is None:
            print("trl         not installed")
            continue
        command = [sys.executable, __file__, *sys.argv[1:], "--one", name]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found[name] = each = json.loads(output.splitlines()[-1])
        print(
            f"{name:8} {each['tokens'] / each['cpu_s']:7.0f} tokens per CPU second, "
            f"{each['tokens'] / each['wall_s']:7.0f} per second, peak {each['peak_gib']:5.2f} GiB; "
            f"{each['tokens']} tokens in rows, {each['computed']:.0f} computed, "
            f"gradient norm {each.get('grad_norm', float('nan')):.4f}",
            flush=True,
        )
    is_met = True
    ours = found.pop("envsdk", None)
    for name, other in found.items() if ours is not None else ():
        speed, memory = other["cpu_s"] / ours["cpu_s"], ours["peak_gib"] / other["peak_gib"]
        is_met = is_met and speed >= MIN_SPEED and memory <= MAX_MEMORY
        print(
            f"over {name}: {speed:.2f} x the speed (goal {MIN_SPEED}), {memory:.2f} x the memory "
            f"(goal {MAX_MEMORY})"
        )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
