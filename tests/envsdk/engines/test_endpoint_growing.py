"""What a request repeats of the one before is neither read nor rendered again, and gives the same."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_endpoint_messages import user

from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.messages import RecentMessages
from envsdk.engines.endpoint.parsing import GrowingList, Histories
from envsdk.engines.endpoint.protocols.anthropic_request import read_messages
from envsdk.engines.endpoint.protocols.responses_request import read_responses
from envsdk.engines.endpoint.wire import ChatFields, read_chat
from tests.envsdk.engines.endpoint_models import CHATS, QWEN_LIKE, chat_with_template


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=8))
def test_a_list_is_read_as_if_it_were_the_first_and_what_it_repeats_is_not_read_again(
    lists: list[list[int]],
) -> None:
    history = GrowingList()
    before: list[int] = []
    for entries in lists:
        read: list[int] = []
        found = history.read(entries, lambda entry, at, read=read: read.append(at) or (entry, at))
        assert found == [(entry, at) for at, entry in enumerate(entries)]
        same = next(
            (at for at, (new, old) in enumerate(zip(entries, before, strict=False)) if new != old),
            min(len(entries), len(before)),
        )
        assert read == list(range(same, len(entries)))
        before = entries


def test_an_entry_that_cannot_be_read_leaves_what_was_read() -> None:
    history = GrowingList()
    history.read(["a"], lambda entry, at: entry)
    with pytest.raises(ZeroDivisionError):
        history.read(["a", "b"], lambda entry, at: 1 / 0)
    assert history.read(["a"], lambda entry, at: 1 / 0) == ["a"]


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
MESSAGES = st.sampled_from(
    [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "go"},
        {"role": "user", "content": [{"type": "text", "text": "go"}], "odd": 1},
        {"role": "assistant", "content": "hm", "refusal": None},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "ice"},
        {"role": "user", "content": 3},
    ]
)
USE = {"type": "tool_use", "id": "c1", "name": "look", "input": {"n": 1}}
TURNS = st.sampled_from(
    [
        user("go"),
        user([{"type": "text", "text": "go", "odd": 1}]),
        user([{"type": "tool_result", "tool_use_id": "c1", "content": "ice"}]),
        {"role": "assistant", "content": [{"type": "text", "text": "hm"}, USE]},
        user([{"type": "image"}]),
    ]
)
ITEMS = st.sampled_from(
    [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}", "odd": 1},
        {"type": "function_call_output", "call_id": "c1", "output": "ice"},
        {"type": "image"},
    ]
)


def outcome(read: Any) -> Any:
    try:
        fields: ChatFields = read()
    except ApiError as error:
        return error.message, error.param
    return list(fields.conversation), fields.ignored


@pytest.mark.parametrize(
    ("name", "entries", "read"),
    [
        ("messages", MESSAGES, lambda body, seen: read_chat(body, seen["chat"])),
        ("messages", TURNS, read_messages),
        ("input", ITEMS, lambda body, seen: read_responses(body, seen).fields),
    ],
    ids=["chat", "messages", "responses"],
)
@given(data=st.data())
def test_requests_of_one_session_are_read_as_if_each_were_the_first(
    name: str, entries: st.SearchStrategy[Any], read: Any, data: st.DataObject
) -> None:
    seen = Histories()
    conversation: list[Any] = []
    for _ in range(4):
        keep = data.draw(st.integers(0, len(conversation)) | st.just(len(conversation)))
        conversation = conversation[:keep] + data.draw(st.lists(entries, min_size=1, max_size=3))
        body = json.dumps({"model": "policy", name: conversation}).encode()
        assert outcome(lambda body=body: read(body, seen)) == outcome(
            lambda body=body: read(body, Histories())
        )


NUMBERED = "{% for m in messages %}{{ loop.index }} {{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
THOUGHTLESS = """{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}{% if m.role == 'assistant' and loop.index0 < ns.last %}
{{- '<|im_start|>assistant\\n' + m.content.split('</think>')[-1] + '<|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
STRICT = """{%- for m in messages %}
{%- if m.role == 'user' and not loop.first and messages[loop.index0 - 1].role == 'user' %}
{{- raise_exception('roles must alternate') }}{% endif %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- if m.role == 'user' and loop.last and tools %}{{ tools | tojson }}{% endif %}
{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
FORMS = {
    **CHATS,
    **{name: chat_with_template(text) for name, text in [("thoughtless", THOUGHTLESS), ("strict", STRICT)]},
    "numbered": chat_with_template(NUMBERED),
}
SAID = st.sampled_from(["", "hello", "ice\n", "<think>a</think>b"])
ANY = st.builds(
    lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "assistant"]), SAID
)
RESULT = SAID.map(lambda text: {"role": "tool", "content": text, "tool_call_id": "c1"})
TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}


def written(form: str, messages: Any, at: int, tools: Any) -> Any:
    try:
        return FORMS[form].behind_reply(messages, at, reply_closed=False, tools=tools)
    except jinja2.TemplateError:
        return None


@given(
    form=st.sampled_from(sorted(FORMS)),
    system=st.lists(st.just({"role": "system", "content": "Play."}), max_size=1),
    before=st.lists(ANY | RESULT, max_size=8),
    behind=st.lists(ANY | RESULT, max_size=4),
    tools=st.sampled_from([None, [TOOL]]),
)
def test_behind_a_reply_the_template_writes_the_same_for_recent_messages(
    form: str, system: Any, before: Any, behind: Any, tools: Any
) -> None:
    messages = [*system, {"role": "user", "content": "go"}, *before]
    at = len(messages)
    messages += [{"role": "assistant", "content": "hm"}, *behind]
    whole = written(form, messages, at, tools)
    recent, place = RECENT[form].of(messages, at)
    assert recent[place] == messages[at]
    if whole is not None:
        assert written(form, recent, place, tools) == whole


RECENT = {name: RecentMessages(chat) for name, chat in FORMS.items()}


def test_a_template_that_looks_back_further_gets_the_whole_conversation() -> None:
    assert {name for name, recent in RECENT.items() if not recent.are_enough} == {"numbered"}
    assert RecentMessages(chat_with_template(QWEN_LIKE)).are_enough
    messages = [user("a"), {"role": "assistant", "content": "b"}] * 3
    assert RECENT["numbered"].of(messages, 5) == (messages, 5)
