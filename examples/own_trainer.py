"""GRPO in a training loop of one's own: envsdk plays, plain PyTorch learns.

    python own_trainer.py agentic_async.yaml 40 exp_name=own

Killed at any time, the same command continues: the checkpoint says which batches its weights have learned
from.
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from envsdk import Batch, EnvsdkError, Rollouts

LEARNING_RATE = 3e-4
ROWS = 32  # sequences at a time


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """One step of the clipped policy gradient on the batch; returns its loss."""
    arrays = batch.to_arrays(library="torch")
    advantages = torch.zeros_like(arrays["logprobs"])
    for row, values in zip(advantages, batch.advantages("grpo"), strict=True):
        row[: len(values)] = torch.from_numpy(values)
    num_tokens = arrays["response_mask"].sum().clamp(min=1)
    total = 0.0
    for start in range(0, len(arrays["ids"]), ROWS):
        rows = {name: value[start : start + ROWS] for name, value in arrays.items()}
        ids, mask = rows["ids"], rows["response_mask"][:, 1:]
        logits = model(input_ids=ids, attention_mask=rows["attention_mask"]).logits[:, :-1].float()
        logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
        ratio = ((logprobs - rows["logprobs"][:, 1:]) * mask).exp()
        gain = advantages[start : start + ROWS, 1:]
        loss = (torch.maximum(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)) * mask).sum() / num_tokens
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return total


def main(source: str, num_steps: int, overrides: list[str], checkpoint: Path) -> None:
    saved = torch.load(checkpoint, weights_only=False) if checkpoint.exists() else None
    with Rollouts(source, overrides, state=saved and saved["rollouts"]) as rollouts:
        model = AutoModelForCausalLM.from_pretrained(rollouts.model, dtype=torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
        if saved is not None:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            rollouts.publish(model.state_dict())
        while rollouts.step < num_steps:
            batch = rollouts.get_batch()
            loss = train_step(model, optimizer, batch)
            print(f"step {rollouts.step}: reward {batch.mean_reward:.3f}, loss {loss:.4f}", flush=True)
            rollouts.publish(model.state_dict())
            if rollouts.step % 10 == 0 or rollouts.step == num_steps:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "rollouts": rollouts.state()}, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").replace(checkpoint)  # whole, or the one before
        print(f"held-out success: {rollouts.validate().success_rate:.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GRPO in plain PyTorch on episodes that envsdk plays")
    parser.add_argument("source", metavar="FILE", help="a YAML file of `envsdk train`")
    parser.add_argument("num_steps", metavar="STEPS", type=int)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[])
    args = parser.parse_args()
    if args.num_steps < 1:
        parser.error(f"STEPS must be at least 1, not {args.num_steps}")
    try:
        main(**vars(args), checkpoint=Path("own_trainer.pt"))
    except KeyboardInterrupt:
        print("interrupted: the same command continues from own_trainer.pt, if it is there", file=sys.stderr)
        sys.exit(130)
    except (EnvsdkError, OSError) as error:
        sys.exit(f"error: {error}")
