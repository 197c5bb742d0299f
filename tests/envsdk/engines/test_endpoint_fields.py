"""Requests as clients write them: what changes nothing changes no token, and what is refused is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.engines.endpoint import messages, wire
from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.record import message_keys
from envsdk.engines.endpoint.sampling import SamplingRules, sampling_params
from envsdk.engines.endpoint.wire import ChatFields, read_chat, read_completion
from envsdk.engines.sampling import SamplingParams
from tests.envsdk.engines.endpoint_models import CHATS

CHAT = CHATS["qwen_like_chat"]
ASKED: dict[str, Any] = {
    "model": "policy",
    "messages": [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "ice"}]},
    ],
    "temperature": 0.5,
    "seed": 3,
}
OFF: dict[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "top_logprobs": 0,
    "n": 1,
    "stream": False,
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "min_p": 0,
    "stop": [],
    "response_format": {"type": "text"},
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12)
KNOWN = {
    *messages.MessageFields.model_fields,
    *messages.CARRIES_CONTENT,
    "type",
    "text",
    "id",
    "function",
    "arguments",
}
of_client = st.dictionaries(names.filter(lambda name: name not in KNOWN), json_values, max_size=3)


def sampled_from(fields: ChatFields) -> tuple[SamplingParams, list[int], list[str]]:
    """What decides the tokens of a reply, and which recorded line it continues."""
    messages = fields.conversation
    ids = CHAT.encode(CHAT.render(messages, tools=fields.tools))
    params = sampling_params(
        fields,
        SamplingRules(),
        num_prompt_tokens=len(ids),
        sequence_length=500,
        stop_token_ids=CHAT.stop_token_ids,
        default_max_tokens=None,
        number=0,
        choice=0,
    )
    return params, ids, message_keys(messages, fields.tools)


PLAIN = sampled_from(read_chat(json.dumps(ASKED).encode()))


@given(
    ignored=st.dictionaries(st.sampled_from(sorted(wire._WITHOUT_EFFECT)), json_values),
    neutral=st.sets(st.sampled_from(sorted({*wire._NEUTRAL, *OFF}))),
    is_null=st.booleans(),
    of_messages=st.lists(of_client, min_size=3, max_size=3),
    of_part=of_client,
    of_call=of_client,
    of_function=of_client,
)
def test_fields_that_change_nothing_change_no_token_and_continue_the_same_line(
    ignored: dict[str, Any],
    neutral: set[str],
    is_null: bool,
    of_messages: list[dict[str, Any]],
    of_part: dict[str, Any],
    of_call: dict[str, Any],
    of_function: dict[str, Any],
) -> None:
    body = json.loads(json.dumps(ASKED))
    off = {name: values[0] if values else None for name, values in wire._NEUTRAL.items()} | OFF
    body |= ignored | {name: None if is_null else off[name] for name in neutral}
    for message, more in zip(body["messages"], of_messages, strict=True):
        message |= more
    call = body["messages"][1]["tool_calls"][0]
    call |= of_call
    call["function"] |= of_function
    body["messages"][2]["content"][0] |= of_part
    fields = read_chat(json.dumps(body).encode())
    assert sampled_from(fields) == PLAIN
    expected = {name for name, value in ignored.items() if value is not None}
    places = {"": {}, "content[].": of_part, "tool_calls[].": of_call, "tool_calls[].function.": of_function}
    for message in of_messages:
        expected |= {f"messages[].{name}" for name, value in message.items() if value}
    for where, more in places.items():
        expected |= {f"messages[].{where}{name}" for name, value in more.items() if value}
    assert set(fields.ignored) == expected


@given(name=st.sampled_from(sorted(wire._NEUTRAL)), value=st.sampled_from([7, "x", ["x"], {"x": 1}]))
def test_a_field_that_would_change_the_reply_is_refused_by_its_name(name: str, value: Any) -> None:
    prompted = {"model": "policy", "prompt": "hello", name: value}
    for read, body in ((read_chat, ASKED | {name: value}), (read_completion, prompted)):
        with pytest.raises(ApiError) as refused:
            read(json.dumps(body).encode())
        assert refused.value.param == name
        assert f"`{name}`" in refused.value.message


@given(
    name=st.sampled_from(sorted(messages.CARRIES_CONTENT)), number=st.integers(0, 2), value=st.just({"x": 1})
)
def test_a_part_of_a_message_that_the_policy_cannot_see_is_refused_by_its_name(
    name: str, number: int, value: Any
) -> None:
    body = json.loads(json.dumps(ASKED))
    body["messages"][number][name] = value
    with pytest.raises(ApiError) as refused:
        read_chat(json.dumps(body).encode())
    assert refused.value.param == f"messages[{number}].{name}"


@given(
    names.filter(lambda name: name not in {*ChatFields.model_fields, *wire._NEUTRAL, *wire._WITHOUT_EFFECT})
)
def test_a_parameter_that_is_not_known_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_chat(json.dumps(ASKED | {name: 1}).encode())
    assert refused.value.param == name
