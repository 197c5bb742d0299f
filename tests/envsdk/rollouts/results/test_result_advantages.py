from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.batches import ModelScores, learnable, prepare_batch
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Trajectory
from envsdk.rollouts.results.trajectories import Trajectories
from tests.envsdk.rollouts.data_sets.episodes import episode
from tests.envsdk.rollouts.results.sampled import sampled, sampled_episodes

ESTIMATORS = ("grpo", "rloo", "reinforce", "reinforce_plus_plus")
estimators = st.sampled_from(ESTIMATORS)
batches = st.lists(sampled_episodes, min_size=1, max_size=8)


@given(batches, estimators)
def test_they_are_those_that_the_pipeline_trains_with(episodes: list[Trajectory], estimator: str) -> None:
    found = Trajectories(episodes).advantages(estimator)
    valid = [n for n, each in enumerate(episodes) if not each.failure and each.oldest_version is not None]
    for number, array in enumerate(found):
        if number not in valid:
            assert not array.any()
    if not valid:
        return
    trained = learnable(episodes)
    prepared = prepare_batch(AlgorithmArgs(adv_estimator=estimator), 0, trained, ModelScores())
    for number, sequence in zip(valid, prepared.batch.sequences, strict=True):
        np.testing.assert_allclose(found[number], sequence.advantages, rtol=1e-5, atol=1e-6)


@given(batches, estimators, st.randoms(use_true_random=False))
def test_the_order_of_members_changes_no_advantage(
    episodes: list[Trajectory], estimator: str, shuffler: random.Random
) -> None:
    order = list(range(len(episodes)))
    shuffler.shuffle(order)
    found = Trajectories(episodes).advantages(estimator)
    shuffled = Trajectories([episodes[n] for n in order]).advantages(estimator)
    for position, number in enumerate(order):
        np.testing.assert_allclose(shuffled[position], found[number], rtol=1e-5, atol=1e-6)


@given(batches, estimators)
def test_failed_members_are_in_no_baseline(episodes: list[Trajectory], estimator: str) -> None:
    kept = [n for n, each in enumerate(episodes) if each.failure is None]
    found = Trajectories(episodes).advantages(estimator)
    alone = Trajectories([episodes[n] for n in kept]).advantages(estimator)
    for number, array in zip(kept, alone, strict=True):
        np.testing.assert_allclose(found[number], array, rtol=1e-5, atol=1e-6)


def test_grpo_of_one_group_by_hand() -> None:
    winner, loser = sampled([((1,), (2, 3), 1.0)]), sampled([((1,), (4,), 0.0)], member=1)
    arrays = Trajectories([winner, loser]).advantages("grpo", grpo_normalize_std=False)
    assert [array.tolist() for array in arrays] == [[0.0, 0.5, 0.5], [0.0, -0.5]]


def test_groups_of_two_tasks_are_not_compared_even_with_one_number() -> None:
    winner, loser = sampled([((1,), (2,), 1.0)]), sampled([((1,), (4,), 0.0)], index=1)
    assert not any(array.any() for array in Trajectories([winner, loser]).advantages())


def test_masks_of_the_loss_leave_zeros() -> None:
    episodes = [sampled([((1,), (2,), reward)], member=n) for n, reward in enumerate((0.5, 1.0))]
    first, second = Trajectories(episodes).advantages(error_max_len_clip=True)
    assert not first.any()
    assert second.any()


def test_without_tokens_there_is_one_per_turn() -> None:
    winner, loser = episode("a", "b"), episode("c", success=False, rewards=(0.0,))
    arrays = Trajectories([winner, loser]).advantages("rloo")
    assert [array.tolist() for array in arrays] == [[1.0, 1.0], [-1.0]]


@pytest.mark.parametrize(
    ("estimator", "settings", "message"),
    [
        ("gae", {}, "value head"),
        ("gigpo", {}, "hash of the state"),
        ("grpo", {"init_kl_coef": 0.1}, "reference model"),
        ("grp", {}, "did you mean .?grpo"),
        ("grpo", {"grpo_normalise_std": True}, "grpo_normalize_std"),
        ("grpo", {"learning_rate": 1}, "unknown key"),
    ],
)
def test_what_results_do_not_have_is_said(estimator: str, settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Trajectories([sampled()]).advantages(estimator, **settings)


def test_gigpo_takes_the_hashes_that_were_recorded() -> None:
    one = sampled([((1,), (2,), 1.0)])
    other = sampled([((1,), (3,), 0.0)], member=1)
    hashed = [replace(e, turns=[replace(turn, state_hash="s") for turn in e.turns]) for e in (one, other)]
    first, second = Trajectories(hashed).advantages("gigpo")
    assert first[1] > 0 > second[1]
