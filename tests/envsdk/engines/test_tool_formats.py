"""Tool calls in the formats of the families: what a template writes is read back, and no text is too odd."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from envsdk.contracts.chat import ChatTokenizer
from envsdk.engines.tool_calls.formats import FORMATS, HERMES, format_of, read_reply
from envsdk.engines.tool_calls.reading import AttemptStatus, ToolParser, split_thought
from tests.envsdk.engines.endpoint_models import chat_with_template

REPLIES = {
    "hermes": """{%- for call in calls %}<tool_call>
{"name": {{ call.name | tojson }}, "arguments": {{ call.arguments | tojson }}}
</tool_call>{% endfor %}""",
    "qwen3_coder": """{%- for call in calls %}
<tool_call>
<function={{ call.name }}>
{% for key, value in call.arguments.items() -%}
<parameter={{ key }}>
{{ value | string if value is string or value is boolean or value is none else value | tojson }}
</parameter>
{% endfor -%}
</function>
</tool_call>{% endfor %}""",
    "glm": """{%- for call in calls %}
<tool_call>{{ call.name }}
{% for key, value in call.arguments.items() -%}
<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{% endfor -%}
</tool_call>{% endfor %}""",
    "llama3": """{%- for call in calls -%}{{ "; " if not loop.first -}}
{"name": {{ call.name | tojson }}, "parameters": {{ call.arguments | tojson }}}{% endfor %}""",
    "mistral": """[TOOL_CALLS] [{%- for call in calls -%}{{ ", " if not loop.first -}}
{"name": {{ call.name | tojson }}, "arguments": {{ call.arguments | tojson -}}
, "id": "abcdefghi"}{% endfor %}]""",
    "mistral since version 11": """{%- for call in calls -%}
[TOOL_CALLS]{{ call.name }}[CALL_ID]abcdefghi[ARGS]{{ call.arguments | tojson }}{% endfor %}""",
    "deepseek": """<｜tool▁calls▁begin｜>{%- for call in calls -%}
<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.name }}
```json
{{ call.arguments | tojson }}
```<｜tool▁call▁end｜>{{ "\\n" if not loop.last }}{% endfor %}<｜tool▁calls▁end｜>""",
    "deepseek v3.1": """<｜tool▁calls▁begin｜>{%- for call in calls -%}
<｜tool▁call▁begin｜>{{ call.name }}<｜tool▁sep｜>{{ call.arguments | tojson -}}
<｜tool▁call▁end｜>{% endfor -%}
<｜tool▁calls▁end｜>""",
    "harmony": """{%- for call in calls -%}
<|channel|>commentary to=functions.{{ call.name }} <|constrain|>json<|message|>{{ call.arguments | tojson -}}
{{ "<|call|><|start|>assistant" if not loop.last }}{% endfor %}""",
    "harmony, its recipient first": """{%- for call in calls %} to=functions.{{ call.name -}}
<|channel|>commentary json<|message|>{{ call.arguments | tojson -}}
{{ "<|call|><|start|>assistant" if not loop.last }}{% endfor %}""",
}
"""Calls as the chat templates of the families write them, without what ends a reply."""

TEMPLATE = """{{%- for message in messages %}}
{{%- if message.tool_calls %}}
{{%- set ns = namespace(calls=[]) %}}
{{%- for each in message.tool_calls %}}{{% set ns.calls = ns.calls + [each.function] %}}{{% endfor %}}
{{%- set calls = ns.calls %}}
{{{{- '<|im_start|>assistant\\n' + message.content }}}}{reply}{{{{ '<|im_end|>\\n' }}}}
{{%- else %}}
{{{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}}}
{{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\\n' }}}}{{%- endif %}}"""
CHATS = {name: chat_with_template(TEMPLATE.format(reply=reply)) for name, reply in REPLIES.items()}
NAMES = pytest.mark.parametrize("name", REPLIES)

MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>", '{"name": "', "}")
MARKS += ("<function=f>", "<parameter=k>", "</parameter>", "</function>", "<arg_key>", "</arg_value>", "f{")
MARKS += ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<|channel|>", "<|message|>")
MARKS += (" to=functions.f", "<|call|>", "<|python_tag|>", '{"a": 1}', '"arguments": ', "f")
strings = st.text('ab{}",: \\漢\n', max_size=8)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text("abc_", min_size=1, max_size=5), values, max_size=3)
calls = st.lists(st.tuples(st.text("abc_", min_size=1, max_size=5), arguments), min_size=1, max_size=3)
few = settings(max_examples=30, deadline=None)
JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def format_name(name: str) -> str:
    return name.split(",")[0].split(" ")[0]


def written(name: str, called: list[tuple[str, dict[str, Any]]], content: str = "") -> str:
    tool_calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in called]
    text = CHATS[name].render(
        [{"role": "assistant", "content": content, "tool_calls": tool_calls}], add_generation_prompt=False
    )
    return text.removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n")


