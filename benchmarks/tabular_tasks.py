"""What samplers, prefixes, curricula, averages and supports do to a tabular policy in as many episodes.

    python benchmarks/tabular_tasks.py             table and figures, five minutes on a core
    python benchmarks/tabular_tasks.py --docs      ... and the figures into docs/images

No model, no Ray: a softmax over four moves for each of 720 situations (which way the goal is, which
neighbors are holes, the last move) learns FrozenLake from GRPO's advantages. The samplers, the prefixes and
the environment are the product's. Lakes, sampling and seeds differ between the runs of a variant.

With `top_p` moves are drawn from the likeliest that have so much probability. The gradient is then that of
log-probabilities over these (`support`), as the trainers take it, or over all moves. `ema_decay` evaluates
averaged weights.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "staleness"))
from figure import draw_curves
from results import Spread

import envsdk
from envsdk.algorithms.task_samplers.contract import PlayedGroup, SamplerConfig, TagTasks, load_sampler
from envsdk.algorithms.task_samplers.prefixes import EndedEpisode, PrefixArgs, PrefixSampling, num_replayed
from envsdk.contracts.trajectory import Task
from envsdk.managers.ledger_parts import TagOrder
from envsdk.managers.traj_env_manager import TurnCurriculum

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SEEDS = (1, 2, 3)
GROUP_SIZE, GROUPS, EVERY, HELD_OUT, RATE = 8, 8, 5, 256, 16.0
MOVES = ("Left", "Down", "Right", "Up")
STEPS_OF = ((0, -1), (1, 0), (0, 1), (-1, 0))


@dataclass(frozen=True)
class Experiment:
    """Variants of one setup."""

    name: str
    title: str
    lakes: dict[str, dict[str, Any]]
    """Arguments of the environment by tag."""
    num_steps: int
    variants: dict[str, dict[str, Any]]
    """By name: settings of the sampler (`name`), of the prefixes (`source`), or of `Learning`."""


@dataclass(frozen=True)
class Learning:
    """How a variant plays and learns."""

    rate: float = RATE
    top_p: float = 1.0
    support: bool = True
    """Whether the gradient is that of log-probabilities over the moves that could be drawn."""
    ema_decay: float = 0.0
    """Of the weights that are evaluated; 0: those that are trained."""
    turns: TurnCurriculum | None = None


NEAR = Experiment(
    "task-sampling",
    "FrozenLake, 128 lakes chosen by each sampler",
    {"lake": {"size": 6, "p": 0.7, "random_start": True, "random_goal": True, "max_steps": 16}},
    60,
    {
        "uniform": {"name": "weighted", "choose": "tasks"},
        "difficulty": {"name": "difficulty"},
        "learnability": {"name": "learnability"},
        "learnability, gate": {"name": "learnability", "gate": {"after": 8, "look_again": 100}},
    },
)
TAGS = Experiment(
    "tag-sampling",
    "FrozenLake, three tags that are easy, medium and nearly never solved",
    {
        "near": {"size": 3, "p": 0.9, "max_steps": 12},
        "middle": {"size": 6, "p": 0.7, "random_start": True, "random_goal": True, "max_steps": 16},
        "far": {"size": 8, "p": 0.7, "max_steps": 24},
    },
    60,
    {
        "uniform": {"name": "weighted", "choose": "tags"},
        "difficulty": {"name": "difficulty", "choose": "tags"},
        "learnability": {"name": "learnability", "choose": "tags"},
    },
)
FAR = Experiment(
    "prefix-sampling",
    "FrozenLake, from one corner to the other",
    {"lake": {"size": 8, "p": 0.7, "max_steps": 24}},
    60,
    {"beginning": {}, "prefix": {"source": "oracle"}},
)


TURNS = Experiment(
    "turn-curriculum",
    "FrozenLake, episodes of 16 turns, or of 4 and 2 more every 5 steps",
    NEAR.lakes,
    60,
    {
        "16 turns": {},
        "4 turns, then more": {"turns": TurnCurriculum(start=4, add=2, every=5 * GROUPS)},
    },
)
AVERAGE = Experiment(
    "averaged-weights",
    "FrozenLake at four times the learning rate: weights as they are, or averaged (ema_decay 0.9)",
    NEAR.lakes,
    60,
    {"weights": {"rate": 4 * RATE}, "averaged": {"rate": 4 * RATE, "ema_decay": 0.9}},
)
SUPPORT = Experiment(
    "sampling-support",
    "FrozenLake, moves sampled at top_p 1 or 0.9; log-probabilities over the same, or over all",
    NEAR.lakes,
    60,
    {
        "top_p 1": {},
        "0.9, same support": {"top_p": 0.9},
        "0.9, all moves": {"top_p": 0.9, "support": False},
    },
)


EXPERIMENTS = (NEAR, TAGS, FAR, TURNS, AVERAGE, SUPPORT)


def kept(chances: np.ndarray, top_p: float) -> np.ndarray:
    """The likeliest moves that have so much probability together, as one distribution."""
    order = np.argsort(-chances, kind="stable")
    before = np.cumsum(chances[order]) - chances[order]
    found = np.zeros_like(chances)
    found[order[before < top_p]] = chances[order[before < top_p]]
    return found / found.sum()


class Player:
    """The policy's table, and the environments that it plays."""

    def __init__(self, lakes: dict[str, dict[str, Any]], seed: int, learning: Learning = Learning()) -> None:
        self.learning = learning
        self.envs = {tag: envsdk.make("envsdk/FrozenLake-v1", **lake) for tag, lake in lakes.items()}
        self.env: Any = None
        self.table = np.zeros((9 * 16 * 5, 4))
        self.average = self.table.copy()
        self.rng = np.random.default_rng(seed)

    def situation(self, last: int) -> int:
        lake, cell = self.env.unwrapped.get_state()
        size = lake.size
        row, column = divmod_cell(cell, size)
        to_row, to_column = divmod_cell(lake.goal, size)
        way = 3 * (np.sign(to_row - row) + 1) + np.sign(to_column - column) + 1
        holes = 0
        for number, (down, right) in enumerate(STEPS_OF):
            near, beside = row + down, column + right
            is_inside = 0 <= near < size and 0 <= beside < size
            there = near * (size + 1) + beside
            holes |= (is_inside and there not in lake.ice and there != lake.goal) << number
        return int((way * 16 + holes) * 5 + last)

    def chances(self, at: int) -> np.ndarray:
        """Of each move."""
        chances = np.exp(self.table[at] - self.table[at].max())
        return np.asarray(chances / chances.sum())

    def play(self, task: Task, seed: int, replies: Sequence[str] = (), *, limit: float = np.inf) -> Episode:
        self.env = self.envs[task.tag]
        self.env.reset(seed=task.seed(seed))
        episode, last, is_over = Episode(), 4, False
        for reply in replies:
            *_, info = self.env.step(reply)
            last = next(number for number, move in enumerate(MOVES) if move in reply)
        episode.replies += replies
        while not is_over and len(episode.steps) < limit:
            at = self.situation(last)
            last = int(self.rng.choice(4, p=kept(self.chances(at), self.learning.top_p)))
            episode.replies.append(f"<answer>{MOVES[last]}</answer>")
            *_, terminated, truncated, info = self.env.step(episode.replies[-1])
            episode.steps.append((at, last))
            episode.success, is_over = bool(info["success"]), terminated or truncated
        return episode

    def oracle(self, task: Task, seed: int) -> list[str]:
        self.env = self.envs[task.tag]
        self.env.reset(seed=task.seed(seed))
        replies, is_over = [], False
        while not is_over:
            replies.append(self.env.unwrapped.oracle())
            *_, terminated, truncated, _ = self.env.step(replies[-1])
            is_over = terminated or truncated
        return replies

    def learn(self, group: Sequence[Episode]) -> None:
        rewards = np.array([episode.success for episode in group], float)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for episode, advantage in zip(group, advantages, strict=True):
            for at, move in episode.steps:
                counted = self.learning.top_p if self.learning.support else 1.0
                gradient = -kept(self.chances(at), counted)
                gradient[move] += 1
                self.table[at] += self.learning.rate * advantage * gradient / (GROUP_SIZE * GROUPS)


