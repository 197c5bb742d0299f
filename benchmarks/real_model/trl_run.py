"""The run of rlvr_smollm2.yaml by TRL's GRPOTrainer: same prompts, reward, batch, learning rate.

    python benchmarks/real_model/trl_run.py MODEL_FOLDER STEPS SEED OUT_FOLDER PARTS cpu|cuda:0   # with trl

The batch is learned in PARTS backward passes of equal size: more parts, less memory. Weights, moments and
gradients are float32, the forward pass is bfloat16 by autocast, as in envsdk's run.
"""

import sys
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from envsdk.rewards import Sample
from envsdk.rewards.mathematics import MathArgs, MathReward
from envsdk.rewards.prompt_data.generated_rows import word_problem_rows

PROMPTS, RESPONSES = 16, 8


def train(model: str, num_steps: int, seed: int, out: Path, num_parts: int, device: str) -> None:
    """Train and save the model in `out`."""
    torch.set_num_threads(2)
    reward = MathReward(MathArgs(evaluated=True))

    def score(
        completions: list[list[dict[str, str]]], ground_truth: list[str], **columns: Any
    ) -> list[float]:
        return [
            float(reward.score(Sample(response=said[0]["content"], row={"ground_truth": truth})).value)
            for said, truth in zip(completions, ground_truth, strict=True)
        ]

    rows = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "ground_truth": row["ground_truth"]}
        for row in word_problem_rows("train", 8000)
    ]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=score,
        train_dataset=datasets.Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=str(out / "trl"), max_steps=num_steps, seed=seed, learning_rate=2e-5,
            lr_scheduler_type="constant_with_warmup", warmup_steps=3, max_grad_norm=1.0, beta=0.0,
            per_device_train_batch_size=PROMPTS * RESPONSES // num_parts,
            gradient_accumulation_steps=num_parts, num_generations=RESPONSES,
            max_completion_length=16, temperature=1.0, gradient_checkpointing=False,
            logging_steps=1, report_to=[], save_strategy="no", use_cpu=device == "cpu", bf16=True,
        ),
    )  # fmt: skip
    trainer.train()
    trainer.save_model(str(out / "model"))


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
