"""Gymnasium's environments here, and ours there, against the real package."""

from __future__ import annotations

import re
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.colorize import color2num, colorize
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk.adapters.gymnasium import SPEC
from envsdk.adapters.gymnasium.env import GymnasiumEnv, best_actions, make_gymnasium_env
from envsdk.adapters.gymnasium.spaces import action_names, how_to_reply, in_words, parser_for, without_colors
from envsdk.adapters.text import MAX_OBSERVATION_LENGTH, NOTHING, as_observation, tagged, tagged_answer
from envsdk.base import registry
from envsdk.contracts.failures import ConfigurationError
from envsdk.testing import TextEnvSuite

CLIFF = {"id": "CliffWalking-v1", "render": "ansi", "actions": ["up", "right", "down", "left"]}
LAKE = {
    "id": "FrozenLake-v1",
    "kwargs": {"is_slippery": False},
    "actions": ["left", "down", "right", "up"],
    "marks": {"highlight": "P"},
}
TAXI = {"id": "Taxi-v4", "actions": ["south", "north", "east", "west", "pick up", "drop off"]}
BLACKJACK = {
    "id": "Blackjack-v1",
    "actions": ["stick", "hit"],
    "labels": ["your sum", "the dealer shows", "usable aces"],
}
CART_POLE = {
    "id": "CartPole-v1",
    "actions": ["left", "right"],
    "labels": ["position", "velocity", "angle", "angular velocity"],
    "success": "truncated",
}
seeds = st.integers(0, 2**31 - 1)

TestCliffWalking = TextEnvSuite.of(
    SPEC,
    {**CLIFF, "success": "terminated", "max_steps": 20, "invalid_penalty": 1.0},
    max_examples=4,
    seeds_give_tasks=False,
)
TestTaxi = TextEnvSuite.of(SPEC, {**TAXI, "max_steps": 20}, max_examples=2)
TestBlackjack = TextEnvSuite.of(SPEC, BLACKJACK, max_examples=4)
TestCartPoleWithThePenaltyForBabbling = TextEnvSuite.of(
    SPEC, {**CART_POLE, "max_steps": 30, "invalid_penalty": 0.1}, max_examples=4
)
TestNumbersAsActions = TextEnvSuite.of(SPEC, {"id": "Pendulum-v1", "max_steps": 20}, max_examples=4)
TestOneOfOursThereAndBack = TextEnvSuite.of(SPEC, {"id": "envsdk/FrozenLake-v1"}, max_examples=4)


@pytest.mark.parametrize("config", [CLIFF, LAKE, TAXI, BLACKJACK], ids=lambda config: config["id"])
@settings(max_examples=10)
@given(seed=seeds, moves=st.lists(st.integers(0, 5), max_size=20))
def test_a_course_is_the_one_gymnasium_plays(config, seed, moves):
    env = make_gymnasium_env(**config)
    theirs = gymnasium.make(config["id"], **config.get("kwargs", {}))
    env.reset(seed=seed)
    theirs.reset(seed=seed)
    for move in moves:
        name = config["actions"][move % len(config["actions"])]
        _, reward, terminated, truncated, info = env.step(f"I choose <answer> {name.upper()} </answer>.")
        expected = theirs.step(move % len(config["actions"]))
        assert (reward, terminated, truncated) == (float(expected[1]), *expected[2:4])
        assert info["metrics"]["action_is_valid"] == 1.0
        if terminated or truncated:
            break


def test_the_rendering_shows_the_player_where_gymnasium_colors_it():
    env = make_gymnasium_env(**LAKE)
    assert env.reset(seed=0)[0] == "PFFF\nFHFH\nFFFH\nHFFG"
    assert env.step("right")[0] == "  (Right)\nSPFF\nFHFH\nFFFH\nHFFG"
    assert env.step("<answer>fly</answer>")[0].endswith(
        "HFFG\nInvalid action: not one of left, down, right, up."
    )


def test_an_observation_is_told_in_words_with_labels():
    env = make_gymnasium_env(**BLACKJACK)
    lines = env.reset(seed=3)[0].splitlines()
    assert [re.sub(r"\d+", "N", line) for line in lines] == [
        "your sum: N",
        "the dealer shows: N",
        "usable aces: N",
    ]


