"""GRPO by TRL's GRPOTrainer, on episodes of many turns that envsdk plays.

    pip install 'envsdk[train]' trl
    python trl_grpo.py MODEL_FOLDER envsdk/FrozenLake-v1 60

A row of TRL's data set is a task's number. The rollout function plays each as a group under TRL's weights
and gives back the tokens as they were sampled; those of observations are masked.
"""

import argparse
import sys
from typing import Any

import datasets
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import envsdk

GROUP_SIZE, GROUPS_PER_STEP = 8, 8


def given_reward(completions: list[Any], reward: list[float | None], **columns: Any) -> list[float | None]:
    return reward


def tokens_of(episode: envsdk.Trajectory) -> dict[str, Any]:
    """An episode in TRL's form: the first prompt, then replies and observations in turn."""
    tokens = episode.tokens
    if episode.failure is not None or tokens is None or not tokens.response_mask.any():
        # Masked everywhere, and TRL leaves a reward of None out: nothing is learned from it.
        return {"prompt_ids": [0], "completion_ids": [0], "logprobs": [0.0], "env_mask": [0], "reward": None}
    start = int(tokens.response_mask.argmax())
    return {
        "prompt_ids": tokens.ids[:start].tolist(),
        "completion_ids": tokens.ids[start:].tolist(),
        "logprobs": tokens.behavior_logprobs[start:].tolist(),
        "env_mask": tokens.response_mask[start:].tolist(),
        "reward": episode.total_reward,
    }


def train(model: str, env: Any, num_steps: int, learning_rate: float = 3e-4, **play: Any) -> list[float]:
    """Mean reward of each step. `play` are arguments of `envsdk.rollout`, such as `env_config`."""
    with envsdk.LocalEngine(model) as engine:

        def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
            engine.publish(trainer.accelerator.unwrap_model(trainer.model).state_dict())
            tasks = [int(prompt) for prompt in prompts[::GROUP_SIZE]]  # each stands there GROUP_SIZE times
            played = envsdk.rollout_sync(env, policy=engine, tasks=tasks, group_size=GROUP_SIZE, **play)
            rows = [tokens_of(episode) for episode in played]
            return {name: [row[name] for row in rows] for name in rows[0]}

        has_gpu = torch.cuda.is_available()
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model),
            processing_class=AutoTokenizer.from_pretrained(model),
            reward_funcs=given_reward,
            rollout_func=rollout,
            train_dataset=datasets.Dataset.from_dict({"prompt": [str(task) for task in range(10_000)]}),
            args=GRPOConfig(
                output_dir="trl_grpo", max_steps=num_steps, learning_rate=learning_rate,
                per_device_train_batch_size=GROUP_SIZE * GROUPS_PER_STEP, num_generations=GROUP_SIZE,
                logging_steps=1, report_to=[], save_strategy="no", use_cpu=not has_gpu, bf16=has_gpu,
            ),
        )  # fmt: skip
        trainer.train()
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GRPO by TRL on episodes that envsdk plays")
    parser.add_argument("model", metavar="MODEL_FOLDER")
    parser.add_argument("env", metavar="ENVIRONMENT", help="such as envsdk/FrozenLake-v1")
    parser.add_argument("num_steps", metavar="STEPS", type=int)
    try:
        rewards = train(**vars(parser.parse_args()))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except (envsdk.EnvsdkError, OSError) as error:
        sys.exit(f"error: {error}")
    few = min(5, len(rewards))
    print(f"mean reward: {sum(rewards[:few]) / few:.3f} at first, {sum(rewards[-few:]) / few:.3f} at last")
