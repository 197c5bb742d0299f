"""Anthropic's Messages: requests as the chat requests that they mean, replies as blocks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.messages import settled
from envsdk.engines.endpoint.parsing import Histories
from envsdk.engines.endpoint.protocol import Answer, Piece, ReplyHead
from envsdk.engines.endpoint.protocols.anthropic import MessagesWriter, error_body
from envsdk.engines.endpoint.protocols.anthropic_request import read_messages
from envsdk.engines.endpoint.record import Prompt, message_keys, next_key
from envsdk.engines.endpoint.wire import ChatFields, read_chat
from envsdk.engines.tool_calls.reading import ToolCall

BILLING = "x-anthropic-billing-header: cc_version=2.1.197.f45; cc_entrypoint=cli; cch=1a2b;"
CACHE = {"type": "ephemeral"}
Messages = list[dict[str, Any]]

texts = st.text("ab\n <think/>é漢", max_size=12)
arguments = st.dictionaries(
    st.sampled_from("abc"), st.integers(-3, 3) | st.text("x ", max_size=3), max_size=2
)


def read(messages: Messages, **fields: Any) -> ChatFields:
    body = {"model": "policy", "max_tokens": 9, "messages": messages, **fields}
    return read_messages(json.dumps(body).encode(), Histories())


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@st.composite
def turns(draw: st.DrawFn) -> tuple[Messages, Messages]:
    """One reply and what is said to it: as chat, and as Messages."""
    content, thought = draw(texts), draw(texts)
    calls = draw(st.lists(st.tuples(st.sampled_from(["look", "go"]), arguments), max_size=2))
    said = draw(texts) if draw(st.booleans()) or not calls else None
    ids = [draw(st.uuids()).hex for _ in calls]
    chat: dict[str, Any] = {"role": "assistant", "content": content}
    cut = draw(st.integers(0, len(content)))
    halves = [content[:cut], content[cut:]] if draw(st.booleans()) else [content]
    blocks: Messages = [{"type": "text", "text": half} for half in halves]
    if thought:
        chat["reasoning_content"] = thought
        blocks.insert(0, {"type": "thinking", "thinking": thought, "signature": "any"})
    if calls:
        chat["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for id, (name, given) in zip(ids, calls, strict=True)
        ]
        blocks += [
            {"type": "tool_use", "id": id, "name": name, "input": given}
            for id, (name, given) in zip(ids, calls, strict=True)
        ]
    in_chat, results = [chat], Messages()
    for id in ids:
        result, is_error = draw(texts), draw(st.booleans())
        in_chat.append(
            {"role": "tool", "tool_call_id": id, "content": "Error: " + result if is_error else result}
        )
        told = draw(st.sampled_from([result, [{"type": "text", "text": result}]]))
        results.append({"type": "tool_result", "tool_use_id": id, "content": told, "is_error": is_error})
    if said is not None:
        in_chat.append(user(said))
        results.append({"type": "text", "text": said})
    for block in [*blocks, *results]:
        if draw(st.booleans()):
            block["cache_control"] = CACHE
    content_of_user: Any = said if not calls and draw(st.booleans()) else results
    return in_chat, [{"role": "assistant", "content": blocks}, user(content_of_user)]


@given(
    system=st.none() | texts.filter(bool),
    first=texts,
    further=st.lists(turns(), max_size=4),
    inline=st.none() | texts,
    has_header=st.booleans(),
)
def test_a_conversation_in_messages_is_the_same_conversation_in_chat(
    system: str | None,
    first: str,
    further: list[tuple[Messages, Messages]],
    inline: str | None,
    has_header: bool,
) -> None:
    chat: Messages = [{"role": "system", "content": system}] if system else []
    chat.append(user(first))
    messages = [user([{"type": "text", "text": first, "cache_control": CACHE}])]
    if inline is not None:
        chat.append({"role": "system", "content": inline})
        messages.append({"role": "system", "content": inline})
    for in_chat, in_messages in further:
        chat += in_chat
        messages += in_messages
    blocks = [{"type": "text", "text": text} for text in ([BILLING] if has_header else []) + [system or ""]]
    given = read(messages, system=blocks if has_header or not system else system)
    expected = read_chat(json.dumps({"model": "policy", "messages": chat}).encode())
    assert given.conversation == expected.conversation
    assert ("system[].x-anthropic-billing-header" in given.ignored) == has_header


def test_a_system_prompt_of_text_loses_the_billing_header_alone() -> None:
    fields = read([user("hi")], system=f"{BILLING}\n\nYou are an agent.\nx-anthropic-billing-header: kept")
    assert fields.conversation[0]["content"] == "You are an agent.\nx-anthropic-billing-header: kept"


def test_tools_and_settings_are_those_of_chat() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    fields = read(
        [user("hi")],
        tools=[
            {"name": "look", "description": "Look.", "input_schema": schema, "cache_control": CACHE},
            {"type": "custom", "name": "go", "input_schema": schema, "defer_loading": True},
        ],
        tool_choice={"type": "tool", "name": "go", "disable_parallel_tool_use": True},
        stop_sequences=["END"], temperature=0.5, top_p=0.9, top_k=5, stream=True,
    )  # fmt: skip
    assert fields.tools is not None
    assert fields.tools[0]["function"] == {"name": "look", "description": "Look.", "parameters": schema}
    assert [tool["name"] for tool in fields.callable_tools] == ["go"]
    assert fields.ends_with_first_call
    assert (fields.longest_reply, fields.stops, fields.stream) == (9, ("END",), True)
    assert (fields.temperature, fields.top_p, fields.top_k) == (0.5, 0.9, 5)
    assert sorted(fields.ignored) == ["tools[].cache_control", "tools[].defer_loading"]
    choices = {"auto": "auto", "any": "required", "none": "none"}
    tools = [{"name": "go", "input_schema": schema}]
    for choice, expected in choices.items():
        assert read([user("hi")], tools=tools, tool_choice={"type": choice}).tool_choice == expected


def test_the_form_of_the_output_is_that_of_chat() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    fields = read([user("hi")], output_config={"format": form, "effort": "high"})
    assert fields.structure is not None
    assert fields.structure.json_schema == '{"type": "object"}'
    assert list(fields.ignored) == ["output_config.effort"]


def test_unknown_fields_are_counted_by_name_and_change_nothing() -> None:
    plain = read([user("hi")])
    fields = read(
        [{"role": "user", "content": [{"type": "text", "text": "hi", "new": 1}], "mood": "good"}],
        metadata={"user_id": "x"}, thinking={"type": "adaptive"}, betas=["b"], container=None,
    )  # fmt: skip
    assert set(fields.ignored) == {
        "metadata", "thinking", "betas", "messages[].mood", "messages[].content[].new"
    }  # fmt: skip
    assert fields.conversation == plain.conversation


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": [user([IMAGE])]}, r"`messages\[0\].content\[0\]` is of type `image`, which is not"),
        ({"messages": [user([RESULT])]}, r"`messages\[0\].content\[0\].content\[0\]` is of type `image`"),
        ({"messages": [user([{"type": "text"}])]}, r"`messages\[0\].content\[0\].text` is missing"),
        ({"messages": [user([{"text": "hi"}])]}, r"`messages\[0\].content\[0\]`"),
        ({"messages": [user(3)]}, r"`messages\[0\].content`"),
        ({"messages": []}, "`messages`"),
        ({"messages": [{"role": "assistant", "content": [{**RESULT, "content": ""}]}]}, "`tool_result`"),
        ({"tools": [SEARCH]}, r"`tools\[0\]` \(`web_search_20250305`\) has no `input_schema`"),
        ({"tool_choice": {"type": "any"}}, "needs `tools`"),
        ({"stop_sequences": "END"}, "`stop_sequences`"),
        ({"max_tokens": 0}, "`max_tokens`"),
        ({"temperature": -1.0}, "`temperature`"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=message):
        read(**{"messages": [user("hi")], **fields})


roles = st.sampled_from(["system", "user", "tool", "assistant"])


@given(said=st.lists(roles, max_size=8), takes_system=st.booleans(), kept=st.integers(0, 8))
@example(said=["user", "system", "assistant", "system", "tool"], takes_system=False, kept=3)
@example(said=["user", "assistant", "system", "tool"], takes_system=True, kept=0)
def test_system_messages_are_kept_where_they_stand_and_never_between_a_call_and_its_result(
    said: list[str], takes_system: bool, kept: int
) -> None:
    messages = [{"role": role, "content": f"{number:02}."} for number, role in enumerate(said)]
    placed = settled(messages, takes_system=takes_system)
    text = "".join(message["content"].replace("\n", "") for message in placed)
    assert sorted(text.split(".")) == sorted("".join(m["content"] for m in messages).split("."))
    if not takes_system:
        assert all(message["role"] != "system" for message in placed[1:])
    elif "tool" not in said:
        assert placed == messages
    for number, message in enumerate(placed):
        if message["role"] == "system" and number:
            turn = [each["role"] for each in placed[number:]]
            assert "tool" not in turn[: turn.index("assistant") if "assistant" in turn else None]
    others = [message for message in messages if message["role"] == "assistant"]
    assert [message for message in placed if message["role"] == "assistant"] == others
    # What was settled up to a reply stays as it is when more is said.
    end = next((number for number in range(kept, len(said)) if said[number] == "assistant"), None)
    if end is not None:
        before = settled(messages[:end], takes_system=takes_system)
        assert placed[: len(before)] == before


HEAD = ReplyHead(unique="0f" * 12, created=0, model="policy", token_text=str)
PROMPT = Prompt(ids=[1, 2, 3], new_ids=[1, 2, 3], parent=None, observation="")
ASKED = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}


def writer() -> MessagesWriter:
    return MessagesWriter(fields=read_chat(json.dumps(ASKED).encode()), head=HEAD)


def answer(content: str, calls: tuple[ToolCall, ...] = (), rest: str = "", **fields: Any) -> Answer:
    return Answer(
        **{
            "content": content, "tool_calls": calls, "rest": rest, "token_ids": [7] * 4,
            "logprobs": [0.0] * 4, "version_spans": (), "top": (), "prompt_scores": None,
            "finish_reason": "tool_calls" if calls else "stop", **fields,
        }
    )  # fmt: skip


def folded(stream: str) -> dict[str, Any]:
    """The message that streamed events add up to, as Anthropic's clients add them up."""
    message: dict[str, Any] = {}
    arguments: dict[int, str] = {}
    kinds: list[str] = []
    for each in stream.split("\n\n")[:-1]:
        name, _, data = each.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        kinds.append(event["type"])
        match event:
            case {"type": "message_start", "message": begun}:
                message = begun
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(message["content"])
                message["content"].append(block)
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                assert index == len(message["content"]) - 1
                kind = delta["type"].removesuffix("_delta")
                if kind == "input_json":
                    arguments[index] = arguments.get(index, "") + delta["partial_json"]
                else:
                    message["content"][index][kind] += delta[kind]
            case {"type": "message_delta"}:
                message |= event["delta"] | {"usage": {**message["usage"], **event["usage"]}}
    for index, text in arguments.items():
        message["content"][index]["input"] = json.loads(text)
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == len(message["content"])
    return message


