"""Messages of verifiers, objects or mappings, as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def text_of(messages: Iterable[Any]) -> str:
    """The text of messages, one below the other; parts that are no text are left out."""
    return "\n\n".join(filter(None, map(_content, messages)))


def after_last_reply(messages: Iterable[Any]) -> list[Any]:
    """What came after the last message of the assistant."""
    fresh: list[Any] = []
    for message in messages:
        fresh = [] if role_of(message) == "assistant" else [*fresh, message]
    return fresh


def role_of(message: Any) -> Any:
    return _field(message, "role")


def _content(message: Any) -> str:
    content = _field(message, "content")
    if isinstance(content, str):
        return content
    parts = [part if isinstance(part, str) else _field(part, "text") for part in content or ()]
    return "\n".join(part for part in parts if isinstance(part, str))


def shows_more_than_text(messages: Iterable[Any]) -> bool:
    """Whether a message has a part that is no text, such as an image."""
    contents = [_field(message, "content") for message in messages]
    parts = [part for content in contents if not isinstance(content, str) for part in content or ()]
    return any(not isinstance(part, str) and _field(part, "text") is None for part in parts)


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)
