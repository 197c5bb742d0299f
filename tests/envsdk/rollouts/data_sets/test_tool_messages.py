from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.rollouts.datasets.tool_messages import with_tool_calls

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def reply(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def answer(*texts: str) -> dict[str, str]:
    return user("\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts))


def test_calls_and_answers_become_messages_of_their_own() -> None:
    messages = [user("Add."), reply(f"Now.{CALL}{CALL}"), answer("1", "2"), reply("3")]
    asked, called, first, second, done = with_tool_calls(messages)
    assert (asked, done) == (messages[0], messages[3])
    assert called["content"] == "Now."
    assert [call["type"] for call in called["tool_calls"]] == ["function", "function"]
    function = called["tool_calls"][0]["function"]
    assert function["name"] == "add"
    assert json.loads(function["arguments"]) == {"a": 1}
    assert [first["tool_call_id"], second["tool_call_id"]] == [call["id"] for call in called["tool_calls"]]
    assert [(each["role"], each["content"]) for each in (first, second)] == [("tool", "1"), ("tool", "2")]


def test_a_single_call_is_answered_by_all_that_follows() -> None:
    _, called, told = with_tool_calls([user("Go."), reply(CALL), user("It is 3.")])
    assert told == {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "It is 3."}


def test_the_last_call_has_no_answer() -> None:
    (called,) = with_tool_calls([reply(CALL)])
    assert len(called["tool_calls"]) == 1


@pytest.mark.parametrize(
    "messages",
    [
        [reply("<tool_call>no JSON</tool_call>"), answer("Error: no call was made")],
        [reply(CALL + CALL), answer("at most one")],
        [reply("Up"), answer("wall")],
    ],
)
def test_what_cannot_be_matched_stays_text(messages: list[dict[str, str]]) -> None:
    assert with_tool_calls(messages) == messages


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant"]), st.sampled_from(["Go.", CALL, CALL * 2, "9"])),
        max_size=6,
    )
)
def test_each_call_has_its_own_number_and_each_answer_a_call(turns: list[tuple[str, str]]) -> None:
    messages = with_tool_calls([{"role": role, "content": content} for role, content in turns])
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert len(ids) == len(set(ids))
    assert {m["tool_call_id"] for m in messages if m["role"] == "tool"} <= set(ids)
