"""Estimators of step credit at equal episodes: preferences of actions per state learn each task alone.

    python benchmarks/step_credit.py            # some 3 minutes; --docs puts the figures into docs/images

Each of 16 tasks is played by groups of 8. A policy that does not generalize sets estimators apart by the
credit that they give alone. One line per environment and estimator: the share of solved episodes
in the first, the eleventh and the last batch, and the standard error of the last over the seeds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "staleness"))
from figure import draw_curves
from results import Spread

import envsdk
from envsdk.algorithms.advantage_sample import AdvantageSample
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.batches import token_advantages

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "envsdk/FrozenLake-v1": {"size": 4, "p": 0.7, "random_start": True, "random_goal": True},
    "envsdk/Sokoban-v1": {"dim": [6, 6], "num_boxes": 1, "min_pushes": 1},
}
ESTIMATORS = ("grpo", "gigpo", "hgpo", "graphgpo")
ACTIONS = ("Left", "Down", "Right", "Up")
IMAGES = Path(__file__).parents[1] / "docs" / "images"
MAX_TURNS = 12
STEP_SIZE = 0.25


def learning_curve(env_id: str, estimator: str, seed: int, *, batches: int) -> list[float]:
    """The share of solved episodes in each batch."""
    env = envsdk.make(env_id, max_steps=MAX_TURNS, **ENVIRONMENTS[env_id])
    rng = np.random.default_rng(seed)
    preferences: dict[Any, Any] = defaultdict(lambda: np.zeros(len(ACTIONS)))
    args = AlgorithmArgs(adv_estimator=estimator, gamma=0.95)
    curve = []
    for _ in range(batches):
        samples, gradients = [], []
        for task in np.repeat(np.arange(16), 8).tolist():
            env.reset(seed=1000 * seed + task)
            states, slopes, rewards, is_solved, has_ended = [], [], [], False, False
            while not has_ended:
                states.append((task, env.state_hash()))
                chances = np.exp(preferences[states[-1]])
                chances /= chances.sum()
                action = int(rng.choice(len(ACTIONS), p=chances))
                slopes.append(np.eye(len(ACTIONS))[action] - chances)
                _, reward, terminated, truncated, info = env.step(f"<answer>{ACTIONS[action]}</answer>")
                rewards.append(float(reward))
                is_solved, has_ended = bool(info["success"]), terminated or truncated
            samples.append(
                AdvantageSample(
                    group_id=task,
                    response_mask=np.ones(len(states), np.int8),
                    turn_rewards=rewards,
                    turn_spans=[(turn, turn + 1) for turn in range(len(states))],
                    success=is_solved,
                    state_hashes=[state for _, state in states],
                )
            )
            gradients.append(zip(states, slopes, strict=True))
        curve.append(float(np.mean([sample.success for sample in samples])))
        for gradient, result in zip(gradients, token_advantages(args, samples), strict=True):
            for (state, slope), advantage in zip(gradient, result.advantages, strict=True):
                preferences[state] += STEP_SIZE * advantage * slope
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--only", choices=[*ENVIRONMENTS], help="one environment")
    parser.add_argument("--docs", action="store_true", help="put the figures into docs/images")
    options = parser.parse_args()
    for env_id in (each for each in ENVIRONMENTS if options.only in (None, each)):
        drawn = {}
        for name in ESTIMATORS:
            curves = np.array(
                [learning_curve(env_id, name, seed, batches=options.batches) for seed in range(options.seeds)]
            )
            shown = [f"{share:.1%}" for share in curves.mean(0)[[0, min(10, options.batches - 1), -1]]]
            error = curves[:, -1].std(ddof=1) / math.sqrt(options.seeds) if options.seeds > 1 else math.nan
            print(f"{env_id:22} {name:9} {' '.join(shown)} (standard error {error:.1%})", flush=True)
            drawn[name] = {batch: Spread.of(curves[:, batch]) for batch in range(options.batches)}
        title = env_id.removeprefix("envsdk/").removesuffix("-v1")
        if options.docs:
            picture = draw_curves(
                drawn,
                title=f"{title}, 16 tasks that are learned alone",
                subtitle="a table of preferences, no generalization",
                heading="Solved of each batch's 128 episodes",
                num_seeds=options.seeds,
            )
            (IMAGES / f"step-credit-{title.lower()}.svg").write_text(picture)


if __name__ == "__main__":
    main()
