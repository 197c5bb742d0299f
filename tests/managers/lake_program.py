"""An agent as a program of its own: plays turn by turn, with nothing but the standard library."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def by_chat(messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": os.environ["ENVSDK_MODEL"], "messages": messages}
    answer = call(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    return dict(answer["choices"][0]["message"])


def by_messages(messages: list[dict[str, Any]]) -> dict[str, Any]:
    system = [message["content"] for message in messages if message["role"] == "system"]
    said = [message for message in messages if message["role"] != "system"]
    body = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 1000, "messages": said}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    answer = call(url, body | ({"system": system[0]} if system else {}))
    text = "".join(block["text"] for block in answer["content"])
    return {"role": "assistant", "content": text}


def main() -> None:
    session = os.environ["ENVSDK_SESSION_URL"]
    shown = call(f"{session}/env")
    messages = [{"role": "system", "content": shown["system"]}] if shown["system"] else []
    while not shown["is_over"]:
        messages.append({"role": "user", "content": shown["prompt"]})
        message = by_messages(messages) if "messages" in sys.argv else by_chat(messages)
        messages.append(message)
        shown = call(f"{session}/env/step", {"action": message["content"]})


if __name__ == "__main__":
    main()
