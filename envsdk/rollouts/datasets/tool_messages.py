"""Pure: from tool calls in the texts of a conversation to messages with `tool_calls`, as OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envsdk.engines.tool_calls.formats import read_reply

_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>\s*", re.DOTALL)


def with_tool_calls(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with calls and their answers taken out of the texts.

    A reply with `<tool_call>` becomes text and `tool_calls`, and the message after it one `tool` message per
    call: each `<tool_response>` in it or, after a single call, all of it. A reply whose calls cannot be read,
    or are not answered one by one, stays text.
    """
    return list(_converted(messages))


def _converted(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    answered: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if answered:
            yield from answered
            answered = []
            continue
        behind = messages[index + 1] if index + 1 < len(messages) else None
        converted = None
        if message["role"] == "assistant":
            converted = _with_calls(message, behind, number=index)
        if converted is None:
            yield dict(message)
        else:
            reply, answered = converted
            yield reply


def _with_calls(
    message: Mapping[str, Any], behind: Mapping[str, Any] | None, *, number: int
) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    reading = read_reply(message["content"])
    content, calls = reading.shown, reading.calls
    if not calls:
        return None
    answers: list[str] = []
    if behind is not None and behind["role"] == "user":
        answers = _answers(behind["content"], len(calls))
        if not answers:
            return None
    ids = [f"call_{number}_{place}" for place in range(len(calls))]
    tool_calls = [
        {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call_id, call in zip(ids, calls, strict=True)
    ]
    results = [
        {"role": "tool", "tool_call_id": call_id, "content": answer}
        for call_id, answer in zip(ids, answers, strict=False)
    ]
    return {**message, "content": content, "tool_calls": tool_calls}, results


def _answers(text: str, num_calls: int) -> list[str]:
    """One per call; none when the text does not answer each."""
    found = _RESPONSE.findall(text)
    if len(found) == num_calls and not _RESPONSE.sub("", text).strip():
        return found
    return [text] if num_calls == 1 else []
