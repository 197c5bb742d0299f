"""Policies without a model: what they play, and that nothing but the turn's seed decides."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.policy import EnvView, Policy, Reply, TurnContext
from envsdk.contracts.seeds import stable_seed
from envsdk.contracts.trajectory import TokenLog
from envsdk.managers.policies import (
    EpsilonPolicy,
    OraclePolicy,
    RandomPolicy,
    ScriptedPolicy,
    make_policy,
)

ACTIONS = ("Up", "Right", "Down", "Left")
seeds = st.integers(0, 2**31 - 1)


class FixedView(EnvView):
    """Knows one best action and four legal ones."""

    async def oracle(self) -> str:
        return "Best"

    async def legal_actions(self) -> Sequence[str]:
        return ACTIONS


def a_turn(seed: int = 0, turn_index: int = 0) -> TurnContext:
    return TurnContext(
        system="",
        prompt="",
        observation="",
        turn_index=turn_index,
        num_actions_left=10,
        env=FixedView(),
        seed=seed,
        log=TokenLog(),
        session_id="s",
    )


def replies(policy: Policy, num: int) -> list[str]:
    """What `policy` says under `num` seeds as the managers derive them."""
    return [asyncio.run(policy.act(a_turn(stable_seed("test", i)))).text for i in range(num)]


@given(seeds)
def test_the_same_seed_gives_the_same_reply_and_touches_no_global_generator(seed: int) -> None:
    policy = EpsilonPolicy(OraclePolicy(), 0.5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    first, second = (asyncio.run(policy.act(a_turn(seed))) for _ in range(2))
    assert first == second
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_a_random_policy_plays_every_legal_action_equally_often() -> None:
    counts = Counter(replies(RandomPolicy(), 4000))
    assert set(counts) == set(ACTIONS)
    # Five standard deviations of a binomial with n=4000 and p=1/4.
    assert all(abs(count - 1000) < 5 * 27.4 for count in counts.values())


def test_an_oracle_policy_says_what_the_environment_advises() -> None:
    assert asyncio.run(OraclePolicy().act(a_turn())) == Reply(text="Best")


def test_epsilon_is_the_share_of_random_actions_and_those_stay_uniform() -> None:
    counts = Counter(replies(EpsilonPolicy(OraclePolicy(), 0.4), 4000))
    best = counts.pop("Best")
    assert abs(best - 2400) < 5 * 31
    assert set(counts) == set(ACTIONS)
    assert all(abs(count - 400) < 5 * 19 for count in counts.values())


def test_nobody_is_to_learn_the_random_actions_of_an_epsilon() -> None:
    policy = EpsilonPolicy(OraclePolicy(), 0.4)
    said = [asyncio.run(policy.act(a_turn(stable_seed("test", i)))) for i in range(200)]
    assert all(reply.learned == (reply.text == "Best") for reply in said)


def test_epsilon_zero_is_the_base_and_one_is_random() -> None:
    assert set(replies(EpsilonPolicy(OraclePolicy(), 0.0), 200)) == {"Best"}
    assert "Best" not in replies(EpsilonPolicy(OraclePolicy(), 1.0), 200)


def test_a_scripted_policy_starts_over_after_its_last_reply() -> None:
    policy = ScriptedPolicy(["a", "b"])
    assert [asyncio.run(policy.act(a_turn(turn_index=i))).text for i in range(5)] == ["a", "b", "a", "b", "a"]


def test_an_empty_script_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one reply"):
        ScriptedPolicy([])


@pytest.mark.parametrize("epsilon", [-0.1, 1.1, float("nan")])
def test_an_epsilon_that_is_no_probability_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigurationError, match="from 0 to 1"):
        make_policy("oracle", epsilon=epsilon)


def test_an_unknown_policy_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match=r"no policy 'orcale'.*oracle"):
        make_policy("orcale")


class AlwaysUp(Policy):
    name = "up"

    async def act(self, turn: TurnContext) -> Reply:
        return Reply(text="Up")


def test_a_policy_of_ones_own_is_found_by_dotted_name() -> None:
    policy = make_policy(f"{__name__}:AlwaysUp")
    assert asyncio.run(policy.act(a_turn())).text == "Up"


@pytest.mark.parametrize("name", ["no_such_module:Thing", f"{__name__}:Missing"])
def test_a_dotted_name_that_cannot_be_imported_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        make_policy(name)


def test_a_dotted_name_of_something_else_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a subclass"):
        make_policy(f"{__name__}:FixedView")
