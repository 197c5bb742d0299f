"""Pure: tool calls in a reply's text, as Hermes and Qwen write them.

Let me look.<tool_call>
{"name": "search", "arguments": {"query": "ice"}}
</tool_call>
"""

from __future__ import annotations

import json
from dataclasses import dataclass

OPENING, CLOSING = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the policy asks for."""

    name: str
    arguments: str
    """JSON of an object."""


def find_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """The text before the first call, and the calls.

    All or none: when one cannot be read, or text follows it, the whole text is content and nothing is called.
    """
    content, found, rest = text.partition(OPENING)
    calls: list[ToolCall] = []
    while found:
        body, closed, rest = rest.partition(CLOSING)
        call = _read(body) if closed else None
        if call is None:
            return text, ()
        calls.append(call)
        between, found, rest = rest.partition(OPENING)
        if between.strip():
            return text, ()
    return content, tuple(calls)


def _read(body: str) -> ToolCall | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))
