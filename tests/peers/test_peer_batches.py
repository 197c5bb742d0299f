"""Our results in verl's container, and verl's advantages of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from envsdk import Outcome, Task, TokenLog, Trajectories, Trajectory, Turn, VersionSpan

pytest.importorskip("verl", reason="needs verl: make test-peers")

from verl import DataProto
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

pytestmark = pytest.mark.peers


def episode(rng: np.random.Generator, *, group: int) -> Trajectory:
    """Up to three turns of drawn tokens and rewards."""
    log, turns = TokenLog(), []
    for _ in range(rng.integers(1, 4)):
        log.append_prompt(rng.integers(1, 9, rng.integers(1, 4)).tolist())
        start, reply = len(log), rng.integers(1, 9, rng.integers(1, 5)).tolist()
        log.append_sampled(reply, [-0.5] * len(reply), [VersionSpan(version=0, start=0, end=len(reply))])
        reward = float(rng.integers(0, 2))
        turns.append(
            Turn(observation="", reply="", reward=reward, response_start=start, response_end=len(log))
        )
    return Trajectory(
        trajectory_id="",
        group_id=group,
        task=Task(tag="Lake", split="train", index=group),
        seed=0,
        outcome=Outcome.TERMINATED,
        success=False,
        turns=turns,
        tokens=log.arrays(),
        started_at=0.0,
        ended_at=0.0,
    )


def test_verl_takes_our_batch_and_finds_the_same_advantages(write_down: Callable[..., None]) -> None:
    rng = np.random.default_rng(3)
    trajectories = Trajectories(episode(rng, group=group) for group in range(4) for _ in range(4))
    data = DataProto.from_dict(**trajectories.to_verl())
    assert len(data) == len(trajectories)
    theirs, _ = compute_grpo_outcome_advantage(
        token_level_rewards=data.batch["rm_scores"],
        response_mask=data.batch["response_mask"],
        index=data.non_tensor_batch["uid"],
    )
    arrays = trajectories.to_arrays()
    masks = [
        row[mask == 1] == 1
        for row, mask in zip(arrays["response_mask"], arrays["attention_mask"], strict=True)
    ]
    ours = np.concatenate([each[mask] for each, mask in zip(trajectories.advantages(), masks, strict=True)])
    assert ours.any()
    difference = float((theirs[data.batch["response_mask"] == 1] - torch.from_numpy(ours)).abs().max())
    write_down("`Trajectories.to_verl`, grpo", "verl: `DataProto`, grpo", f"{difference:.1e}", "1e-5")
    assert difference < 1e-5