@pytest.mark.parametrize(
    ("config", "seed", "turns"), [({**CLIFF, "success": "terminated"}, 0, 13), (LAKE, 0, 6), (TAXI, 3, None)]
)
def test_where_the_transition_table_is_shown_the_oracle_takes_a_shortest_way(config, seed, turns):
    env = make_gymnasium_env(**config)
    env.reset(seed=seed)
    taken, over = 0, False
    while not over:
        _, _, terminated, truncated, info = env.step(env.oracle())
        taken, over = taken + 1, terminated or truncated
    assert info["success"]
    assert turns in (None, taken)


def test_luck_is_weighed_by_its_probability():
    """From state 0, action 0 wins 1 surely, and action 1 wins 4 with a chance of one in five."""
    end = [(1.0, 1, 0.0, True)]
    table = {
        0: {0: [(1.0, 1, 1.0, True)], 1: [(0.2, 1, 4.0, True), (0.8, 1, 0.0, True)]},
        1: {0: end, 1: end},
    }
    assert best_actions(table)[0] == 0
    table[0][1][0] = (0.5, 1, 4.0, True)
    assert best_actions(table)[0] == 1


def test_the_limit_of_turns_is_the_environments_own():
    assert make_gymnasium_env(**TAXI).max_steps == gymnasium.spec("Taxi-v4").max_episode_steps
    assert make_gymnasium_env(id="envsdk/FrozenLake-v1", kwargs={"max_steps": 9}).max_steps == 9


@pytest.mark.parametrize(
    ("success", "expected"), [("rewarded", False), ("terminated", True), ("truncated", False), (-13, True)]
)
def test_success_is_what_the_configuration_says(success, expected):
    env = make_gymnasium_env(**CLIFF, success=success)
    env.reset(seed=0)
    for move in ["up", *["right"] * 11, "down"]:
        _, _, terminated, _, info = env.step(tagged(move))
    assert terminated
    assert info["success"] is expected


@pytest.mark.parametrize(
    ("moves", "success"),
    [(["down", "right"], False), (["right", "right", "down", "down", "down", "right"], True)],
)
def test_an_episode_that_ends_without_a_reward_is_not_solved(moves, success):
    env = make_gymnasium_env(**LAKE)
    env.reset(seed=0)
    for move in moves:
        _, reward, terminated, _, info = env.step(tagged(move))
    assert terminated
    assert info["success"] is success is (reward > 0)


@pytest.mark.parametrize(
    ("num_turns", "threshold", "expected"), [(3, 4, False), (4, 4, True), (3, None, False)]
)
def test_a_reward_in_every_turn_is_no_success_below_the_threshold(num_turns, threshold, expected):
    """CartPole pays for each step, the one with which the pole falls included."""

    class Paying(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(9), gymnasium.spaces.Discrete(2)
        spec = (
            None
            if threshold is None
            else gymnasium.envs.registration.EnvSpec("toy/Paying-v0", reward_threshold=threshold)
        )

        def reset(self, *, seed=None, options=None):
            self.turn = 0
            return 0, {}

        def step(self, action):
            self.turn += 1
            return self.turn, 1.0, self.turn == num_turns, False, {}

    env = GymnasiumEnv(Paying(), render=lambda env, observation: str(observation))
    env.reset(seed=0)
    *_, info = [env.step("<answer>0</answer>")[4] for _ in range(num_turns)]
    assert info["success"] is expected


def test_success_is_what_the_configuration_says_of_success_counts_where_nothing_else_is_said():
    env = make_gymnasium_env(id="envsdk/Sokoban-v1")
    ours = envsdk.make("envsdk/Sokoban-v1")
    env.reset(seed=5)
    ours.reset(seed=5)
    over = False
    while not over:
        reply = ours.oracle()
        step = env.step(reply)
        assert step == ours.step(reply)
        over = step[2] or step[3]
    assert step[4]["success"] is True


@settings(max_examples=20)
@given(seed=seeds, replies=st.lists(st.sampled_from(["Left", "Down", "Right", "Up", "fly"]), max_size=20))
def test_one_of_ours_comes_back_as_it_went(seed, replies):
    env = make_gymnasium_env(id="envsdk/FrozenLake-v1", kwargs={"size": 5})
    ours = envsdk.make("envsdk/FrozenLake-v1", size=5)
    assert env.reset(seed=seed) == ours.reset(seed=seed)
    for reply in replies:
        step = env.step(reply)
        assert step == ours.step(reply)
        if step[2] or step[3]:
            break


@pytest.mark.parametrize("id", ["envsdk/FrozenLake-v1", "envsdk/Sokoban-v1"])
def test_gymnasium_makes_and_checks_what_ships(id):
    env = gymnasium.make(id)
    check_env(env.unwrapped, skip_render_check=True)
    observation, _ = env.reset(seed=1)
    assert observation in env.observation_space
    assert env.unwrapped.spec.id == id


def test_gymnasiums_vectors_give_our_observations_or_say_how():
    alone = [envsdk.make("envsdk/FrozenLake-v1").reset(seed=seed)[0] for seed in (3, 4)]
    made = [partial(gymnasium.make, "envsdk:envsdk/FrozenLake-v1")] * 2
    with pytest.raises(ValueError, match="shared_memory=False"):
        gymnasium.vector.AsyncVectorEnv(made)
    for vector in (
        gymnasium.vector.AsyncVectorEnv(made, shared_memory=False),
        gymnasium.vector.SyncVectorEnv(made),
    ):
        assert list(vector.reset(seed=3)[0]) == alone
        vector.close()


def test_functions_of_ones_own_render_and_parse():
    env = make_gymnasium_env(
        id="CliffWalking-v1", render=f"{__name__}:where", parse=f"{__name__}:compass", max_steps=3
    )
    assert env.reset(seed=0)[0] == "row 3, column 0"
    assert env.step("<answer>N</answer>")[0] == "row 2, column 0"
    observation, _, _, _, info = env.step("<answer>X</answer>")
    assert observation == "row 2, column 0\nInvalid action: no point of the compass."
    assert info["metrics"] == {"action_is_valid": 0.0}


def where(env, observation):
    return f"row {observation // 12}, column {observation % 12}"


def compass(answer):
    """A point of the compass."""
    if answer not in "NESW":
        raise ValueError("no point of the compass.")
    return "NESW".index(answer)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id": "ClifWalking-v1"}, "id: .*CliffWalking"),
        ({"id": 3}, "id: must be text, not 3"),
        ({"id": "no_such_module:Cliff-v1"}, "id: .*no_such_module"),
        ({**CLIFF, "actions": ["up", "down"]}, "actions: the action space has 4 actions, and 2 names"),
        ({**CLIFF, "actions": ["up", "Up", "down", "left"]}, "actions: names must differ"),
        ({**CLIFF, "actions": [True, False, "a", "b"]}, "actions: must be a list of texts"),
        ({**CLIFF, "kwargs": {"render_mode": "human"}}, "kwargs.render_mode: is chosen by `render`"),
        ({**CLIFF, "kwargs": {"slippery": True}}, "slippery"),
        ({**CLIFF, "marks": {"pink": "x"}}, "marks: unknown style 'pink'"),
        ({**CLIFF, "success": "winning"}, "success: must be one of rewarded"),
        ({**CLIFF, "reply": "tags"}, "reply: must be one of tag, whole"),
        ({**CLIFF, "max_steps": 0}, "max_steps: must be a whole number"),
        ({"id": "CartPole-v1", "render": "ansi"}, "render: CartPole-v1 has no rendering `ansi`"),
        ({**BLACKJACK, "labels": ["sum"]}, "labels: .* has 3 values to name, not 1"),
        ({"id": "Pendulum-v1", "actions": ["push"]}, "actions: only a discrete action space"),
        ({**CLIFF, "render": "nowhere:show"}, "render: 'nowhere:show' cannot be loaded"),
        ({**CLIFF, "parse": "math:pi"}, "parse: 'math:pi' is not callable"),
        ({**CLIFF, "rendr": "ansi"}, "unknown keyword 'rendr'. Did you mean 'render'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_refused_by_name(config, message):
    with pytest.raises(ConfigurationError, match=message):
        envsdk.make(SPEC, **config)


def test_an_action_space_without_a_parser_asks_for_one():
    space = spaces.Dict({"move": spaces.Discrete(2)})
    with pytest.raises(ValueError, match="takes a parser of your own"):
        parser_for(space, None)


def test_an_environment_that_is_there_already_is_wrapped_in_python():
    inside = gymnasium.make("CliffWalking-v1")
    env = GymnasiumEnv(inside, render=where, actions=["up", "right", "down", "left"])
    assert env.reset(seed=0)[0] == "row 3, column 0"
    assert env.step("<answer>up</answer>")[0] == "row 2, column 0"


@given(before=st.text("ab \n"), inside=st.text("xyz", min_size=1), color=st.sampled_from(sorted(color2num)))
def test_marks_stand_where_colors_were(before, inside, color):
    rendering = before + colorize(inside, color, bold=True) + "."
    assert without_colors(rendering, {}) == f"{before}{inside}."
    assert without_colors(rendering, {color: "[{}]"}) == f"{before}[{inside}]."
    highlighted = before + colorize(inside, color, highlight=True)
    assert without_colors(highlighted, {"highlight": "P"}) == f"{before}P"


@given(st.text("\x1b[0;1349mK?a", max_size=20))
def test_no_escape_sequence_stays(rendering):
    assert not re.search(r"\x1b\[[0-9;]*m", without_colors(rendering, {}))


@given(st.lists(st.floats(-2, 2, width=32), min_size=6, max_size=6))
def test_numbers_are_read_as_they_are_written(numbers):
    space = spaces.Box(-2, 2, (2, 3), np.float32)
    action = parser_for(space, None)(", ".join(map(str, numbers)))
    assert action.dtype == np.float32
    assert np.array_equal(action, np.asarray(numbers, np.float32).reshape(2, 3))


@given(st.one_of(st.text(max_size=30), st.from_regex(r"[-0-9. ,e\[\]]{0,30}", fullmatch=True)))
def test_any_answer_is_an_action_of_the_space_or_refused(answer):
    for space in (
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(2),
        spaces.Box(-1, 1, (2,), np.float32),
        spaces.Text(4, charset="abc"),
    ):
        try:
            action = parser_for(space, None)(answer)
        except ValueError:
            continue
        assert action in space


@given(st.integers(1, 20), st.integers(-5, 5), st.data())
def test_every_named_action_can_be_chosen(n, start, data):
    space = spaces.Discrete(n, start=start)
    parse = parser_for(space, None)
    index = data.draw(st.integers(0, n - 1))
    assert parse(action_names(space, None)[index]) == start + index


@pytest.mark.parametrize(
    ("space", "value", "labels", "text"),
    [
        (spaces.Discrete(3, start=1), np.int64(2), ["a", "b", "c"], "b"),
        (spaces.Box(-9, 9, (2,)), np.array([0.12345, 2.0], np.float32), [], "0.123 2"),
        (spaces.Box(-9, 9, (2, 2)), np.array([[1, 2], [3, 4.5]]), [], "1 2\n3 4.5"),
        (spaces.MultiBinary(2), np.array([1, 0], np.int8), ["door", "light"], "door: 1\nlight: 0"),
        (spaces.Text(9), "hello", [], "hello"),
        (
            spaces.Dict({"at": spaces.Discrete(5), "map": spaces.MultiDiscrete([[2, 2], [2, 2]])}),
            {"at": 3, "map": np.array([[0, 1], [1, 0]])},
            [],
            "at: 3\nmap: \n0 1\n1 0",
        ),
    ],
)
def test_values_of_spaces_are_told_in_words(space, value, labels, text):
    assert in_words(space, value, labels=labels) == text


@given(st.text(st.characters(), max_size=30), st.text(st.characters(exclude_characters="<"), max_size=30))
def test_the_last_tagged_answer_is_found_whatever_stands_around_it(around, answer):
    before = around.replace("<", "")
    assert (
        tagged_answer(f"{before}<answer>no</answer>{before}<ANSWER>{answer}</Answer>{before}")
        == answer.strip()
    )
    assert tagged_answer(before) is None


@given(st.text(st.characters()))
def test_every_text_becomes_an_observation(text):
    shown = as_observation(text)
    shown.encode()
    assert shown.strip()
    assert shown in (NOTHING, text) or not text.isascii()


def test_an_endless_text_is_cut_in_the_middle():
    shown = as_observation("a" * 40_000 + "b" * 40_000)
    assert len(shown) <= MAX_OBSERVATION_LENGTH
    assert shown.startswith("aaa")
    assert shown.endswith("bbb")


def prompt_of(**env_config):
    return registry.system_prompt(registry.spec("envsdk/Gymnasium-v1"), env_config)


@pytest.mark.parametrize(
    ("env_config", "told", "reply"),
    [
        (
            {"id": "Taxi-v4", "actions": TAXI["actions"]},
            ["goal is move the taxi to the passenger's location", "[ ] is the taxi, ( ) the place"],
            "such as <answer>south</answer>. The actions are: south, north, east, west, pick up, drop off.",
        ),
        (
            {"id": "Blackjack-v1"},
            ["the goal is to beat the dealer", "- 0: Stick\n- 1: Hit", "the player's current sum"],
            "such as <answer>0</answer>. The actions are: 0, 1.",
        ),
        (
            {"id": "CliffWalking-v1", "actions": ["up", "right", "down", "left"]},
            ["start to goal while avoiding falling off a cliff", "x is the player", "incurs -100 reward"],
            "such as <answer>up</answer>. The actions are: up, right, down, left.",
        ),
        (
            {"id": "CartPole-v1", "actions": ["left", "right"]},
            ["the goal is to balance the pole", "| 2   | Pole Angle "],
            "such as <answer>left</answer>. The actions are: left, right.",
        ),
        (
            {"id": "Pendulum-v1"},
            ["swing it\ninto an upright position", "Angular Velocity"],
            "Reply with one number from -2 to 2 in tags, such as <answer>0.0</answer>.",
        ),
        (
            {"id": "CliffWalking-v1", "reply": "whole"},
            ["- 0: Move up"],
            "Reply with one action, such as 0. The actions are: 0, 1, 2, 3.",
        ),
    ],
    ids=lambda value: value["id"] if isinstance(value, dict) else "",
)
def test_the_prompt_names_the_task_and_an_action_of_the_environments_own(env_config, told, reply):
    prompt = prompt_of(**env_config)
    assert all(text in prompt for text in told), prompt
    assert prompt.endswith(reply)
    assert "Any Gymnasium environment" not in prompt
    assert not re.search(r"<a |</a>|```|\]\(|\n\n\n|Version History|gymnasium.make", prompt)
    example = re.search(r"such as (<answer>.*?</answer>|\S+)\.", prompt)
    env = envsdk.make("envsdk/Gymnasium-v1", **env_config)
    env.reset(seed=0)
    observation, *_ = env.step(example[1])
    assert "Invalid action" not in observation
    env.close()


bounds = st.floats(-9, 9, width=32) | st.sampled_from([-np.inf, np.inf])
boxes = st.lists(st.tuples(bounds, bounds).map(sorted), min_size=1, max_size=4).map(
    lambda pairs: spaces.Box(*np.array(pairs, np.float32).T, dtype=np.float32)
)
spaces_of_numbers = st.one_of(
    boxes,
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.integers(1, 4).map(spaces.MultiBinary),
    st.builds(spaces.Discrete, st.integers(1, 40), start=st.integers(-3, 3)),
)


@given(space=spaces_of_numbers)
@settings(deadline=None)
def test_the_example_in_the_prompt_is_an_action_of_its_space(space):
    example = re.search(r"such as <answer>(.*)</answer>", how_to_reply(space, None, reads_whole=False))
    assert parser_for(space, None)(example[1]) in space


class Undocumented(gymnasium.Env):
    observation_space = spaces.Discrete(2)
    action_space = spaces.MultiDiscrete([3, 5])


Undocumented.__doc__ = None


def test_an_environment_without_documentation_is_told_by_its_actions():
    gymnasium.register("Undocumented-v0", entry_point=f"{__name__}:Undocumented")
    assert (
        prompt_of(id="Undocumented-v0")
        == "Reply with 2 whole numbers, 0 to 2, 0 to 4, in tags, such as <answer>0 0</answer>."
    )


def test_a_parser_of_ones_own_tells_its_documentation():
    prompt = prompt_of(id="CliffWalking-v1", parse=f"{__name__}:compass")
    assert prompt.endswith(f"{compass.__doc__}\nReply with one action in tags: <answer>...</answer>.")
    assert "0: Move up" not in prompt


def test_one_of_ours_behind_gymnasium_keeps_its_own_prompt():
    ours = registry.system_prompt(registry.spec("envsdk/FrozenLake-v1"), {})
    assert prompt_of(id="envsdk:envsdk/FrozenLake-v1") == ours


def test_a_prompt_of_arguments_that_the_environment_refuses_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="unknown keyword 'actoins'"):
        prompt_of(id="CliffWalking-v1", actoins=[])
    with pytest.raises(ConfigurationError, match="id: "):
        prompt_of(id="Nowhere-v1")
