"""Rows of known formats under the standard names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.rewards.prompt_data.rows import UnusableRow, key_of, standard_row

USER = {"role": "user", "content": "2+2?"}
FORMATS: dict[str, tuple[Any, dict[str, Any]]] = {
    "roll": (
        {"id": "0", "prompt": "unused", "messages": json.dumps([USER]), "ground_truth": "4", "tag": "aime"},
        {"ground_truth": "4", "id": "0", "tag": "aime"},
    ),
    "gsm8k": (
        {"question": "2+2?", "answer": "Two and two.\n#### 1,004"},
        {"ground_truth": "1004", "solution": "Two and two.\n#### 1,004"},
    ),
    "deepmath": (
        {"question": "2+2?", "final_answer": "4", "difficulty": 4.5},
        {"ground_truth": "4", "difficulty": 4.5},
    ),
    "big-math": (
        {"problem": "2+2?", "answer": "4", "domain": ["Algebra"], "llama8b_solve_rate": 0.5},
        {"ground_truth": "4"},
    ),
    "orz": (
        [{"from": "human", "value": "2+2?"}, {"from": "assistant", "ground_truth": {"value": "4"}}],
        {"ground_truth": "4"},
    ),
    "math-500": (
        {"problem": "2+2?", "solution": "It is $4$.", "answer": "4", "level": 1, "unique_id": "a/1.json"},
        {"ground_truth": "4", "solution": "It is $4$.", "difficulty": 1, "id": "a/1.json"},
    ),
    "aime": ({"ID": "2024-I-1", "Problem": "2+2?", "Answer": 4}, {"ground_truth": 4, "id": "2024-I-1"}),
    "kodcode": (
        {"question": "2+2?", "solution": "print(4)", "test": "def test(): ...", "style": "instruct"},
        {"solution": "print(4)", "test": "def test(): ..."},
    ),
    "verl": (
        {"prompt": [USER], "reward_model": {"ground_truth": "4"}, "data_source": "dapo"},
        {"ground_truth": "4", "source": "dapo"},
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_known_format_is_recognized(name: str) -> None:
    row, expected = FORMATS[name]
    messages, fields = standard_row(row, {})
    assert messages == [USER]
    assert {key: fields[key] for key in expected} == expected


def test_columns_go_before_what_is_recognized() -> None:
    row = {"prompt": "no", "ask": "2+2?", "answer": "5", "right": "4", "kind": "sums"}
    messages, fields = standard_row(row, {"prompt": "ask", "ground_truth": "right", "tag": "kind"})
    assert messages == [USER]
    assert (fields["ground_truth"], key_of(fields)) == ("4", "sums")


def test_a_domain_goes_before_a_tag() -> None:
    assert key_of({"tag": "aime2024", "domain": "math_rule"}) == "math_rule"
    assert key_of({"tag": "aime2024", "domain": None}) == "aime2024"
    assert key_of({"domain": ["Algebra"]}) == ""


def test_a_column_with_the_system_message_goes_first_unless_the_chat_has_one() -> None:
    turns = [{"from": "user", "value": "Book it."}, {"from": "function_call", "value": "[]"}]
    row = {
        "raw_system": "You call tools.",
        "conversations": [*turns, {"from": "observation", "value": "done"}],
    }
    row["conversations"].append(turns[0])
    messages, _ = standard_row(row, {})
    assert [each["role"] for each in messages] == ["system", "user", "assistant", "tool", "user"]
    assert messages[0]["content"] == "You call tools."
    own = [{"role": "system", "content": "Mine."}, USER]
    assert standard_row({"system": "Theirs.", "messages": own}, {})[0] == own


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (7, "is no JSON object, but a number"),
        ({"answer": "4"}, "has no prompt; its columns are answer"),
        ({"prompt": ""}, "its prompt is empty"),
        ({"prompt": 7}, "its prompt is a number"),
        ({"messages": "[{"}, "its messages are no JSON"),
        ({"messages": {}}, "its messages are an object, not a list of them"),
        ({"messages": [{"role": "user", "content": " "}]}, "its last message is empty"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "a message has the role"),
        ({"messages": [USER, {"role": "assistant", "content": "4"}]}, "end with one of the assistant"),
        (
            {"messages": [USER, {"role": "system", "content": "Be brief."}, USER]},
            "a system message that is",
        ),
        ({"messages": [{"role": "critic", "content": "4"}]}, "a message has the role 'critic'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "images cannot be shown"),
    ],
)
def test_a_row_that_cannot_be_asked_says_why(row: Any, reason: str) -> None:
    with pytest.raises(UnusableRow) as caught:
        standard_row(row, {})
    assert reason in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    ["prompt", "messages", "question", "ground_truth", "answer", "domain", "reward_model"]
)


@given(json_values | st.dictionaries(names, json_values))
def test_any_json_is_a_row_with_a_chat_or_unusable(value: Any) -> None:
    try:
        messages, fields = standard_row(value, {})
    except UnusableRow:
        return
    assert messages[-1]["role"] == "user"
    assert all(isinstance(each["content"], str) for each in messages)
    assert isinstance(key_of(fields), str)


PICTURE = {"path": "a.png", "bytes": None}
NOTHING = [None, "", [], {}, [None], {"path": None, "bytes": None}]


@pytest.mark.parametrize("name", ["image", "images", "video", "videos", "audio", "audios"])
def test_a_row_whose_prompt_shows_more_than_text_is_not_asked(name: str) -> None:
    row = {"prompt": "<image> How many?", "answer": "2"}
    for value in ("a.png", PICTURE, [PICTURE], ["a.png"], b"PNG"):
        with pytest.raises(UnusableRow, match=f"has {name}: only text can be shown"):
            standard_row({**row, name: value}, {})
    for value in NOTHING:
        assert standard_row({**row, name: value}, {})[0] == [{"role": "user", "content": row["prompt"]}]
