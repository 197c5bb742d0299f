"""Conversations to learn from, wherever they come from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.collect import collect
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.prompts import AgentPrompts, Line, TagPrompts
from envsdk.contracts.segments import is_learned
from envsdk.rollouts.datasets.conversation import Conversation
from envsdk.rollouts.datasets.conversations import read_conversations
from envsdk.rollouts.datasets.formats import export, make_formats
from envsdk.rollouts.datasets.reading import open_dataset
from envsdk.rollouts.datasets.saving import save_episodes
from envsdk.rollouts.datasets.selection import EpisodeFilters
from envsdk.trainers.warm_start.fine_tuning import split_held_out
from tests.envsdk.contracts.trees import Node, planted

CHAT = [
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "There."},
]


def test_a_collection_its_messages_and_both_forms_of_files_say_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "demos"
    collect(
        "envsdk/FrozenLake-v1", folder, num_episodes=30, epsilon=0.5, formats=["messages", "messages-parquet"]
    )
    sources = [
        folder,
        folder / "messages",
        folder / "messages-parquet",
        folder / "messages" / "part-00000.jsonl",
    ]
    read = [[each.messages for each in read_conversations([source])] for source in sources]
    assert read[0] == read[1] == read[2]
    assert read[3] == read[0][: len(read[3])]
    assert len(read[0]) == 30
    solved = list(read_conversations([folder], EpisodeFilters(success_only=True)))
    assert 0 < len(solved) < 30
    assert len(list(read_conversations([folder, folder / "messages"]))) == 60


def test_contents_in_parts_are_joined_and_chats_without_a_reply_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    parts = [{"type": "text", "text": "Whe"}, {"type": "text", "text": "re?"}]
    rows = [
        {"messages": [{"role": "user", "content": parts}, CHAT[1]], "source": "x"},
        {"messages": CHAT[:1]},
        {"messages": []},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert [each.messages for each in read_conversations([path])] == [CHAT]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("chats.jsonl", "{\n", "line 1 is not JSON"),
        ("chats.jsonl", "[]\n", 'row 1 is no {"messages"'),
        ("chats.jsonl", '{"messages": "hello"}', "row 1 is no"),
        ("chats.jsonl", '{"messages": [{"role": "user"}]}', "row 1, message 0 must have a `role` and a text"),
        (
            "chats.jsonl",
            '{"messages": [{"role": "user", "content": [{"type": "image"}]}]}',
            "must have a `role`",
        ),
        ("chats.txt", "", "must be a .jsonl or .parquet file"),
        ("chats.parquet", "nonsense", "cannot read"),
    ],
)
def test_a_file_that_is_something_else_is_named(
    tmp_path: Path, name: str, content: str, expected: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigurationError, match=name) as refused:
        list(read_conversations([tmp_path / name]))
    assert expected in str(refused.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no"):
        list(read_conversations([tmp_path / "nowhere"]))
    with pytest.raises(ConfigurationError, match="is no data set"):
        list(read_conversations([tmp_path]))
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), tmp_path / "other.parquet")
    with pytest.raises(ConfigurationError, match="no column `messages`; it has text, label"):
        list(read_conversations([tmp_path]))


def test_messages_cannot_be_filtered_by_success(tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": CHAT}))
    with pytest.raises(ConfigurationError, match="tell no outcome"):
        list(read_conversations([tmp_path], EpisodeFilters(success_only=True)))


def chat(question: str, answer: str) -> Conversation:
    return Conversation(
        line=Line(spoken=[{"role": "user", "content": question}, {"role": "assistant", "content": answer}])
    )


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=30), st.integers(0, 5))
def test_no_task_is_learned_and_held_out(chats: list[tuple[str, str]], seed: int) -> None:
    conversations = [chat(*each) for each in chats]
    learned, held_out = split_held_out(conversations, share=0.5, seed=seed)
    assert len(learned) + len(held_out) == len(conversations)
    assert not {each.task for each in learned} & {each.task for each in held_out}
    again = split_held_out(list(reversed(conversations)), share=0.5, seed=seed)
    assert {each.task for each in again[1]} == {each.task for each in held_out}


def test_the_share_that_is_held_out_is_about_what_was_asked_for() -> None:
    conversations = [chat(str(number), "yes") for number in range(2000)]
    assert 150 < len(split_held_out(conversations, share=0.1, seed=42)[1]) < 250
    assert split_held_out(conversations, share=0.0, seed=42)[1] == []


def test_each_segment_is_a_conversation_whose_replies_are_learned_once(tmp_path: Path) -> None:
    nodes = [
        Node(follows=None, num_prompt=2, num_reply=1),
        Node(follows=None, num_prompt=1, num_reply=1),
        Node(follows=0, num_prompt=1, num_reply=1),
        Node(follows=-1, num_prompt=3, num_reply=1),
    ]
    shown = TagPrompts(prompts=AgentPrompts(system="Sys"), max_turns=9, env_type="toys/Tree-v1")
    save_episodes([replace(planted(nodes), shown=shown)], tmp_path / "trees", policy="model")
    found = list(read_conversations([tmp_path / "trees"]))
    assert [each.num_given_replies for each in found] == [0, 1, 0]
    assert [each.messages[-1]["content"] for each in found] == ["do 1", "do 2", "do 3"]
    assert len({each.task for each in found}) == 1
    dataset = open_dataset(tmp_path / "trees")
    for wanted in make_formats(["messages", "messages-parquet"]):
        assert dataset.manifest is not None
        export(dataset, wanted, dataset.manifest)
        again = list(read_conversations([tmp_path / "trees" / wanted.name]))
        assert [(each.messages, each.num_given_replies) for each in again] == [
            (each.messages, each.num_given_replies) for each in found
        ]


@pytest.mark.parametrize(
    ("tools", "problem"),
    [("[{", "row 1: tools is not JSON"), ({"a": 1}, "row 1: tools is no list: {'a': 1}")],
)
def test_tools_of_a_file_that_are_none_are_named(tmp_path: Path, tools: Any, problem: str) -> None:
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": CHAT, "tools": tools}))
    with pytest.raises(ConfigurationError, match=problem):
        list(read_conversations([tmp_path / "chats.jsonl"]))


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ({"num_given_replies": "x"}, "row 1: num_given_replies is no number of replies: 'x'"),
        ({"num_given_replies": -1}, "row 1: num_given_replies is no number of replies: -1"),
        ({"masked_replies": ["x"]}, r"row 1: masked_replies must be .* 1 replies, from 0, not \['x'\]"),
        ({"masked_replies": [1]}, r"masked_replies must be whole numbers of the row's 1 replies"),
        ({"masked_replies": [True]}, r"masked_replies must be whole numbers of the row's 1 replies"),
        ({"messages": [CHAT[0], {**CHAT[1], "weight": "0"}]}, "weight of a message is 0 or 1, not '0'"),
        ({"messages": [CHAT[0], {**CHAT[1], "weight": 0.5}]}, "weight of a message is 0 or 1, not 0.5"),
    ],
)
def test_numbers_of_replies_that_are_none_are_named(
    tmp_path: Path, column: dict[str, Any], problem: str
) -> None:
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": CHAT, **column}))
    with pytest.raises(ConfigurationError, match=problem):
        list(read_conversations([tmp_path / "chats.jsonl"]))


def test_random_moves_are_shown_and_not_learned(tmp_path: Path) -> None:
    collect("envsdk/FrozenLake-v1", tmp_path / "lake", num_episodes=20, epsilon=0.5, seed=7)
    played = list(open_dataset(tmp_path / "lake").episodes())
    slips = [[at for at, turn in enumerate(each.turns) if not is_learned(turn)] for each in played]
    found = list(read_conversations([tmp_path / "lake"]))
    assert [each.masked_replies for each in found] == slips
    share = sum(map(len, slips)) / sum(len(each.turns) for each in played)
    assert 0.3 < share < 0.7
    dataset = open_dataset(tmp_path / "lake")
    for wanted in make_formats(["messages", "messages-parquet"]):
        assert dataset.manifest is not None
        export(dataset, wanted, dataset.manifest)
        again = list(read_conversations([tmp_path / "lake" / wanted.name]))
        assert [(each.messages, each.masked_replies) for each in again] == [
            (each.messages, slip) for each, slip in zip(found, slips, strict=True)
        ]


def test_a_message_of_weight_0_is_not_learned(tmp_path: Path) -> None:
    """As in files for the fine-tuning of OpenAI's models."""
    messages = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "5", "weight": 0},
        {"role": "user", "content": "No."},
        {"role": "assistant", "content": "4", "weight": 1},
    ]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": messages}))
    (found,) = read_conversations([tmp_path / "chats.jsonl"])
    assert found.masked_replies == [0]
