"""Pure: tool calls in a reply's text, as Hermes and Qwen write them.

Let me look.<tool_call>
{"name": "search", "arguments": {"query": "ice"}}
</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envsdk.engines.sampling import TaggedJson

OPENING, CLOSING = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the policy asks for."""

    name: str
    arguments: str
    """JSON of an object."""
    id: str = ""
    """Its name in the messages of clients, which repeat it and give its result."""


def call_of(name: str, parameters: Mapping[str, Any] | None) -> TaggedJson:
    """A reply that calls this function and says nothing else; `parameters` is its JSON schema.

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


def find_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """The text before the first call, and the calls.

    All or none: when one cannot be read, or text follows it, the whole text is content and nothing is called.
    """
    content, found, rest = text.partition(OPENING)
    calls: list[ToolCall] = []
    while found:
        read = _read(rest)
        if read is None:
            return text, ()
        call, end = read
        calls.append(call)
        between, found, rest = rest[end:].partition(OPENING)
        if between.strip():
            return text, ()
    return content, tuple(calls)


def end_of_first_call(text: str) -> int | None:
    """Where the first call ends, its closing tag included; None while there is none that can be read."""
    start = text.find(OPENING) + len(OPENING)
    read = _read(text[start:]) if start >= len(OPENING) else None
    return None if read is None else start + read[1]


def _read(text: str) -> tuple[ToolCall, int] | None:
    """The call that `text` begins with, behind its opening tag, and where its closing tag ends.

    JSON ends where it ends: a closing tag within one of its strings is a part of that string.
    """
    try:
        value, end = _DECODER.raw_decode(text, _behind_space(text, 0))
    except (ValueError, RecursionError):
        return None
    end = _behind_space(text, end)
    if not text.startswith(CLOSING, end) or not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False)), end + len(CLOSING)


def _number(text: str) -> int | float:
    """Whole numbers as programs in JavaScript repeat them, which have no `1.0`."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


_DECODER = json.JSONDecoder(parse_float=_number)
_SPACE = re.compile(r"[ \t\n\r]*")


def _behind_space(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    assert found is not None, "no space is space too"
    return found.end()
