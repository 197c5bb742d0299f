"""Pure: the messages that decide what a chat template writes behind a reply.

Most templates write the same whatever was said before the reply. Then a turn renders what is new, and not the
conversation again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from envsdk.contracts.chat import ChatTokenizer

Messages = Sequence[Mapping[str, Any]]

_USER: dict[str, Any] = {"role": "user", "content": "envsdk"}
_SYSTEM: dict[str, Any] = {"role": "system", "content": "envsdk"}
_REPLY: dict[str, Any] = {"role": "assistant", "content": "envsdk"}
_FUNCTION: dict[str, Any] = {"name": "look", "arguments": {"where": "up"}}
_CALL = {**_REPLY, "tool_calls": [{"id": "envsdk123", "type": "function", "function": _FUNCTION}]}
_RESULT: dict[str, Any] = {"role": "tool", "content": "envsdk", "tool_call_id": "envsdk123"}
_LOOK = {"name": "look", "description": "", "parameters": {"type": "object"}}
_TOOL = {"type": "function", "function": _LOOK}

_BEFORE: Sequence[Messages] = (
    [_SYSTEM, _USER],
    [_USER, _REPLY, _USER],
    [_USER, _REPLY] * 4 + [_USER],
    [_SYSTEM, _USER, _CALL, _RESULT, _RESULT],
    [_USER, _CALL, _RESULT, _CALL, _RESULT, _REPLY, _USER, _CALL, _RESULT],
)
_BEHIND: Sequence[Messages] = ([], [_USER], [_RESULT], [_RESULT, _RESULT], [_RESULT, _USER], [_SYSTEM, _USER])


class RecentMessages:
    """Cuts conversations for one chat template."""

    def __init__(self, chat: ChatTokenizer) -> None:
        self._chat = chat
        cases = itertools.product(_BEFORE, _BEHIND, (None, [_TOOL]))
        self.are_enough = all(self._are_enough(*case) for case in cases)
        """Whether the template looks no further back than this."""

    def _are_enough(self, before: Messages, behind: Messages, tools: Messages | None) -> bool:
        whole, at = [*before, _REPLY, *behind], len(before)
        return self._written(whole, at, tools) == self._written(*_cut(whole, at), tools)

    def _written(self, messages: Messages, at: int, tools: Messages | None) -> list[int] | None:
        try:
            return self._chat.behind_reply(messages, at, reply_closed=False, tools=tools)
        except jinja2.TemplateError:
            return None

    def of(self, messages: Messages, at: int) -> tuple[Messages, int]:
        """Messages with the reply `messages[at]` behind which the template writes the same, and its place."""
        if self.are_enough and all(message["role"] != "assistant" for message in messages[at + 1 :]):
            return _cut(messages, at)
        return messages, at


def _cut(messages: Messages, at: int) -> tuple[Messages, int]:
    head = [*(message for message in messages[:1] if message["role"] == "system"), _USER]
    return [*head, *messages[at:]], len(head)
