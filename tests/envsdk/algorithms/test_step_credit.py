"""GraphGPO and HGPO against their formulas, one turn at a time."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.algorithms.advantage_sample import AdvantageSample
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.batches import token_advantages
from envsdk.algorithms.estimators import STD_EPSILON, discounted_returns, hgpo_advantages
from envsdk.algorithms.step_credit import graph_step_advantages
from envsdk.contracts.failures import ConfigurationError


@dataclass(frozen=True)
class Walk:
    """One episode over states that are letters."""

    states: str
    group: int = 0
    solved: bool = False
    valid: bool = True


walks = st.lists(
    st.builds(
        Walk,
        states=st.text("abcd", max_size=7),
        group=st.integers(0, 1),
        solved=st.booleans(),
        valid=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


def standardized(value: float, values: list[float], normalize_std: bool) -> float:
    if len(values) < 2 or min(values) == max(values):
        return 0.0
    centered = value - statistics.fmean(values)
    return centered / (statistics.stdev(values) + STD_EPSILON) if normalize_std else centered


def graph(found: list[Walk], omega: float, normalize_std: bool) -> list[np.ndarray]:
    return graph_step_advantages(
        [walk.states for walk in found],
        [walk.group for walk in found],
        success=[walk.solved for walk in found],
        valid=[walk.valid for walk in found],
        omega=omega,
        normalize_std=normalize_std,
    )


@given(found=walks, normalize_std=st.booleans())
def test_the_graph_level_is_its_formula(found: list[Walk], normalize_std: bool) -> None:
    """Distances by relaxing all edges until nothing changes, sums by lists, rewards as the paper has them."""
    omega = 0.5
    edges: list[tuple[Any, Any, int, int]] = []
    for number, walk in enumerate(found):
        names: list[Any] = [(walk.group, state) for state in walk.states]
        names.append((walk.group, "goal") if walk.solved else ("end", number))
        if walk.valid:
            edges += [(names[turn], names[turn + 1], number, turn) for turn in range(len(walk.states))]
    distance = {node: 0.0 if node[1] == "goal" else np.inf for edge in edges for node in edge[:2]}
    for _ in edges:
        for source, target, *_ in edges:
            distance[source] = min(distance[source], 1 + distance[target])
    expected = [np.zeros(len(walk.states)) for walk in found]
    rewards: dict[Any, float] = {}
    for _, target, number, turn in edges:
        group = found[number].group
        farthest = max((d for node, d in distance.items() if node[0] == group and d < np.inf), default=0.0)
        rewards[number, turn] = omega ** (min(distance[target], farthest + 1) + 1)
    for source, _, number, turn in edges:
        same = [rewards[other[2:]] for other in edges if other[0] == source]
        expected[number][turn] = standardized(rewards[number, turn], same, normalize_std)
    for one, other in zip(graph(found, omega, normalize_std), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3 if normalize_std else 1e-12)


def test_a_step_towards_the_goal_counts_equally_near_and_far() -> None:
    far = "abcdefghijkl"
    near, remote = (
        graph([Walk(far, solved=True), Walk(far[turn] * 2)], 0.1, True)[0][turn] for turn in (9, 1)
    )
    assert near > 0.5
    assert remote == pytest.approx(near, rel=1e-2)


def test_a_failed_episode_gets_credit_for_the_part_on_the_way() -> None:
    found = [Walk("abc", solved=True), Walk("abx"), Walk("ay")]
    first, second, third = graph(found, 0.1, True)
    assert second[0] > 0 > third[0]
    assert first[1] > 0 > second[1]


def test_without_a_solved_episode_no_turn_is_better_than_another() -> None:
    assert not any(values.any() for values in graph([Walk("ab"), Walk("aab")], 0.1, True))


@given(
    found=walks,
    history=st.integers(0, 3),
    alpha=st.sampled_from([0.0, 1.0, 2.0]),
    normalize_std=st.booleans(),
)
def test_hgpo_is_its_formula(found: list[Walk], history: int, alpha: float, normalize_std: bool) -> None:
    returns = [discounted_returns([0.0] * len(walk.states), 1.0) for walk in found]
    for number, (walk, values) in enumerate(zip(found, returns, strict=True)):
        values += float(walk.solved) * 0.5 ** np.arange(len(walk.states))[::-1] + number % 2
    places = [(i, turn) for i, walk in enumerate(found) for turn in range(len(walk.states)) if walk.valid]
    expected = [np.zeros(len(walk.states)) for walk in found]
    for i, turn in places:
        total = weight = 0.0
        for depth in range(min(history, turn) + 1):
            context = found[i].states[turn - depth : turn + 1]
            same = [
                float(returns[j][n])
                for j, n in places
                if n >= depth
                and found[j].group == found[i].group
                and found[j].states[n - depth : n + 1] == context
            ]
            level = standardized(float(returns[i][turn]), same, normalize_std)
            if level:
                total += (depth + 1) ** alpha * level
                weight += (depth + 1) ** alpha
        expected[i][turn] = total / weight if weight else 0.0
    result = hgpo_advantages(
        returns,
        [walk.states for walk in found],
        [walk.group for walk in found],
        valid=[walk.valid for walk in found],
        history_length=history,
        alpha=alpha,
        normalize_std=normalize_std,
    )
    for one, other in zip(result, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def sample(states: str, group: int, *, solved: bool) -> AdvantageSample:
    turns = len(states)
    return AdvantageSample(
        group_id=group,
        response_mask=np.ones(turns, np.int8),
        turn_rewards=[0.0] * (turns - 1) + [float(solved)],
        turn_spans=[(turn, turn + 1) for turn in range(turns)],
        success=solved,
        state_hashes=list(states),
    )


SAMPLES = [sample("abc", 0, solved=True), sample("abx", 0, solved=False), sample("a", 1, solved=False)]


def advantages(estimator: str, **own: Any) -> list[np.ndarray]:
    args = AlgorithmArgs(adv_estimator=estimator, adv_args=own)
    return [result.advantages for result in token_advantages(args, SAMPLES)]


def test_graphgpo_adds_the_graph_to_the_episode() -> None:
    episode = advantages("grpo")
    for one, other in zip(advantages("graphgpo", step_weight=0.0), episode, strict=True):
        np.testing.assert_array_equal(one, other)
    steps = graph([Walk("abc", solved=True), Walk("abx"), Walk("a", group=1)], 0.2, True)
    for one, other, step in zip(
        advantages("graphgpo", omega=0.2, step_weight=0.5), episode, steps, strict=True
    ):
        np.testing.assert_allclose(one, other + 0.5 * step, rtol=1e-6)


def test_hgpo_without_history_is_the_step_level_of_gigpo() -> None:
    gigpo = zip(advantages("gigpo"), advantages("grpo"), strict=True)
    for one, (both, episode) in zip(advantages("hgpo", history_length=0), gigpo, strict=True):
        np.testing.assert_allclose(one, both - episode, atol=1e-6)


@pytest.mark.parametrize("estimator", ["graphgpo", "hgpo"])
def test_they_need_state_hashes_and_check_their_settings(estimator: str) -> None:
    assert AlgorithmArgs(adv_estimator=estimator).needs_state_hashes
    blind = [replace(each, state_hashes=None) for each in SAMPLES]
    with pytest.raises(ValueError, match=f"{estimator} needs the hash of the state"):
        token_advantages(AlgorithmArgs(adv_estimator=estimator), blind)
    with pytest.raises(ConfigurationError, match=r"`omega`|history_length"):
        _ = AlgorithmArgs(adv_estimator=estimator, adv_args={"omga": 1, "history_lengt": 2}).estimator_args
