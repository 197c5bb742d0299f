"""Maps, observations, rewards and oracles of the grid worlds by seed, which data sets depend on."""

import hashlib
import json

import numpy as np
import pytest

import envsdk
from envsdk.envs.grid import REPLIES

REPLIES_PLAYED = (*REPLIES, "down", "I would go right.", "<answer>Jump</answer>")

GOLDEN = [
    ("envsdk/FrozenLake-v1", {}, "aa244bec8a66a2eb"),
    (
        "envsdk/FrozenLake-v1",
        {"is_slippery": True, "step_penalty": 0.01, "legend": False},
        "36f3b72c98ec2a0c",
    ),
    (
        "envsdk/FrozenLake-v1",
        {"size": 7, "p": 0.4, "random_start": True, "random_goal": True, "min_distance": 5, "compass": True},
        "300cf8944126d9bc",
    ),
    (
        "envsdk/FrozenLake-v1",
        {"size": 6, "random_goal": True, "symbols": {"hole": "●"}, "invalid_penalty": 0.3},
        "02ba34e72d37fb21",
    ),
    ("envsdk/Sokoban-v1", {}, "fde131fe9476b112"),
    ("envsdk/Sokoban-v1", {"preset": "LargerSokoban", "compass": True, "legend": False}, "b9cdf9e86f844b56"),
    (
        "envsdk/Sokoban-v1",
        {
            "preset": "SokobanDifferentGridVocab",
            "step_penalty": 0.1,
            "box_on_target_reward": 0.7,
            "success_reward": 10.0,
            "invalid_penalty": 0.2,
        },
        "b0ed79c080badd88",
    ),
]
"""Environment, configuration, digest of its episodes."""


def episodes(env_id, kwargs, num_seeds=30):
    """All that a player sees of `num_seeds` episodes of random, invalid and oracle replies, as JSON lines."""
    env = envsdk.make(env_id, render_mode="ansi", **kwargs)
    for seed in range(num_seeds):
        rng = np.random.default_rng(seed)
        observation, info = env.reset(seed=seed)
        yield [seed, observation, info, env.state_hash(), env.oracle(), list(env.legal_actions())]
        over = False
        while not over:
            choice = int(rng.integers(2 * len(REPLIES_PLAYED)))
            action = REPLIES_PLAYED[choice] if choice < len(REPLIES_PLAYED) else env.oracle()
            observation, reward, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            yield [
                action,
                observation,
                repr(reward),
                terminated,
                truncated,
                info,
                env.render(),
                env.state_hash(),
            ]
        yield list(env.step("Left"))
        yield env.restore(env.snapshot())


@pytest.mark.parametrize(("env_id", "kwargs", "digest"), GOLDEN)
def test_the_same_seeds_give_the_same_episodes(env_id, kwargs, digest):
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in episodes(env_id, kwargs))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest
