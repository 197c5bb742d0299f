import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk import make
from envsdk.envs.grid import MOVES, NO_ANSWER, NOT_A_MOVE, parse_move


@pytest.mark.parametrize(
    "reply",
    [
        "<answer>Right</answer>",
        "<answer>right</answer>",
        "<ANSWER> RIGHT\n</ANSWER>",
        "Right",
        "  right ",
        "<think>Left is a hole.</think><answer>Left</answer> no, <answer>Right</answer>",
        "<answer>Right</answer> and then <answer>",
        "<answer>Right</answer></answer>",
    ],
)
def test_a_move_is_read_from_the_last_answer_or_the_bare_word(reply):
    assert MOVES[parse_move(reply)] == "Right"


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", NO_ANSWER),
        ("go right", NO_ANSWER),
        ("<answer>Right", NO_ANSWER),
        ("</answer>Right<answer>", NO_ANSWER),
        ("<answer></answer>", NOT_A_MOVE),
        ("<answer>Right, Down</answer>", NOT_A_MOVE),
        ("<answer>Right</answer><answer>Jump</answer>", NOT_A_MOVE),
    ],
)
def test_what_names_no_move_is_told_apart_by_why(reply, problem):
    assert parse_move(reply) == problem


@given(before=st.text(), move=st.sampled_from(MOVES), after=st.text())
def test_any_text_around_the_last_answer_is_ignored(before, move, after):
    after = after.replace(">", "")
    assert MOVES[parse_move(f"{before}<answer>{move}</answer>{after}")] == move


def test_a_long_hostile_reply_is_read_in_linear_time():
    started = time.process_time()
    parse_move("<answer>" * 200_000)
    parse_move("<answer>" * 200_000 + "</answer>" * 200_000)
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize("env_id", ["envsdk/FrozenLake-v1", "envsdk/Sokoban-v1"])
def test_a_reply_without_a_thought_is_no_move_where_one_is_required(env_id: str) -> None:
    env = make(env_id, require_think=True)
    first, _ = env.reset(seed=1)
    after, *_, info = env.step("<answer>Up</answer> <think>late</think>")
    assert info["metrics"]["action_is_valid"] == 0.0
    assert after.endswith("Invalid action: no <think>...</think> before <answer>.")
    *_, info = env.step(env.oracle())
    assert info["metrics"]["action_is_valid"] == 1.0
    assert env.legal_actions()[0].startswith("<think>")
    assert env.observation_space.contains(first)