def schemas(called: list[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Of functions that take just this: of several calls with one name, the last counts."""
    return {
        name: {
            "properties": {
                key: {"anyOf": [{"type": JSON_TYPES.get(type(value), "null")}, {"type": "null"}]}
                for key, value in arguments.items()
            }
        }
        for name, arguments in called
    }


@NAMES
@few
@given(
    called=calls, thought=st.sampled_from(["", "<think>ab</think>\n"]), content=st.sampled_from(["", "ab "])
)
def test_calls_are_read_as_the_template_wrote_them(
    name: str, called: list[tuple[str, dict[str, Any]]], thought: str, content: str
) -> None:
    assume(len({name for name, _ in called}) == len(called))
    is_first = format_name(name) in ("harmony", "llama3")
    shown = "" if is_first else thought + content
    tools = schemas(called)
    # A text of these is written as the value would be.
    texts = [value for _, arguments in called for value in arguments.values() if isinstance(value, str)]
    assume(not {"null", "None"} & set(texts))
    reply = written(name, called, shown)
    for call_format in (FORMATS[format_name(name)], None):
        if call_format is None and name == "llama3" and shown:
            continue
        reading = read_reply(reply, call_format, tools=tools)
        assert reading.status is AttemptStatus.OK, reading
        assert reading.shown.strip() == shown.strip()
        assert [(call.name, json.loads(call.arguments)) for call in reading.calls] == called


@NAMES
@few
@given(called=calls, share=st.floats(0, 1, exclude_max=True))
def test_the_beginning_of_a_call_is_cut(
    name: str, called: list[tuple[str, dict[str, Any]]], share: float
) -> None:
    call_format = FORMATS[format_name(name)]
    whole = written(name, called[:1]).strip()
    opening = next(each for each in call_format.openings if each in f" {whole}")
    if format_name(name) == "harmony":
        opening = f" {whole}".partition("functions.")[0] + "functions."
    first = f" {whole}".index(opening) + len(opening) - 1
    reading = read_reply(f" {whole}"[1 : first + 1 + int(share * (len(whole) - first))], call_format)
    assert reading.status is AttemptStatus.CUT, reading


@pytest.mark.parametrize("call_format", [None, *FORMATS.values()])
@few
@given(parts=st.lists(st.sampled_from(MARKS) | st.text(max_size=5), max_size=12))
def test_any_text_is_read(call_format: Any, parts: list[str]) -> None:
    reply = "".join(parts)
    reading = read_reply(reply, call_format, tools={"f": {}})
    is_read = reading.status in (AttemptStatus.OK, AttemptStatus.UNKNOWN_TOOL)
    assert bool(reading.calls) is is_read
    assert bool(reading.problem) is (reading.status in (AttemptStatus.CUT, AttemptStatus.MALFORMED))
    assert all(isinstance(json.loads(call.arguments), dict) for call in reading.calls)


@NAMES
def test_the_format_of_a_model_is_the_one_that_its_template_writes(name: str) -> None:
    assert format_of(CHATS[name]) is FORMATS[format_name(name)]


def test_a_template_that_takes_arguments_as_text_is_known_too() -> None:
    reply = REPLIES["deepseek v3.1"].replace("call.arguments | tojson", "'' + call.arguments")
    assert format_of(chat_with_template(TEMPLATE.format(reply=reply))) is FORMATS["deepseek"]


@pytest.mark.parametrize("reply", ["", "I call {{ calls[0].name }}", "{{ raise_exception('no calls') }}"])
def test_a_template_may_write_calls_in_no_known_format(reply: str) -> None:
    assert format_of(chat_with_template(TEMPLATE.format(reply=reply))) is None


@NAMES
def test_calls_in_another_format_are_malformed_not_none(name: str) -> None:
    other = HERMES if format_name(name) != "hermes" else FORMATS["mistral"]
    reading = read_reply(written(name, [("look", {"a": 1})]), other, tools={"look": {}})
    assert (reading.status, reading.calls) == (AttemptStatus.MALFORMED, ())
    assert reading.problem


@NAMES
def test_a_call_of_a_tool_that_is_not_offered_has_a_status_of_its_own(name: str) -> None:
    reading = read_reply(written(name, [("look", {"a": "b"})]), tools={"see": {}})
    assert reading.status is AttemptStatus.UNKNOWN_TOOL
    assert [call.name for call in reading.calls] == ["look"]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({}, "5", "5"),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "boolean"}, "True", True),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"$ref": "#/$defs/Place"}, '{"x": 1}', {"x": 1}),
        (True, "5", "5"),
    ],
)
def test_a_value_between_tags_is_what_the_schema_says(schema: Any, text: str, value: Any) -> None:
    reply = f"<tool_call>look<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>"
    (call,) = read_reply(reply, tools={"look": {"properties": {"a": schema}}}).calls
    assert json.loads(call.arguments) == {"a": value}


@pytest.mark.parametrize(
    ("reply", "thought", "text"),
    [
        ("<think>a</think>b", "a", "b"),
        ("\n<think>a", "a", ""),
        ("a</think>b", "a", "b"),
        ("a", "", "a"),
        ("a <think>b</think>", "", "a <think>b</think>"),
    ],
)
def test_a_thought_stands_before_its_closing_tag(reply: str, thought: str, text: str) -> None:
    assert split_thought(reply) == (thought, text)


@pytest.mark.parametrize(
    "reply",
    [
        '<think><tool_call>{"name": "look"}</tool_call>',
        "<think>I write <tool_call> next.</think>Done.",
        '{"name": "Ann", "age": 5}',
        '{"name": "look", "arguments": {}}',
        'It is {"name": "look", "parameters": {}}',
        "<|channel|>final<|message|>Done.",
    ],
)
def test_these_replies_call_nothing(reply: str) -> None:
    assert read_reply(reply).status is AttemptStatus.NONE


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        ('{"name": "look", "parameters": {"where": ', "cut"),
        ('{"name": "look", "parameters": {}} Right?', "malformed"),
        ('<|python_tag|>look.call(where="up")', "malformed"),
    ],
)
def test_a_reply_that_begins_as_a_call_of_llama_tries_one(reply: str, status: str) -> None:
    assert read_reply(reply).status == status


def test_a_reply_of_gpt_oss_is_shown_as_thought_and_text() -> None:
    analysis, final = "<|channel|>analysis<|message|>Hm.<|end|>", "<|channel|>final<|message|>Yes."
    assert read_reply(f"{analysis}<|start|>assistant{final}").shown == "<think>Hm.</think>Yes."


def test_each_format_can_be_named() -> None:
    assert set(get_args(ToolParser)) == {"auto", *FORMATS}


def test_marks_of_calls_stay_in_a_reply_where_they_are_special_tokens() -> None:
    chat: ChatTokenizer = CHATS["mistral"]
    ids = chat.encode("[TOOL_CALLS]look[ARGS]{}<|im_end|>")
    assert chat.decode(ids) == "[TOOL_CALLS]look[ARGS]{}"


def test_a_reply_of_gpt_oss_goes_on_behind_its_first_message() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    marks = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in marks])
    template = """{%- for message in messages -%}
<|start|>{{ message.role }}{{ "<|channel|>final" if message.role == "assistant" -}}
<|message|>{{ message.content }}<|end|>
{%- endfor %}"""
    stops = [tokenizer.token_to_id(mark) for mark in ("<|return|>", "<|call|>")]
    chat = ChatTokenizer(tokenizer, template, stop_token_ids=stops)
    assert list(chat.stop_token_ids) == stops
    ids = chat.encode("<|channel|>a<|message|>a<|end|><|start|>a<|channel|>a<|message|>a<|call|>")
    assert chat.decode(ids).count("<|channel|>") == 2
    assert ChatTokenizer(tokenizer, template).stop_token_ids == (tokenizer.token_to_id("<|end|>"),)
