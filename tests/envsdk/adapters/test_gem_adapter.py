"""gem's environments here and ours in gem, with the real package."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk.contracts.failures import ConfigurationError
from envsdk.testing import TextEnvSuite
from envsdk.testing.strategies import AWKWARD_REPLIES

pytest.importorskip("gem", reason="needs gem-llm: make test-adapters")
pytestmark = pytest.mark.adapters

import gem  # noqa: E402

from envsdk.adapters.gem.env import GemEnv, make_gem_env  # noqa: E402
from envsdk.adapters.gem.export import TextEnvInGem, register_with_gem  # noqa: E402
from envsdk.adapters.global_random import OwnGlobals  # noqa: E402

ID = "envsdk/Gem-v1"
GUESS = "game:GuessTheNumber-v0-easy"
seeds = st.integers(0, 2**31 - 1)

TestGuessTheNumber = TextEnvSuite.of(ID, {"id": GUESS}, max_examples=4)
TestMastermind = TextEnvSuite.of(ID, {"id": "game:Mastermind-v0-easy"}, max_examples=4)
TestRandomMinesweeper = TextEnvSuite.of(
    ID, {"id": "game:Minesweeper-v0-random", "max_steps": 20}, max_examples=4
)
TestTowerOfHanoi = TextEnvSuite.of(
    ID, {"id": "game:TowerofHanoi-v0-easy", "max_steps": 20}, max_examples=4, seeds_give_tasks=False
)


@settings(max_examples=20)
@given(seed=seeds, guesses=st.lists(st.integers(1, 10), min_size=1, max_size=6))
def test_a_course_is_the_one_gem_plays(seed, guesses):
    env = make_gem_env(id=GUESS)
    theirs = gem.make(GUESS)
    kept = random.getstate(), np.random.get_state()
    ours_first, _ = env.reset(seed=seed)
    expected, info = theirs.reset(seed=seed)
    assert ours_first == f"{expected}{info['suffix']}"
    for guess in guesses:
        observation, reward, terminated, truncated, _ = env.step(f"\\boxed{{{guess}}}")
        expected = theirs.step(f"\\boxed{{{guess}}}")
        assert observation.startswith(expected[0])
        assert (reward, terminated, truncated) == (float(expected[1]), *expected[2:4])
        if terminated or truncated:
            break
    random.setstate(kept[0])
    np.random.set_state(kept[1])


@settings(max_examples=10)
@given(first=seeds, second=seeds, draws=st.integers(0, 5))
def test_global_random_state_is_each_instances_own(first, second, draws):
    """Interleaved with others that draw from the same generators, each goes on as if it were alone."""

    def drawn(own, seed=None):
        with own.in_place(seed):
            return random.random(), np.random.rand()

    alone = OwnGlobals()
    expected = [drawn(alone, first), *(drawn(alone) for _ in range(draws))]
    before = random.getstate()
    one, other = OwnGlobals(), OwnGlobals()
    seen = [drawn(one, first)]
    for _ in range(draws):
        drawn(other, second)
        seen.append(drawn(one))
    assert seen == expected
    assert random.getstate() == before


def test_importing_gem_leaves_the_logging_of_the_process_alone():
    from envsdk.adapters.gem.package import import_gem

    before = logging.getLogger().handlers[:], logging.getLogger().level
    import_gem()
    assert (logging.getLogger().handlers[:], logging.getLogger().level) == before


@pytest.mark.parametrize(
    "game",
    [
        "GuessTheNumber-v0-random",
        "Mastermind-v0-hard",
        "Minesweeper-v0-easy",
        "FifteenPuzzle-v0-easy",
        "Sudoku-v0-easy",
        "TowerofHanoi-v0-random",
        "Game2048-v0-easy",
        "Sokoban-v0-easy",
    ],
)
def test_the_games_that_need_no_download_take_any_reply(game):
    env = make_gem_env(id=f"game:{game}", max_steps=6)
    for seed, reply in enumerate([*AWKWARD_REPLIES, "\\boxed{}", "\\boxed{1 2}", "\\boxed{up}"]):
        assert env.reset(seed=seed)[0].strip()
        over, turns = False, 0
        while not over:
            _, reward, terminated, truncated, _ = env.step(reply)
            assert np.isfinite(reward)
            over, turns = terminated or truncated, turns + 1
        assert turns <= 6
    env.close()


@pytest.mark.parametrize("id", ["envsdk/FrozenLake-v1", "envsdk/Sokoban-v1"])
def test_ours_are_made_by_gem_and_solved(id):
    assert id in register_with_gem()
    env = gem.make(id)
    env.reset(seed=4)
    over = False
    while not over:
        _, _, terminated, truncated, info = env.step(env.env.oracle())
        over = terminated or truncated
    assert info["success"]
    assert isinstance(env, gem.Env)
    assert env.env_id == id


def test_a_spawned_copy_is_in_the_same_state_and_goes_its_own_way():
    register_with_gem()
    env = gem.make("envsdk/FrozenLake-v1", size=5)
    env.reset(seed=2)
    env.step("Right")
    copy = env.spawn(same_state=True)
    assert copy.env.state_hash() == env.env.state_hash()
    assert copy.step("Down") == env.step("Down")
    assert num_map_rows(env.spawn()) == 5
    assert num_map_rows(env.spawn(size=6)) == 6
    assert env.sample_random_action() in env.env.legal_actions()


def num_map_rows(env):
    observation, _ = env.reset(seed=0)
    return len(observation.splitlines()) - 1  # the legend


def test_without_snapshots_a_state_cannot_be_spawned():
    env = TextEnvInGem(_WITHOUT_SNAPSHOT)
    with pytest.raises(ConfigurationError, match="has no snapshot"):
        env.spawn(same_state=True)


class Bare(envsdk.TextEnv):
    def reset(self, *, seed=None, options=None):
        return "?", {}

    def step(self, action):
        return "!", 0.0, True, False, {}


_WITHOUT_SNAPSHOT = envsdk.EnvSpec(id="test/Bare-v0", entry_point=Bare)


@pytest.mark.parametrize("async_mode", [False, True])
def test_gems_vectors_of_environments_hold_ours(async_mode, capsys):
    register_with_gem()
    vector = gem.make_vec(["envsdk/FrozenLake-v1"] * 3, seed=5, async_mode=async_mode)
    observations, _ = vector.reset()
    alone = [envsdk.make("envsdk/FrozenLake-v1").reset(seed=5 + index)[0] for index in range(3)]
    assert list(observations) == alone
    _, rewards, terminated, truncated, _ = vector.step(["Left"] * 3)
    assert list(rewards) == [0.0] * 3
    assert not any(terminated)
    assert not any(truncated)


@settings(max_examples=10)
@given(seed=seeds, replies=st.lists(st.sampled_from(["Left", "Down", "Right", "Up", "fly"]), max_size=12))
def test_one_of_ours_comes_back_from_gem_as_it_went(seed, replies):
    ours = envsdk.make("envsdk/FrozenLake-v1")
    back = GemEnv(TextEnvInGem("envsdk/FrozenLake-v1"), max_steps=20)
    assert back.reset(seed=seed)[0].rstrip("\n") == ours.reset(seed=seed)[0]
    for reply in replies:
        observation, reward, terminated, truncated, _ = ours.step(reply)
        again = back.step(reply)
        assert (again[0].rstrip("\n"), *again[1:4]) == (observation, reward, terminated, truncated)
        if terminated or truncated:
            break


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"id": "game:GuessTheNumber-v0-eazy"},
            "id: gem has no environment .* Did you mean 'game:GuessTheNumber",
        ),
        ({"id": GUESS, "max_steps": 0}, "max_steps: must be a whole number"),
        ({"id": GUESS, "max_step": 3}, "unknown keyword 'max_step'"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_by_name(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        envsdk.make(ID, **arguments)
