"""The formats of calls, which of them a model writes, and which one a reply is written in.

What a model's chat template writes for a call, the model writes: the format that reads it back is its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jinja2

from envsdk.contracts.chat import ChatTokenizer
from envsdk.engines.sampling import TaggedJson
from envsdk.engines.tool_calls.reading import (
    THOUGHT,
    AttemptStatus,
    CallFormat,
    Cursor,
    Reading,
    Schemas,
    ToolCall,
    Unreadable,
    call_from,
    split_thought,
)

OPENING, CLOSING = "<tool_call>", "</tool_call>"


def _hermes(text: Cursor, tools: Schemas) -> Iterator[ToolCall]:
    while text.take(OPENING):
        value = text.json()
        text.expect(CLOSING)
        yield call_from(value)


def _llama(text: Cursor, tools: Schemas) -> Iterator[ToolCall]:
    text.take("<|python_tag|>")
    while True:
        value = text.json()
        yield call_from(value, "parameters")
        if not {"parameters", "arguments"} & value.keys():
            raise Unreadable('a call needs "parameters"')
        if not text.take(";"):
            break


def _mistral(text: Cursor, tools: Schemas) -> Iterator[ToolCall]:
    """A list of calls; since version 11 of Mistral's tokenizer, a name and arguments for each."""
    while text.take("[TOOL_CALLS]"):
        if text.stands("["):
            values = text.json() or [None]
            yield from (call_from(value) for value in values)
            continue
        name = text.name()
        if text.take("[CALL_ID]"):
            text.name()
        text.take("[ARGS]")
        yield call_from({"name": name, "arguments": text.json()})


_BEGIN = "<｜tool▁calls▁begin｜>"


def _deepseek(text: Cursor, tools: Schemas) -> Iterator[ToolCall]:
    """V3 and R1 write the JSON in a code block, V3.1 does not."""
    text.expect(_BEGIN)
    text.expect("<｜tool▁call▁begin｜>")
    while True:
        name = text.up_to("<｜tool▁sep｜>").strip()
        is_block = name == "function" and not text.stands("{")
        if is_block:
            name = text.up_to("```json").strip()
        arguments = text.json()
        if is_block:
            text.expect("```")
        text.expect("<｜tool▁call▁end｜>")
        yield call_from({"name": name, "arguments": arguments})
        if not text.take("<｜tool▁call▁begin｜>"):
            break
    text.expect("<｜tool▁calls▁end｜>")


def _harmony(text: Cursor, tools: Schemas) -> Iterator[ToolCall]:
    while text.take(_TO_FUNCTION):
        name = text.name()
        text.expect("<|message|>")
        yield call_from({"name": name, "arguments": text.json()})


_TO_FUNCTION = "<|channel|>commentary to=functions."
_ENDS = re.compile(r"<\|(?:start|end|call|return)\|>")
_RECIPIENT = re.compile(r"\bto=functions\.([\w.-]*)")


def _without_channels(reply: str) -> str:
    """The analysis as a thought, other text, then calls, whose recipient may stand before the channel."""
    parts: dict[str, list[str]] = {"thought": [], "text": [], "call": []}
    for message in _ENDS.split(reply):
        header, found, body = message.partition("<|message|>")
        if recipient := _RECIPIENT.search(header):
            parts["call"].append(f"{_TO_FUNCTION}{recipient[1]}{found}{body}")
        elif found:
            parts["thought" if "analysis" in header else "text"].append(body)
    thought = "\n".join(parts["thought"]).join(THOUGHT) if parts["thought"] else ""
    return "".join([thought, *parts["text"], *parts["call"]]) or reply


def _qwen(text: Cursor, tools: Schemas) -> Iterator[ToolCall]:
    while text.take(OPENING):
        text.expect("<function=")
        name, arguments = text.up_to(">"), {}
        while text.take("<parameter="):
            key = text.up_to(">")
            value = text.up_to("</parameter>").removeprefix("\n").removesuffix("\n")
            arguments[key] = _value(value, tools, name, key)
        text.expect("</function>")
        text.expect(CLOSING)
        yield call_from({"name": name, "arguments": arguments})


def _glm(text: Cursor, tools: Schemas) -> Iterator[ToolCall]:
    while text.take(OPENING):
        name, arguments = text.name(), {}
        while text.take("<arg_key>"):
            key = text.up_to("</arg_key>")
            text.expect("<arg_value>")
            arguments[key] = _value(text.up_to("</arg_value>"), tools, name, key)
        text.expect(CLOSING)
        yield call_from({"name": name, "arguments": arguments})


_CONSTANTS = {"True": True, "False": False, "None": None}
"""What templates write of Python's values."""


def _value(text: str, tools: Schemas, name: str, key: str) -> Any:
    """A text, or another value as JSON: the schema says which; where it says nothing, a text."""
    properties = tools.get(name, {}).get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    schema = schema if isinstance(schema, Mapping) else {}
    parts = [each for each in schema.get("anyOf") or [schema] if isinstance(each, Mapping)]
    named = [each.get("type", "object" if "$ref" in each else "string") for each in parts]
    if ("string" in named or ["string", "null"] in named) and text not in ("null", "None"):
        return text
    try:
        return _CONSTANTS[text] if text in _CONSTANTS else json.loads(text)
    except (ValueError, RecursionError):
        return text


