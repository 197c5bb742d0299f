"""How a reply names an action."""

from __future__ import annotations

from typing import Literal

ActionFormat = Literal["tag", "text"]
ACTION_FORMATS: tuple[ActionFormat, ...] = ("tag", "text")

_OPEN, _CLOSE = "<action>", "</action>"
_MAX_ACTION_LENGTH = 2000


def format_reply(action: str, action_format: ActionFormat) -> str:
    """The reply that plays `action`."""
    return f"{_OPEN}{action}{_CLOSE}" if action_format == "tag" else action


def parse_reply(reply: str, action_format: ActionFormat) -> str:
    """The action of a reply; empty when it names none, or one that is longer than any.

    `tag`: what stands in the last complete `<action>`, without blanks around it. `text`: the reply as it
    is, which upstream's rules then take or refuse.
    """
    action = reply
    if action_format == "tag":
        start = reply.rfind(_OPEN, 0, max(reply.rfind(_CLOSE), 0))
        if start < 0:
            return ""
        start += len(_OPEN)
        action = reply[start : reply.index(_CLOSE, start)].strip()
    return action if len(action) <= _MAX_ACTION_LENGTH else ""