replies = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "think>", " ", "\n", "Up", "漢", "<think", "</"]), max_size=8
).map("".join)
tool_calls = st.lists(
    st.builds(ToolCall, st.just("look"), arguments.map(json.dumps), st.uuids().map(str)), max_size=2
).map(tuple)


@given(content=replies, calls=tool_calls, cuts=st.lists(st.integers(0, 40), max_size=4))
@example(content="<think>\nHm.\n</think>\n\nUp", calls=(), cuts=[3, 12])
def test_streamed_events_add_up_to_the_whole_answer(
    content: str, calls: tuple[ToolCall, ...], cuts: list[int]
) -> None:
    whole = writer().whole([PROMPT], [(PROMPT, answer(content, calls))])
    ends = sorted({min(cut, len(content)) for cut in cuts})
    shown = [content[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    rest = content[ends[-1] if ends else 0 :]
    stream = writer()
    events = stream.first(0, PROMPT)
    for text in shown:
        events += stream.piece(0, Piece(text=text, token_ids=[7], logprobs=[0.0], version=0))
    events += stream.last(0, answer(content, calls, rest)) + stream.end([PROMPT], [])
    assert folded(events) == whole
    assert whole["id"] == f"msg_{HEAD.unique}"


@given(content=replies, calls=tool_calls, drops_space=st.booleans())
def test_an_answer_that_comes_back_continues_its_line(
    content: str, calls: tuple[ToolCall, ...], drops_space: bool
) -> None:
    whole = writer().whole([PROMPT], [(PROMPT, answer(content, calls))])
    blocks = whole["content"]
    if drops_space:
        blocks = [block for block in blocks if block.get("text") is None or block["text"].strip()]
    read_back = read([user("hi"), {"role": "assistant", "content": blocks}]).conversation
    sampled: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        sampled["tool_calls"] = [
            {"function": {"name": call.name, "arguments": json.loads(call.arguments)}} for call in calls
        ]
    before = message_keys([user("hi")])[-1]
    assert message_keys(read_back)[-1] == next_key(before, sampled)


def test_thoughts_text_and_calls_are_blocks() -> None:
    call = ToolCall("look", '{"where": "up"}', "call_1")
    whole = writer().whole([PROMPT], [(PROMPT, answer("<think>Hm.</think>\n\nI look.\n", (call,)))])
    assert whole == {
        "id": f"msg_{HEAD.unique}",
        "type": "message",
        "role": "assistant",
        "model": "policy",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "finished"},
            {"type": "text", "text": "\n\nI look.\n"},
            {"type": "tool_use", "id": "call_1", "name": "look", "input": {"where": "up"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 4,
        },
    }


CUT = FinishReason.LENGTH


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ("end_turn", None)),
        ({"stop": "END"}, ("stop_sequence", "END")),
        ({"finish_reason": CUT, "token_ids": [7] * 9, "fills_context": True}, ("max_tokens", None)),
        ({"finish_reason": CUT}, ("max_tokens", None)),
        ({"finish_reason": CUT, "fills_context": True}, ("model_context_window_exceeded", None)),
    ],
)  # fmt: skip
def test_each_end_of_a_reply_has_its_stop_reason(fields: dict[str, Any], reason: tuple[str, Any]) -> None:
    whole = writer().whole([PROMPT], [(PROMPT, answer("Up", **fields))])
    assert (whole["stop_reason"], whole["stop_sequence"]) == reason


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (404, "not_found_error"),
        (409, "invalid_request_error"), (413, "request_too_large"), (429, "rate_limit_error"),
        (500, "api_error"), (503, "api_error"), (504, "timeout_error"),
    ],
)  # fmt: skip
def test_errors_have_the_types_of_anthropic(status: int, kind: str) -> None:
    assert error_body(ApiError(status, "no")) == {"type": "error", "error": {"type": kind, "message": "no"}}


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_clients_look_for() -> None:
    error = ApiError(400, "it holds 10 tokens", code="context_length_exceeded")
    assert error_body(error)["error"]["message"] == "prompt is too long: it holds 10 tokens"