HERMES = CallFormat("hermes", (OPENING,), _hermes, closing=CLOSING)
EXAMPLE = f'{OPENING}{{"name": NAME, "arguments": {{...}}}}{CLOSING}'
"""A call as `HERMES` has it."""
_QWEN = CallFormat("qwen3_coder", (OPENING, "<function="), _qwen, closing=CLOSING)
_GLM = CallFormat("glm", (OPENING,), _glm, closing=CLOSING)
_MISTRAL = CallFormat("mistral", ("[TOOL_CALLS]",), _mistral)
_DEEPSEEK = CallFormat("deepseek", (_BEGIN,), _deepseek)
_CHANNELS = ("<|channel|>", "<|start|>", " to=functions.")
_HARMONY = CallFormat("harmony", _CHANNELS, _harmony, plain=_without_channels)
_LLAMA = CallFormat("llama3", ("<|python_tag|>", '{"name":', '{"type": "function", "name":'), _llama)
_MARKED = (HERMES, _QWEN, _GLM, _MISTRAL, _DEEPSEEK, _HARMONY)
FORMATS = {each.name: each for each in (*_MARKED, _LLAMA)}
_SHOWS_GLM = re.compile(rf"{OPENING}\s*([\w.-]+)\s*(<arg_key>|{CLOSING}|$)")


def read_reply(reply: str, call_format: CallFormat | None = None, *, tools: Schemas | None = None) -> Reading:
    """What a reply says. `tools`: those it may call, and the schemas of their parameters; None: any.

    Calls in another format than `call_format` are malformed, as no other reader would take them. None takes
    each format, by its marks.
    """
    shown = _format_in(reply, tools or {})
    found = shown.read(reply, tools or {})
    reading = found if call_format is None else call_format.read(reply, tools or {})
    if reading.status is AttemptStatus.NONE and found.status is not AttemptStatus.NONE:
        problem = f"the model does not call as `{shown.name}` does"
        reading = replace(reading, status=AttemptStatus.MALFORMED, problem=problem)
    if tools is not None and any(call.name not in tools for call in reading.calls):
        reading = replace(reading, status=AttemptStatus.UNKNOWN_TOOL)
    return reading


def _format_in(reply: str, tools: Schemas) -> CallFormat:
    """The format whose calls begin first. Llama's hardly has a mark: the text must begin with a call."""
    if "<|message|>" in reply:
        return _HARMONY
    text = split_thought(reply)[1]
    places = [(at, each) for each in _MARKED if (at := each.find(text)) is not None]
    if not places:
        is_llama = text.lstrip().startswith(_LLAMA.openings) and re.search('"parameters"|python_tag', text)
        return _LLAMA if is_llama else HERMES
    start, first = min(places, key=lambda place: place[0])
    if first is HERMES and text[start + len(OPENING) :].lstrip().startswith("<"):
        return _QWEN
    glm = _SHOWS_GLM.match(text, start) if first is HERMES else None
    return _GLM if glm is not None and (glm[2] != CLOSING or glm[1] in tools) else first


_PROBE = "envsdkprobe"


def format_of(chat: ChatTokenizer) -> CallFormat | None:
    """The format in which a model's chat template writes a call; None where it writes none that is known."""
    arguments = {"key": "value"}
    expected = ToolCall("look", json.dumps(arguments))
    stops = [chat.decode([token], skip_special_tokens=False) for token in chat.stop_token_ids]
    for given in (arguments, expected.arguments):
        function = {"name": expected.name, "arguments": given}
        # Mistral's templates want an id of nine letters and digits.
        call = {"id": "envsdk123", "type": "function", "function": function}
        reply = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            text = chat.render([{"role": "user", "content": _PROBE}, reply], add_generation_prompt=False)
        except jinja2.TemplateError:
            continue
        written = text.rpartition(_PROBE)[2]
        for stop in stops:
            written = written.rstrip().removesuffix(stop)
        for each in FORMATS.values():
            if each.read(written, {}).calls == (expected,):
                return each
    return None


def writes_tools(chat: ChatTokenizer) -> bool:
    """Whether the model's chat template shows the functions that it may call."""
    function = {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}
    asked = [{"role": "user", "content": ""}]
    try:
        return _PROBE in chat.render(asked, tools=[{"type": "function", "function": function}])
    except jinja2.TemplateError:
        return True


def schemas_of(tools: Sequence[Mapping[str, Any]] | None) -> Schemas:
    """Schemas of tools as OpenAI's API describes them."""
    functions = [tool["function"] for tool in tools or ()]
    return {each["name"]: each.get("parameters") or {} for each in functions}


def call_of(name: str, parameters: Mapping[str, Any] | None) -> TaggedJson:
    """A reply in the format of `HERMES` that only calls this function; `parameters` is its JSON schema.

    A function takes the parameters that are listed, others only where the schema says so.
    """
    schema = {"type": "object", **(parameters or {"properties": {}})}
    if "properties" in schema and not _COMPOSED & schema.keys():
        schema.setdefault("additionalProperties", False)
    return TaggedJson(
        begin=f'{OPENING}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": ',
        json_schema=json.dumps(schema),
        end=f"}}\n{CLOSING}",
    )


_COMPOSED = frozenset({"$ref", "allOf", "anyOf", "oneOf", "patternProperties"})
"""What may list further parameters."""
