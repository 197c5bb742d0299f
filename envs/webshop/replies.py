"""How a reply names an action."""

from __future__ import annotations

from typing import Literal

from envsdk.contracts.turn_env import last_between

ActionFormat = Literal["tag", "answer", "text"]

_TAGS = {"tag": ("<action>", "</action>"), "answer": ("<answer>", "</answer>")}
_MAX_ACTION_LENGTH = 2000


def format_reply(action: str, action_format: ActionFormat) -> str:
    """The reply that plays `action`."""
    opening, closing = _TAGS.get(action_format, ("", ""))
    return f"{opening}{action}{closing}"


def parse_reply(reply: str, action_format: ActionFormat) -> str:
    """The action of a reply; empty when it names none, or one that is longer than any.

    `tag`, `answer`: what stands in the last complete `<action>` or `<answer>`, without blanks around it.
    `text`: the reply as it is, which upstream's rules then take or refuse.
    """
    action = reply
    if action_format in _TAGS:
        found = last_between(reply, *_TAGS[action_format])
        if found is None:
            return ""
        action = reply[found].strip()
    return action if len(action) <= _MAX_ACTION_LENGTH else ""
