"""Segments: every path of an episode's tree as one sequence, every sampled token trained in one of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envsdk.algorithms.units import in_parts
from envsdk.contracts.prompts import AgentPrompts, TagPrompts
from envsdk.contracts.segments import last_segment, prompt_lengths
from envsdk.contracts.trajectory import NO_VERSION, Turn
from tests.envsdk.contracts.trees import Node, path_ids, planted, trees

BRANCHED = [
    Node(follows=None, num_prompt=2, num_reply=1),
    Node(follows=None, num_prompt=1, num_reply=2),
    Node(follows=0, num_prompt=1, num_reply=1, role="helper"),
    Node(follows=-1, num_prompt=3, num_reply=1),
]


@given(trees())
@example(BRANCHED)
def test_each_sampled_token_is_trained_in_exactly_one_segment_on_the_path_it_was_sampled_on(
    nodes: list[Node],
) -> None:
    episode = planted(nodes)
    assert episode.tokens is not None
    trained: Counter[int] = Counter()
    leaves = {n for n in range(len(nodes)) if n not in {node.before(i) for i, node in enumerate(nodes)}}
    segments = episode.segments()
    assert {segment.numbers[-1] for segment in segments} == leaves
    begins = [segment.numbers[segment.num_given_turns] for segment in segments]
    assert begins == sorted(begins)
    assert last_segment(segments).numbers[-1] == len(nodes) - 1
    for place, segment in enumerate(segments):
        tokens = segment.tokens
        assert tokens is not None
        assert tokens.ids.tolist() == path_ids(nodes, segment.numbers[-1])
        sampled = tokens.response_mask == 1
        trained.update(tokens.ids[sampled].tolist())
        flat = tokens.ids[sampled] - 1
        assert np.array_equal(tokens.behavior_logprobs[sampled], episode.tokens.behavior_logprobs[flat])
        assert np.array_equal(tokens.versions[sampled], episode.tokens.versions[flat])
        assert (tokens.versions[~sampled] == NO_VERSION).all()
        assert not tokens.behavior_logprobs[~sampled].any()
        for number, turn in zip(segment.numbers, segment.turns, strict=True):
            theirs = episode.turns[number]
            ids = tokens.ids[turn.response_start : turn.response_end] - 1
            assert ids.tolist() == list(range(theirs.response_start, theirs.response_end))
            assert (turn.reply, turn.role) == (theirs.reply, theirs.role)
        assert segment.role == nodes[segment.numbers[-1]].role
        # The given part is a beginning of the parent, and belongs to an earlier segment.
        assert (segment.parent is None) == (segment.num_given_turns == 0)
        if segment.parent is not None:
            assert segment.parent < place
            parent = segments[segment.parent].tokens
            given_ids = tokens.ids[: segment.num_given_tokens]
            assert parent is not None
            assert np.array_equal(parent.ids[: len(given_ids)], given_ids)
        taken = segment.take(episode.tokens.response_mask)
        assert np.array_equal(taken, tokens.response_mask)
    assert trained == Counter((np.flatnonzero(episode.tokens.response_mask) + 1).tolist())


@given(trees())
def test_prompts_are_as_long_as_the_path_before_them(nodes: list[Node]) -> None:
    turns = planted(nodes).turns
    for number, length in enumerate(prompt_lengths(turns)):
        assert length == len(path_ids(nodes, number)) - nodes[number].num_reply


@given(trees())
def test_an_episode_of_one_line_is_its_segment(nodes: list[Node]) -> None:
    episode = planted([replace(node, follows=None) for node in nodes])
    (segment,) = episode.segments()
    assert segment.turns is episode.turns
    assert segment.tokens is episode.tokens
    assert episode.tokens is not None
    assert segment.take(episode.tokens.ids) is episode.tokens.ids
    assert prompt_lengths(episode.turns) == [turn.response_start for turn in episode.turns]


def test_an_episode_without_tokens_has_segments_too() -> None:
    def turn(reply: str, follows: int | None) -> Turn:
        return Turn(
            observation="o", reply=reply, reward=0.0, response_start=0, response_end=0, follows=follows
        )

    episode = replace(planted(BRANCHED), turns=(turn("a", None), turn("b", -1), turn("c", 0)), tokens=None)
    assert [[each.reply for each in segment.turns] for segment in episode.segments()] == [["a", "c"], ["b"]]


def test_the_messages_of_a_segment_are_those_of_its_turns_with_their_numbers_in_the_episode() -> None:
    shown = TagPrompts(prompts=AgentPrompts(system="Sys", template="{turn_idx}: {observation}"), max_turns=9)
    episode = replace(planted(BRANCHED), shown=shown)
    first, second, third = episode.segments()
    assert [each["content"] for each in episode.to_messages(second)] == [
        *("Sys", "1: see 0", "do 0", "3: see 2", "do 2")
    ]
    assert episode.to_messages() == episode.to_messages(third)
    assert [each["content"] for each in episode.to_messages()] == ["Sys", "4: see 3", "do 3"]
    assert len(episode.to_messages(first)) == 5


@pytest.mark.parametrize("follows", [1, -2, 5])
def test_a_turn_cannot_follow_one_that_is_not_before_it(follows: int) -> None:
    episode = planted([Node(follows=None, num_prompt=1, num_reply=1)] * 2)
    turns = [episode.turns[0], replace(episode.turns[1], follows=follows)]
    with pytest.raises(ValueError, match=f"turn 1 follows turn {follows}"):
        replace(episode, turns=turns).segments()


@given(trees(), st.sampled_from(["segment", "role"]))
def test_the_parts_of_an_episode_have_each_sampled_token_and_reward_once(
    nodes: list[Node], unit: Literal["segment", "role"]
) -> None:
    episode = planted(nodes)
    parts = in_parts([episode, replace(planted(nodes), group_id=1)], unit)
    half = parts[: len(parts) // 2]
    assert episode.tokens is not None
    sampled = [
        token
        for part in half
        if part.tokens is not None
        for token in part.tokens.ids[part.tokens.response_mask == 1].tolist()
    ]
    assert sorted(sampled) == episode.tokens.ids[episode.tokens.response_mask == 1].tolist()
    learned = [segment for segment in episode.segments() if episode.learns(segment)]
    own = [number for segment in learned for number in segment.numbers[segment.num_given_turns :]]
    assert sum(part.total_reward for part in half) == sum(episode.turns[number].reward for number in own)
    # Groups stay apart, and so do roles where they are the unit.
    labels = [(segment.role if unit == "role" else "") for segment in learned]
    assert len({part.group_id for part in parts}) == 2 * len(set(labels))
    assert [part.group_id for part in half] == [half[labels.index(label)].group_id for label in labels]
