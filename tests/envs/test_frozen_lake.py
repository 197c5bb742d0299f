import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as GymnasiumFrozenLake
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk.envs.frozen_lake import SPEC, FrozenLakeEnv
from envsdk.envs.frozen_lake.lake import Lake, best_moves, generate_lake, neighbors, slip
from envsdk.envs.grid import REPLIES
from envsdk.testing import TextEnvSuite

sizes = st.integers(2, 7)
probabilities = st.floats(0.0, 1.0)
seeds = st.integers(0, 2**31 - 1)


class TestFrozenLake(TextEnvSuite):
    observations_show_state = True

    def make_env(self):
        return envsdk.make("envsdk/FrozenLake-v1", legend=False)


class TestFrozenLakeWithLegendRandomEndsAndOtherSymbols(TextEnvSuite):
    max_examples = 3

    def make_env(self):
        return FrozenLakeEnv(
            size=6, p=0.7, random_start=True, random_goal=True, symbols={"hole": "●", "player": "☺"}
        )


class TestFrozenLakeWithCompass(TextEnvSuite):
    max_examples = 3

    def make_env(self):
        return FrozenLakeEnv(size=5, random_start=True, random_goal=True, compass=True)


def test_the_compass_tells_what_is_beside_one_and_where_the_goal_is():
    env = FrozenLakeEnv(size=4, compass=True, legend=False)
    observation, _ = env.reset(seed=3)
    assert observation == "P_O_\n____\n____\n___G\nLeft # Down _ Right _ Up #\nG Down 3 Right 3"
    observation = env.step("Right")[0]
    assert observation.endswith("Left _ Down _ Right O Up #\nG Down 3 Right 2")


class TestSlipperyFrozenLake(TextEnvSuite):
    max_examples = 3
    oracle_always_solves = False
    observations_show_state = True

    def make_env(self):
        return FrozenLakeEnv(is_slippery=True, max_steps=100, step_penalty=0.01, legend=False)


class TestFrozenLakeWithHardlyAnyIce(TextEnvSuite):
    max_examples = 3
    observations_show_state = True

    def make_env(self):
        return FrozenLakeEnv(
            size=7, p=0.05, max_steps=12, random_start=True, random_goal=True, min_distance=6, legend=False
        )


def rows_of(lake: Lake) -> list[str]:
    """The map in gymnasium's letters."""

    def letter(cell: int) -> str:
        if cell in (lake.start, lake.goal):
            return "S" if cell == lake.start else "G"
        return "F" if cell in lake.ice else "H"

    stride = lake.size + 1
    return ["".join(letter(row * stride + column) for column in range(lake.size)) for row in range(lake.size)]


def length_of_way(lake: Lake) -> int:
    """Steps of the best moves from start to goal."""
    best, around = best_moves(lake, 1.0), neighbors(lake.size)
    cell, steps = lake.start, 0
    while cell != lake.goal:
        cell = around[cell][best[cell]]
        assert cell in lake.ice
        steps += 1
    return steps


@given(size=sizes, p=st.floats(0.7, 1.0), seed=seeds)
def test_a_lake_with_fixed_ends_is_the_map_that_gymnasium_draws(size, p, seed):
    env = FrozenLakeEnv(size=size, p=p, max_steps=size * size, legend=False)
    observation, _ = env.reset(seed=seed)
    letters = str.maketrans({"P": "S", "_": "F", "O": "H"})
    assert observation.translate(letters).splitlines() == generate_random_map(size=size, p=p, seed=seed)


@given(
    size=sizes,
    p=probabilities,
    seed=seeds,
    random_start=st.booleans(),
    random_goal=st.booleans(),
    data=st.data(),
)
def test_every_lake_can_be_crossed_within_the_distances_asked_for(
    size, p, seed, random_start, random_goal, data
):
    min_distance = data.draw(st.integers(1, size - size % 2))
    lake = generate_lake(
        np.random.default_rng(seed),
        size=size,
        p=p,
        max_distance=2 * (size - 1),
        min_distance=min_distance,
        random_start=random_start,
        random_goal=random_goal,
    )
    assert min_distance <= length_of_way(lake) <= 2 * (size - 1)


@given(size=st.integers(4, 7), p=st.floats(0.5, 0.9), seed=seeds)
def test_a_detour_is_longer_than_the_way_without_holes(size, p, seed):
    def draw(**kwargs: float) -> tuple[Lake, int]:
        lake = generate_lake(
            np.random.default_rng(seed),
            size=size,
            p=p,
            max_distance=size * size,
            random_start=True,
            random_goal=True,
            **kwargs,
        )
        (row, column), (to_row, to_column) = divmod(lake.start, size + 1), divmod(lake.goal, size + 1)
        return lake, abs(row - to_row) + abs(column - to_column)

    lake, straight = draw(detours=1.0)
    assert length_of_way(lake) > straight
    assert draw(detours=0.0) == draw()


