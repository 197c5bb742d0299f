"""A trajectory as a page shows it: every token once, with its own numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.engines.tool_calls.reading import AttemptStatus, attempt_metric
from envsdk.view.token_text import token_texts
from envsdk.view.trajectory_view import TEXT_LIMIT, TURN_LIMIT, group_view, shortened, trajectory_view
from tests.envsdk.view.view_runs import branched, make_trajectory, tokenizer

ABOUT: dict[str, Any] = {
    "origin": "train",
    "grp": 0,
    "use": "train",
    "step": 3,
    "why": "",
    "tokens": 10,
    "sampled": 4,
    "oldest": 0,
    "newest": 1,
    "logprob": -0.5,
}


TOKENIZER = tokenizer()


def decode(ids: Any) -> str:
    return str(TOKENIZER.decode(list(ids), skip_special_tokens=False))


def view_of(trajectory: Trajectory, *, with_texts: bool = True, **about: Any) -> dict[str, Any]:
    texts = token_texts(trajectory, decode) if with_texts else None
    view = trajectory_view(trajectory, key="step_000000:0", about=ABOUT | about, texts=texts)
    json.dumps(view, allow_nan=False)
    return view


replies_strategy = st.lists(st.sampled_from(["Left", "Up é漢", "", "a b c"]), max_size=5)


@given(replies_strategy)
def test_every_token_is_shown_once_given_or_sampled(replies: list[str]) -> None:
    trajectory = make_trajectory(1, replies=replies)
    assert trajectory.tokens is not None
    view = view_of(trajectory)
    shown: list[int] = []
    for turn, reply in zip(view["turns"], replies, strict=True):
        shown += turn.get("prompt", {}).get("ids", [])
        shown += turn.get("tokens", {}).get("ids", [])
        if "tokens" in turn:
            assert "".join(turn["tokens"]["texts"]) == reply
    assert shown == trajectory.tokens.ids.tolist()


def test_segments_have_their_own_turns_and_the_turn_they_branch_off() -> None:
    assert view_of(make_trajectory(1))["segments"] == []
    trajectory = branched(make_trajectory(1, replies=("a", "b", "c", "d")))
    segments = view_of(trajectory)["segments"]
    assert [(each["turns"], each["after"], each["role"]) for each in segments] == [
        ([1, 2], None, "main"),
        ([3], None, "helper"),
        ([4], 1, "main"),
    ]
    assert [each["tokens"] for each in segments] == [len(s.tokens or ()) for s in trajectory.segments()]


def test_a_token_has_its_log_probability_and_its_version() -> None:
    view = view_of(make_trajectory(1, replies=("Left",), version=7))
    tokens = view["turns"][0]["tokens"]
    assert tokens["logprobs"] == [0.0, -0.7, -1.4, -2.1]
    assert tokens["versions"] == [[7, 3], [8, 1]]
    assert view["turns"][0]["logprob"] == pytest.approx(-1.05)


def test_without_a_tokenizer_tokens_are_shown_by_their_ids() -> None:
    view = view_of(make_trajectory(1), with_texts=False)
    assert view["has_tokens"]
    assert not view["has_token_texts"]
    assert "texts" not in view["turns"][0]["tokens"]
    assert view["turns"][0]["tokens"]["ids"]


def test_a_policy_without_tokens_shows_its_texts() -> None:
    view = view_of(make_trajectory(1, with_tokens=False), tokens=None, sampled=None, logprob=None)
    assert not view["has_tokens"]
    assert [turn["reply"] for turn in view["turns"]] == ["Left", "Right"]


def test_long_texts_and_many_turns_are_cut_and_counted() -> None:
    trajectory = make_trajectory(1, replies=["Left"] * (TURN_LIMIT + 3), observation="x", with_tokens=False)
    view = view_of(trajectory)
    assert len(view["turns"]) == TURN_LIMIT
    assert view["turns_left_out"] == 3
    long = view_of(make_trajectory(1, observation="y" * (TEXT_LIMIT + 7), with_tokens=False))
    assert long["turns"][0]["observation"].endswith("7 more characters")


rewards = st.lists(st.one_of(st.none(), st.floats(-10, 10)), min_size=1, max_size=8)


@given(rewards)
def test_advantages_are_rewards_less_the_mean_of_those_with_an_outcome(found: list[float | None]) -> None:
    members = [
        {"reward": reward or 0.0, "outcome": "failed" if reward is None else "terminated", "turns": []}
        for reward in found
    ]
    view = group_view(members)
    scored = [reward for reward in found if reward is not None]
    if not scored:
        assert view["mean"] is None
        return
    assert view["mean"] == pytest.approx(sum(scored) / len(scored))
    for member, reward in zip(view["members"], found, strict=True):
        if reward is None:
            assert member["advantage"] is None
        else:
            assert member["advantage"] == pytest.approx(reward - view["mean"])
    assert math.fsum(m["advantage"] or 0.0 for m in view["members"]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("replies", "fork"),
    [
        ([["a", "b"], ["a", "b"]], None),
        ([["a", "b"], ["a", "c"]], 1),
        ([["a"], ["a", "c"]], 1),
        ([["a"], ["b"]], 0),
        ([[], []], None),
    ],
)
def test_the_fork_is_the_first_turn_in_which_replies_differ(
    replies: list[list[str]], fork: int | None
) -> None:
    members = [view_of(make_trajectory(at, replies=one)) for at, one in enumerate(replies)]
    assert group_view(members)["fork"] == fork


def test_a_failed_member_has_no_part_in_the_mean() -> None:
    won = view_of(make_trajectory(1, replies=("a",), success=True))
    failed = view_of(make_trajectory(2, replies=("a",), outcome=Outcome.FAILED))
    view = group_view([won, failed])
    assert view["mean"] == 1.0
    assert [member["advantage"] for member in view["members"]] == [0.0, None]


def test_a_turn_shows_how_its_attempt_to_call_tools_went() -> None:
    trajectory = make_trajectory(1, replies=("Left",))
    turns = [replace(turn, metrics=attempt_metric(AttemptStatus.CUT)) for turn in trajectory.turns]
    view = view_of(replace(trajectory, turns=turns))["turns"][0]
    assert (view["calls"], view["metrics"]) == ("malformed", {})
    assert view_of(trajectory)["turns"][0]["calls"] is None


def graded(details: object) -> Trajectory:
    trajectory = make_trajectory(1, replies=("Left",))
    [turn] = trajectory.turns
    return replace(trajectory, turns=[replace(turn, details=json.dumps(details))])


def test_a_graded_response_shows_its_verdict_its_parts_and_the_rows_fields() -> None:
    details = {
        "verdict": "7 is not 12",
        "parts": {"math": 0.0, "length": -0.5},
        "ground_truth": "12",
        "difficulty": 3,
        "history": [{"role": "system", "content": "Be brief."}],
    }
    [turn] = view_of(graded(details))["turns"]
    assert turn["details"] == {
        "verdict": "7 is not 12",
        "parts": {"math": 0.0, "length": -0.5},
        "fields": [["ground_truth", "12"], ["difficulty", "3"]],
    }
    assert turn["history"] == [["system", "Be brief."]]


def test_a_turn_that_only_begins_a_conversation_is_not_graded() -> None:
    [turn] = view_of(graded({"history": [{"role": "system", "content": "Be brief."}]}))["turns"]
    assert turn["history"] == [["system", "Be brief."]]
    assert "details" not in turn


@given(
    st.dictionaries(
        st.sampled_from(["verdict", "parts", "history", "ground_truth"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
    )
)
def test_details_of_any_shape_can_be_shown(details: dict[str, Any]) -> None:
    [turn] = view_of(graded(details))["turns"]
    assert isinstance(turn["history"], list)
    assert set(turn.get("details", {})) in (set(), {"verdict", "parts", "fields"})


def test_a_shortened_view_keeps_the_verdict() -> None:
    view = view_of(graded({"verdict": "wrong", "ground_truth": "x" * 50_000}))
    small = shortened(view, 4_000)
    assert small["turns"][0]["details"]["verdict"] == "wrong"
    assert len(json.dumps(small)) < 6_000
