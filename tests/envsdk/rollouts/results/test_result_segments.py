"""Episodes of several segments in results: a row for each, and every sampled token in one of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given

from envsdk.contracts.prompts import AgentPrompts, TagPrompts
from envsdk.rollouts.results.frames import training_rows
from envsdk.rollouts.results.trajectories import Trajectories
from tests.envsdk.contracts.trees import Node, planted, trees

BRANCHED = [
    Node(follows=None, num_prompt=2, num_reply=2),
    Node(follows=None, num_prompt=1, num_reply=1),
    Node(follows=0, num_prompt=1, num_reply=3),
]
SHOWN = TagPrompts(prompts=AgentPrompts(system="Sys"), max_turns=9)


def results(nodes: list[Node]) -> Trajectories:
    """The tree, and a line, in one group."""
    line = [replace(node, follows=None) for node in nodes]
    members = [planted(nodes, reward=1.0, name="a"), planted(line, reward=0.0, name="b")]
    return Trajectories(replace(each, shown=SHOWN) for each in members)


@given(nodes=trees(min_reply=1))
@example(nodes=BRANCHED)
def test_rows_are_segments_and_each_sampled_token_is_in_one_of_them(nodes: list[Node]) -> None:
    trajectories = results(nodes)
    arrays = trajectories.to_arrays()
    num_segments = len(trajectories[0].segments())
    assert arrays["episodes"].tolist() == [0] * num_segments + [1]
    for number, episode in enumerate(trajectories):
        mine = arrays["episodes"] == number
        learned = np.sort(arrays["ids"][mine][arrays["response_mask"][mine] == 1])
        assert episode.tokens is not None
        assert learned.tolist() == episode.tokens.ids[episode.tokens.response_mask == 1].tolist()
        assert arrays["token_rewards"][mine].sum() == pytest.approx(episode.total_reward)
        assert set(arrays["rewards"][mine].tolist()) == {episode.total_reward}
    advantages = trajectories.advantages("grpo", grpo_normalize_std=False)
    for row, values in enumerate(advantages):
        sign = 0.5 if arrays["episodes"][row] == 0 else -0.5
        assert np.array_equal(values, sign * arrays["response_mask"][row][: len(values)])


def test_conversations_and_rows_say_what_is_learned_elsewhere() -> None:
    trajectories = results(BRANCHED)
    chats = trajectories.to_messages()
    assert [[each["content"] for each in chat] for chat in chats[:2]] == [
        ["Sys", "see 0", "do 0", "see 1", "do 1"],
        ["Sys", "see 0", "do 0", "see 2", "do 2"],
    ]
    first, second, _ = training_rows(trajectories, [0, 0])
    assert [each["content"] for each in first["completion"]] == ["do 0", "see 1", "do 1"]
    assert [each["content"] for each in second["prompt"]] == ["Sys", "see 0", "do 0", "see 2"]
    assert [each["content"] for each in second["completion"]] == ["do 2"]


def test_verl_gets_a_row_for_each_segment() -> None:
    pytest.importorskip("torch")
    found = results(BRANCHED).to_verl()
    assert found["non_tensors"]["trajectory_id"].tolist() == ["a", "a", "b"]
    assert found["non_tensors"]["__num_turns__"].tolist() == [4, 4, 6]
    assert found["tensors"]["response_mask"].sum().item() == 12
