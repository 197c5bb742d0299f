"""The evaluations that ship with envsdk: the entry points of `envsdk.evals`.

Replies are sampled at temperature 0. For pass@k, override `actor_infer.generating_args.temperature`.
"""

from __future__ import annotations

from typing import Any

from envsdk.config.rlvr import PROMPTS_ENV
from envsdk.rewards.prompt_data.english_sums import LEVELS
from envsdk.rollouts.play.eval_spec import EvalSpec


def _greedy(max_new_tokens: int) -> dict[str, Any]:
    return {"generating_args": {"temperature": 0.0, "max_new_tokens": max_new_tokens}}


def _tags(env_type: str, configs: dict[str, dict[str, Any]], **keys: Any) -> dict[str, dict[str, Any]]:
    return {tag: {"env_type": env_type, "env_config": config, **keys} for tag, config in configs.items()}


SUMS = EvalSpec(
    name="sums",
    about="Arithmetic in English: 100 sums of each of three difficulties.",
    custom_envs=_tags(
        PROMPTS_ENV,
        {
            f"sums_{level}": {"files": ["generated:english_sums_val"], "tags": [level], "reward": "math"}
            for level in LEVELS
        },
        agent_system_template="Work out the answer. End with it in \\boxed{}, such as \\boxed{12}.",
    ),
    actor_infer=_greedy(256),
)
FROZEN_LAKE = EvalSpec(
    name="frozen_lake",
    about="FrozenLake with random start and goal, on lakes of 4, 6 and 8 cells a side.",
    custom_envs=_tags(
        "envsdk/FrozenLake-v1",
        {
            f"lake_{size}": {"size": size, "random_start": True, "random_goal": True, "compass": True}
            for size in (4, 6, 8)
        },
    ),
    sequence_length=4096,
    actor_infer=_greedy(64),
)
SOKOBAN = EvalSpec(
    name="sokoban",
    about="Sokoban with one and with two boxes, in rooms of 6 by 6 cells.",
    custom_envs=_tags(
        "envsdk/Sokoban-v1",
        {f"boxes_{number}": {"dim": [6, 6], "num_boxes": number, "compass": True} for number in (1, 2)},
    ),
    sequence_length=4096,
    actor_infer=_greedy(64),
)
