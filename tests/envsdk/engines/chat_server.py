"""A server for tests that speaks `/chat/completions`: it answers by a function, or misbehaves as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.envsdk.engines.local_http import LocalServer, QuietHandler

Answer = tuple[int, dict[str, Any], dict[str, str]]
"""Status, JSON and headers."""


@dataclass(slots=True)
class ChatBehavior:
    """What the server does; change it between requests."""

    reply: Callable[[list[dict[str, str]]], str] = lambda messages: "go"
    api_key: str = ""
    answers: list[Answer] = field(default_factory=list)
    """Taken from the front, one per request, instead of a reply."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Requests that came."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class ChatServer(LocalServer):
    """`with ChatServer() as server:` serves on 127.0.0.1 until the block ends."""

    path = "/v1"

    def __init__(self) -> None:
        self.behavior = ChatBehavior()
        super().__init__(_Handler, behavior=self.behavior)


def completion(content: str | None, finish_reason: str = "stop", total_tokens: int = 10) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": total_tokens - 1, "total_tokens": total_tokens},
    }


class _Handler(QuietHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        behavior: ChatBehavior = self.server.behavior  # type: ignore[attr-defined]
        with behavior.lock:
            behavior.bodies.append(body)
            scripted = behavior.answers.pop(0) if behavior.answers else None
        if scripted is not None:
            status, content, headers = scripted
            self.answer(status, content, **headers)
        elif self.path != "/v1/chat/completions":
            self.answer(404, {"detail": "Not Found"})
        elif behavior.api_key and self.headers["Authorization"] != f"Bearer {behavior.api_key}":
            self.answer(401, {"error": {"message": "bad key"}})
        else:
            self.answer(200, completion(behavior.reply(body["messages"])))
