"""Task samplers against a reference in plain Python, which keeps every result and recounts at every draw."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from envsdk.algorithms.task_samplers.contract import (
    PlayedGroup,
    SamplerConfig,
    TagTasks,
    TaskSampler,
    load_sampler,
    saved_state,
)
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.seeds import stable_seed
from envsdk.contracts.trajectory import Task
from envsdk.managers.ledger_parts import TagOrder
from tests.by_day import examples

TAGS = {"a": 2, "b": 1}
RANKS = {"a": [3, 0, 2, 1, 1], "b": [5, 4, 0]}
GATE = {"after": 2, "look_again": 4}


def make(
    name: str, state: Mapping[str, Any] | None = None, order: TagOrder | None = None, **args: Any
) -> TaskSampler[Any]:
    tasks = {tag: TagTasks(num_tasks=len(ranks), ranks=ranks) for tag, ranks in RANKS.items()}
    # As the log of a ledger keeps it.
    written = json.dumps(asdict(SamplerConfig(name=name, args=args, tasks=tasks, seed=7)))
    config = TypeAdapter(SamplerConfig).validate_json(written)
    return load_sampler(config, order or TagOrder(TAGS, "train"), state)


Arm = tuple[str, int]
Group = tuple[list[bool], list[float], int]
"""Successes, rewards, and the draws before they came."""


class Reference:
    """The formulas of `scored.py`, told from the whole history."""

    def __init__(self, name: str, args: Mapping[str, Any]) -> None:
        self.name, self.args = name, args
        self.choose = args.get("choose", "both" if name == "weighted" else "tasks")
        self.groups: dict[Arm, list[Group]] = {}
        self.in_play: Counter[Arm] = Counter()
        self.draws = 0
        self.order = TagOrder(TAGS, "train")
        self.in_order: Counter[str] = Counter()
        """How many were played in order, by list."""

    def arms(self, tags: Sequence[str]) -> list[Arm]:
        if self.choose == "tags":
            return [(tag, -1) for tag in tags]
        return [(tag, index) for tag in tags for index in range(len(RANKS[tag]))]

    def window(self, arm: Arm) -> list[bool]:
        played = [success for group in self.groups.get(arm, ()) for success in group[0]]
        return played[-self.args.get("window", 32) :]

    def rate(self, arm: Arm) -> float:
        window = self.window(arm)
        return (sum(window) + 1) / (len(window) + 2)

    def rests(self, arm: Arm) -> bool:
        window, gate = self.window(arm), self.args.get("gate")
        if gate is None or len(window) < gate["after"]:
            return False
        is_settled = sum(window) in (0, len(window))
        return is_settled and self.draws - self.groups[arm][-1][2] < gate["look_again"]

    def rank(self, arm: Arm) -> int:
        return list(TAGS).index(arm[0]) if self.choose == "tags" else RANKS[arm[0]][arm[1]]

    def weights(self, free: list[Arm], whole: list[Arm]) -> list[float]:
        if self.name == "weighted":
            given = self.args.get("weights", {})
            return [given.get(tag, 1.0) / len(self.arms([tag])) for tag, _ in free]
        if self.name == "learnability":
            return [self.rate(arm) * (1 - self.rate(arm)) for arm in free]
        if self.name == "difficulty":
            target, temperature = self.args.get("target", 0.5), self.args.get("temperature", 0.1)
            away = [abs(self.rate(arm) - target) for arm in free]
            if temperature == 0:
                return [float(each == min(away)) for each in away]
            return [math.exp(-each / temperature) for each in away]
        if self.name == "easy_to_hard":
            start, over = self.args.get("start", 0.1), self.args["over_groups"]
            competence = min(1.0, math.sqrt(self.draws * (1 - start**2) / over + start**2))
            admitted = sorted(self.rank(arm) for arm in whole)[: math.ceil(competence * len(whole))]
            return [float(self.rank(arm) <= admitted[-1]) for arm in free]
        spread = {arm: statistics.pstdev(self.groups[arm][-1][1]) for arm in free if arm in self.groups}
        ranked = sorted(free, key=lambda arm: (arm in spread, -spread.get(arm, 0.0), free.index(arm)))
        by_rank = [(ranked.index(arm) + 1) ** -2.0 for arm in free]
        seen = [self.groups[arm][-1][2] if arm in self.groups else -1 for arm in free]
        age = [self.draws - each for each in seen]
        return [
            0.9 * rank / sum(by_rank) + 0.1 * old / (sum(age) or 1)
            for rank, old in zip(by_rank, age, strict=True)
        ]

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for tag in TAGS:
            arms = self.arms([tag])
            windows = [self.window(arm) for arm in arms]
            found[f"played_share/{tag}"] = statistics.fmean(bool(each) for each in windows)
            found[f"success/{tag}"] = sum(map(sum, windows)) / max(1, sum(map(len, windows)))
            if "gate" in self.args:
                found[f"resting_share/{tag}"] = statistics.fmean(map(self.rests, arms))
        return found

    def allowed(self) -> tuple[list[Arm], list[float]]:
        """The arms that may be drawn, with their chances."""
        tags = list(TAGS) if self.choose != "tasks" else [self.order.next_tag()]
        whole = self.arms(tags)
        if self.name == "easy_to_hard" and "over_groups" not in self.args:
            name = tags[0] if self.choose == "tasks" else ""
            self.in_order[name] += 1
            listed = sorted(whole, key=lambda arm: (self.rank(arm), whole.index(arm)))
            return [listed[(self.in_order[name] - 1) % len(listed)]], [1.0]
        free = whole if self.choose == "tags" else [arm for arm in whole if not self.in_play[arm]] or whole
        admitted = [arm for arm in free if not self.rests(arm)]
        if not admitted:
            oldest = min(self.groups[arm][-1][2] for arm in free)
            return [next(arm for arm in free if self.groups[arm][-1][2] == oldest)], [1.0]
        weights = self.weights(admitted, whole)
        total = sum(weights)
        return admitted, [each / total if total else 1 / len(weights) for each in weights]


SAMPLERS = st.one_of(
    st.builds(
        lambda name, choose, gate, window: (name, {"choose": choose, "window": window} | gate),
        st.sampled_from(["weighted", "difficulty", "learnability", "prioritized"]),
        st.sampled_from(["tasks", "tags", "both"]),
        st.sampled_from([{}, {"gate": GATE}]),
        st.sampled_from([1, 3, 32]),
    ),
    st.just(("weighted", {"weights": {"a": 0.25, "b": 0.0}})),
    st.just(("difficulty", {"target": 0.8, "temperature": 0.0, "choose": "both"})),
    st.builds(
        lambda choose, over: ("easy_to_hard", {"choose": choose, "columns": ["level"]} | over),
        st.sampled_from(["tasks", "tags", "both"]),
        st.sampled_from([{}, {"over_groups": 20, "start": 0.3}]),
    ),
)
OUTCOMES = st.lists(st.booleans(), max_size=3)


@settings(max_examples=examples(100))
@given(
    SAMPLERS, st.lists(st.tuples(st.booleans(), st.integers(0, 9), OUTCOMES), max_size=60), st.integers(0, 60)
)
def test_every_draw_is_that_of_the_formula_also_after_a_restart(
    sampler: tuple[str, dict[str, Any]], events: list[tuple[bool, int, list[bool]]], restart_at: int
) -> None:
    name, args = sampler
    order = TagOrder(TAGS, "train")
    real, reference = make(name, order=order, **args), Reference(name, args)
    open_groups: list[Task] = []
    for number, (draws, which, successes) in enumerate(events):
        if number == restart_at:
            state = json.loads(json.dumps(saved_state(real)))
            real = make(name, state, order, **args)
        if draws or not open_groups:
            allowed, chances = reference.allowed()
            task = real.next_task()
            open_groups.append(task)
            arm = (task.tag, -1 if reference.choose == "tags" else task.index)
            assert chances[allowed.index(arm)] > 0
            uniform = stable_seed("task sampler", 7, reference.draws) / 2**31
            below = sum(chances[: allowed.index(arm)])
            assert below - 1e-9 <= uniform <= below + chances[allowed.index(arm)] + 1e-9 or len(allowed) == 1
            reference.in_play[arm] += 1
            reference.draws += 1
        else:
            task = open_groups.pop(which % len(open_groups))
            arm = (task.tag, -1 if reference.choose == "tags" else task.index)
            rewards = [success + 0.5 * (number % 2) for success in successes]
            real.observe(PlayedGroup(task=task, successes=successes, rewards=rewards))
            reference.in_play[arm] -= 1
            if successes:
                reference.groups.setdefault(arm, []).append((successes, rewards, reference.draws))
    assert real.metrics() == pytest.approx(reference.metrics())


@given(st.lists(st.booleans(), max_size=40))
def test_uniform_plays_tags_by_their_shares_and_their_tasks_in_order(observes: list[bool]) -> None:
    order = TagOrder(TAGS, "train")
    sampler = load_sampler(None, order)
    for number, sees in enumerate(observes):
        task = sampler.next_task()
        tag = ["a", "b", "a"][number % 3]
        assert (task.tag, task.index) == (tag, number // 3 * TAGS[tag] + (number % 3 == 2))
        if sees:
            sampler.observe(PlayedGroup(task=task, successes=[True], rewards=[1.0]))
    assert saved_state(sampler)["state"] == {}


def test_a_policy_that_learns_is_kept_near_the_target_and_what_is_solved_rests() -> None:
    """Success of a task rises with the times it was played; difficulty follows, uniform does not."""

    def played_rates(name: str, **args: Any) -> float:
        config = SamplerConfig(name=name, args=args, tasks={"a": TagTasks(num_tasks=40)}, seed=1)
        sampler = load_sampler(config, TagOrder({"a": 1}, "train"))
        times: Counter[int] = Counter()
        rates = []
        for number in range(600):
            task = sampler.next_task()
            rate = min(1.0, 0.03 * times[task.index] if task.index < 20 else 0.0)
            times[task.index] += 1
            wins = [stable_seed(number, member) / 2**31 < rate for member in range(8)]
            rates.append(abs(sum(wins) / 8 - 0.5))
            sampler.observe(PlayedGroup(task=task, successes=wins, rewards=[float(win) for win in wins]))
        return statistics.fmean(rates)

    random = played_rates("weighted", choose="tasks")
    found = {name: played_rates(name, window=8) for name in ("difficulty", "learnability")}
    gated = played_rates("learnability", window=8, gate={"look_again": 100})
    assert max(found.values()) < random - 0.03
    assert gated < found["learnability"] - 0.02


def test_states_of_other_tasks_tags_and_windows_are_read_as_far_as_they_fit() -> None:
    sampler = make("learnability", window=8)
    for _ in range(6):
        task = sampler.next_task()
        sampler.observe(PlayedGroup(task=task, successes=[True] * 6, rewards=[1.0] * 6))
    kept = saved_state(sampler)
    config = SamplerConfig(
        name="learnability", args={"window": 4}, tasks={"b": TagTasks(num_tasks=2)}, seed=7
    )
    smaller = load_sampler(config, TagOrder({"b": 1}, "train"), kept)
    kept_rows = smaller.state()["results"]
    assert kept_rows
    assert all(tag == "b" and index < 2 and window == "1111" for tag, index, window, *_ in kept_rows)
    other = SamplerConfig(name="difficulty", tasks={"b": TagTasks(num_tasks=2)}, seed=7)
    assert load_sampler(other, TagOrder({"b": 1}, "train"), kept).state()["results"] == []


def test_a_sampler_that_returns_to_tasks_refuses_tags_without_an_end() -> None:
    config = SamplerConfig(name="learnability", tasks={"maze": TagTasks()})
    with pytest.raises(ConfigurationError, match=r"tag 'maze' never end.*num_tasks.*choose: tags"):
        load_sampler(config, TagOrder({"maze": 1}, "train"))