@dataclass
class Episode:
    steps: list[tuple[int, int]] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    success: bool = False


def divmod_cell(cell: int, size: int) -> tuple[int, int]:
    """Row and column: cells are places in the text of the map, whose lines end in a line break."""
    return divmod(cell, size + 1)


def run(experiment: Experiment, variant: str, seed: int) -> tuple[dict[int, float], float]:
    """Held-out success by step, and the share of the groups that were solved sometimes."""
    settings = experiment.variants[variant]
    is_learning = not {"name", "source"} & settings.keys()
    learning = Learning(**settings) if is_learning else Learning()
    player, tags = Player(experiment.lakes, seed, learning), list(experiment.lakes)
    order, sampler, prefixes = TagOrder(dict.fromkeys(tags, 1), "train"), None, None
    if "name" in settings:
        args = {key: value for key, value in settings.items() if key != "name"}
        tasks = {tag: TagTasks(num_tasks=128) for tag in tags}
        sampler = load_sampler(SamplerConfig(name=settings["name"], args=args, tasks=tasks, seed=seed), order)
    elif not is_learning:
        prefixes = PrefixSampling(PrefixArgs(**settings))
    curve, mixed, number = {}, [], 0
    for step in range(experiment.num_steps + 1):
        if step % EVERY == 0:
            held_out = (
                Task(tag=tag, split="val", index=index)
                for tag in tags
                for index in range(HELD_OUT // len(tags))
            )
            trained = player.table
            player.table = player.average if learning.ema_decay else trained
            curve[step] = statistics.fmean(player.play(task, 0).success for task in held_out)
            player.table = trained
        groups = []
        for _ in range(GROUPS if step < experiment.num_steps else 0):
            task = sampler.next_task() if sampler else Task(tag="lake", split="train", index=number)
            prefix = prefixes.prefix_of(number, task) if prefixes else None
            replies = player.oracle(task, seed) if prefix else []
            given = replies[: num_replayed(len(replies), prefix.share)] if prefix else []
            limit = learning.turns.limit(number) if learning.turns else np.inf
            group = [player.play(task, seed, given, limit=limit) for _ in range(GROUP_SIZE)]
            groups.append((number, task, group))
            number += 1
        for number_of, task, group in groups:
            player.learn(group)
            successes = [episode.success for episode in group]
            mixed.append(0 < sum(successes) < GROUP_SIZE)
            if sampler:
                rewards = list(map(float, successes))
                sampler.observe(PlayedGroup(task=task, successes=successes, rewards=rewards))
            if prefixes:
                ended = [EndedEpisode(success=each.success, replies=each.replies) for each in group]
                prefixes.observe(number_of, task, ended)
        decay = min(learning.ema_decay, (step + 1) / (10 + step))  # as the trainers do
        player.average = decay * player.average + (1 - decay) * player.table
    return curve, statistics.fmean(mixed)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", action="store_true", help="put the figures into docs/images")
    parser.add_argument("--only", help="one experiment, by its figure's name")
    options = parser.parse_args(argv)
    for experiment in (each for each in EXPERIMENTS if options.only in (None, each.name)):
        print("| variant | start | end | groups solved sometimes |", "| --- " * 4 + "|", sep="\n")
        curves = {}
        for variant in experiment.variants:
            found = [run(experiment, variant, seed) for seed in SEEDS]
            curve = {step: Spread.of(each[step] for each, _ in found) for step in found[0][0]}
            curves[variant] = curve
            first, *_, last = curve.values()
            share = statistics.fmean(share for _, share in found)
            ends = " | ".join(
                f"{each.mean:.1%} ({each.low:.0%} to {each.high:.0%})" for each in (first, last)
            )
            print(f"| {variant} | {ends} | {share:.0%} |", flush=True)
        picture = draw_curves(
            curves,
            title=experiment.title,
            subtitle=f"{HELD_OUT} held-out lakes, a tabular policy from scratch",
            num_seeds=len(SEEDS),
        )
        if options.docs and experiment is not NEAR:
            (IMAGES / f"{experiment.name}.svg").write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