@given(size=sizes, seed=seeds, success_rate=probabilities, is_slippery=st.booleans())
def test_moves_and_slips_have_the_probabilities_of_gymnasiums_table(size, seed, success_rate, is_slippery):
    lake = generate_lake(np.random.default_rng(seed), size=size, p=0.8, max_distance=size * size)
    reference = GymnasiumFrozenLake(desc=rows_of(lake), is_slippery=is_slippery, success_rate=success_rate)
    stride, around = size + 1, neighbors(size)
    draws = (np.arange(3000) + 0.5) / 3000
    for cell in (cell for cell in range(size * stride - 1) if cell % stride < size):
        if cell not in lake.ice or cell == lake.goal:
            continue
        for move in range(4):
            expected: dict[int, float] = {}
            for probability, state, *_ in reference.P[cell // stride * size + cell % stride][move]:
                expected[state] = expected.get(state, 0.0) + probability
            found: dict[int, float] = {}
            for draw in draws[:: 1 if cell == 0 else 100] if is_slippery else [0.5]:
                there = around[cell][slip(move, draw, success_rate) if is_slippery else move]
                state = there // stride * size + there % stride
                found[state] = found.get(state, 0.0) + (
                    1.0 / len(draws[:: 1 if cell == 0 else 100]) if is_slippery else 1.0
                )
            tolerance = 0.002 if cell == 0 else 0.07
            for state in expected.keys() | found.keys():
                assert found.get(state, 0.0) == pytest.approx(expected.get(state, 0.0), abs=tolerance)


def test_the_oracle_avoids_the_hole_that_slipping_would_lead_into():
    # On ice that always slips sideways, Down and Up go left or right: the only sure way
    # along the top row is to lean on the edge.
    stride = 4
    ice = frozenset((0, 1, 2, stride + 2, 2 * stride + 2))
    lake = Lake(size=3, ice=ice, start=0, goal=2 * stride + 2)
    best = best_moves(lake, 0.0)
    assert best[0] in (1, 3)
    assert best[1] in (1, 3)


def test_the_oracle_beats_chance_on_slippery_ice():
    env = FrozenLakeEnv(is_slippery=True, success_rate=0.8, max_steps=100)

    def success_rate(choose) -> float:
        wins = 0
        for seed in range(60):
            env.reset(seed=seed)
            over = False
            while not over:
                _, _, terminated, truncated, info = env.step(choose(env))
                over = terminated or truncated
            wins += info["success"]
        return wins / 60

    rng = np.random.default_rng(0)
    assert success_rate(lambda env: env.oracle()) > success_rate(lambda env: REPLIES[rng.integers(4)]) + 0.3


def test_the_observation_is_the_map_after_a_line_that_explains_it():
    env = FrozenLakeEnv(p=1.0)
    assert env.reset(seed=0)[0] == "P=you _=ice O=hole G=goal\nP___\n____\n____\n___G"
    assert env.step("<answer>Right</answer>")[0] == "_P__\n____\n____\n___G"


def test_a_reply_without_a_move_costs_a_turn_and_the_observation_says_why():
    env = FrozenLakeEnv(p=1.0, step_penalty=0.25, invalid_penalty=0.5, legend=False)
    start, _ = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("I would go right.")
    assert observation == start + "\nInvalid action: no <answer> found."
    assert (reward, terminated, truncated) == (-0.75, False, False)
    assert info == {"success": False, "metrics": {"action_is_valid": 0.0, "action_is_effective": 0.0}}
    assert env.step("<answer>Jump</answer>")[0] == start + "\nInvalid action: not Left, Down, Right or Up."
    observation, reward, *_, info = env.step("up")
    assert (observation, reward, info["metrics"]) == (
        start,
        -0.25,
        {"action_is_valid": 1.0, "action_is_effective": 0.0},
    )


def test_the_goal_is_a_success_and_a_hole_is_not():
    env = FrozenLakeEnv(size=2, p=1.0, legend=False)
    env.reset(seed=0)
    env.step("Right")
    assert env.step("Down") == (
        "__\n_V",
        1.0,
        True,
        False,
        {"success": True, "metrics": {"action_is_valid": 1.0, "action_is_effective": 1.0}},
    )
    env = FrozenLakeEnv(size=2, p=0.0, legend=False)
    observation, _ = env.reset(seed=0)
    into_the_hole = "Right" if observation[1] == "O" else "Down"
    observation, reward, terminated, truncated, info = env.step(into_the_hole)
    assert "X" in observation
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert env.step("Left")[:4] == (observation, 0.0, True, False)


def test_an_episode_is_truncated_after_max_steps():
    env = FrozenLakeEnv(p=1.0, max_steps=6)
    env.reset(seed=0)
    flags = [env.step("Left")[2:4] for _ in range(6)]
    assert flags == [(False, False)] * 5 + [(False, True)]
    assert env.legal_actions() == ()


def test_step_before_reset_says_so():
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        FrozenLakeEnv().step("Left")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"size": 1}, "size: must be at least 2"),
        ({"p": 1.5}, "p: must be a probability"),
        ({"success_rate": -0.1}, "success_rate: must be a probability"),
        ({"detours": 1.1}, "detours: must be a probability"),
        ({"size": 8, "max_steps": 13}, "max_steps: crossing takes at least 14"),
        ({"size": 5, "min_distance": 5}, "min_distance: must be from 1 to 4"),
        ({"symbols": {"lava": "~"}}, "symbols: unknown .*lava"),
        ({"symbols": {"hole": "()"}}, "symbols.hole: must be one visible character"),
        ({"symbols": {"hole": "_"}}, "two cells look the same"),
    ],
)
def test_a_value_that_makes_no_lake_is_refused_by_name(kwargs, message):
    with pytest.raises(ValueError, match=message):
        FrozenLakeEnv(**kwargs)


def test_it_renders_the_map_in_ansi_mode():
    env = gymnasium.make(SPEC.id, render_mode="ansi", p=1.0)
    env.reset(seed=0)
    assert env.render() == "P___\n____\n____\n___G"


def test_random_ends_make_thousands_of_distinct_tasks():
    env = FrozenLakeEnv(random_start=True, random_goal=True)
    assert len({env.reset(seed=seed)[0] for seed in range(2000)}) > 1900
