"""Pure: OpenAI's Responses: replies as items, whole or as numbered events.

created, in_progress -> (item added -> delta* -> item done)* -> completed | incomplete        or failed
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.protocol import Answer, Piece, Protocol, ReplyHead, ReplyWriter, server_sent
from envsdk.engines.endpoint.protocols.responses_request import (
    NAMES,
    SEALED,
    ResponsesRequest,
    Tool,
    read_responses,
)
from envsdk.engines.endpoint.record import Prompt
from envsdk.engines.endpoint.reply_text import Part, ThoughtText
from envsdk.engines.tool_calls.reading import THOUGHT, ToolCall

Event = Mapping[str, Any]
_BEGUN = ("created", "in_progress")


@dataclass(slots=True)
class _Items:
    """Where a reply stands."""

    parts: ThoughtText = field(default_factory=ThoughtText)
    done: list[dict[str, Any]] = field(default_factory=list)
    """Items that have ended."""
    open: Part | None = None
    """What the item is that is being written; None between two."""
    text: str = ""
    """What the open item holds so far."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """What the next events are numbered by."""
    num_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesWriter(ReplyWriter):
    """Writes the answer to one request."""

    request: ResponsesRequest
    _items: _Items = field(default_factory=_Items)

    def whole(self, prompts: Sequence[Prompt], answers: Sequence[tuple[Prompt, Answer]]) -> dict[str, Any]:
        ((prompt, answer),) = answers
        self._items.num_prompt_tokens = len(prompt.ids)
        list(self._written(answer.content, answer))
        return self._response(answer)

    def first(self, index: int, prompt: Prompt) -> str:
        self._items.num_prompt_tokens = len(prompt.ids)
        begun = self._response(None)
        return self._sent([{"type": f"response.{each}", "response": begun} for each in _BEGUN])

    def piece(self, index: int, piece: Piece) -> str:
        return self._sent(self._texts(self._items.parts.push(piece.text)))

    def last(self, index: int, answer: Answer) -> str:
        return self._sent(self._written(answer.rest, answer))

    def end(self, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> str:
        response = self._response(answers[0])
        return self._sent([{"type": f"response.{response['status']}", "response": response}])

    def failed(self, error: ApiError) -> str:
        code = error.code if error.code == "context_length_exceeded" else "invalid_prompt"
        problem = {"code": code if error.status < 500 else "server_error", "message": error.message}
        response = self._response(None) | {"status": "failed", "error": problem, "output": self._items.done}
        return self._sent([{"type": "response.failed", "response": response}])

    def _sent(self, events: Iterator[Event] | Sequence[Event]) -> str:
        numbers = self._items.numbers
        return "".join(
            server_sent({**event, "sequence_number": next(numbers)}, event=event["type"]) for event in events
        )

    def _texts(self, texts: Sequence[tuple[Part, str]]) -> Iterator[Event]:
        """Events of some more of the reply's thought and text."""
        items = self._items
        for part, text in texts:
            if part != items.open:
                yield from self._close("completed")
                yield from self._open(part)
            if text:
                items.text += text
                yield self._of_text("delta", delta=text)

    def _written(self, rest: str, answer: Answer) -> Iterator[Event]:
        """Events of the rest of the reply's text, of what was held back, and of the calls."""
        items = self._items
        yield from self._texts(items.parts.push(rest))
        yield from self._texts(items.parts.finish())
        if items.open is None and not items.done and not answer.tool_calls:
            yield from self._open("text")
        yield from self._close("incomplete" if answer.finish_reason == "length" else "completed")
        for call in answer.tool_calls:
            yield from self._call(call)

    def _open(self, part: Part) -> Iterator[Event]:
        items = self._items
        items.open, items.text = part, ""
        begun = self._item(part, "", "in_progress")
        yield {"type": "response.output_item.added", **self._place, "item": begun | {"content": []}}
        yield {"type": "response.content_part.added", **self._part, "part": begun["content"][0]}

    def _close(self, status: str) -> Iterator[Event]:
        items = self._items
        if items.open is None:
            return
        if items.open == "thinking":
            status = "completed" if items.parts.part == "text" else "incomplete"
        item = self._item(items.open, items.text, status)
        yield self._of_text("done", text=items.text)
        yield {"type": "response.content_part.done", **self._part, "part": item["content"][0]}
        yield {"type": "response.output_item.done", **self._place, "item": item}
        items.done.append(item)
        items.open = None

    @property
    def _place(self) -> dict[str, int]:
        return {"output_index": len(self._items.done)}

    @property
    def _part(self) -> dict[str, Any]:
        prefix = "rs" if self._items.open == "thinking" else "msg"
        return {**self._place, "item_id": self._id(prefix), "content_index": 0}

    def _of_text(self, what: str, **content: str) -> Event:
        is_thought = self._items.open == "thinking"
        kind = "reasoning_text" if is_thought else "output_text"
        logprobs: dict[str, Any] = {} if is_thought else {"logprobs": []}
        return {"type": f"response.{kind}.{what}", **self._part, **content, **logprobs}

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self.head.unique}_{len(self._items.done)}"

    def _item(self, part: Part, text: str, status: str) -> dict[str, Any]:
        if part == "text":
            content: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            item = {"id": self._id("msg"), "type": "message", "role": "assistant", "status": status}
            return item | {"content": [content]}
        item = {"id": self._id("rs"), "type": "reasoning", "status": status}
        if self.request.seals_reasoning and status != "in_progress":
            closing = THOUGHT[1] if status == "completed" else ""
            item["encrypted_content"] = f"{SEALED}{THOUGHT[0]}{text}{closing}"
        return item | {"summary": [], "content": [{"type": "reasoning_text", "text": text}]}

    def _call(self, call: ToolCall) -> Iterator[Event]:
        namespace, tool = self.request.tools.get(call.name, (None, Tool(type="function", name=call.name)))
        is_custom = tool.type == "custom"
        kind, name = ("custom_tool_call", "input") if is_custom else ("function_call", "arguments")
        written = _input(call.arguments) if is_custom else call.arguments
        item: dict[str, Any] = {
            "id": self._id("ctc" if is_custom else "fc"),
            "type": kind,
            "status": "in_progress",
            "call_id": call.id,
            "name": tool.name,
            name: "",
        }
        if namespace is not None:
            item["namespace"] = namespace
        at = {**self._place, "item_id": item["id"]}
        event = f"response.{kind}_{name}"
        yield {"type": "response.output_item.added", **self._place, "item": dict(item)}
        yield {"type": f"{event}.delta", **at, "delta": written}
        yield {"type": f"{event}.done", **at, "name": tool.name, name: written}
        item |= {"status": "completed", name: written}
        yield {"type": "response.output_item.done", **self._place, "item": item}
        self._items.done.append(item)

    def _response(self, answer: Answer | None) -> dict[str, Any]:
        """The answer as far as it is known: None is its beginning."""
        is_cut = answer is not None and answer.finish_reason == "length"
        status = "in_progress" if answer is None else "incomplete" if is_cut else "completed"
        return {
            "id": f"resp_{self.head.unique}",
            "object": "response",
            "created_at": self.head.created,
            "status": status,
            "model": self.fields.model,
            **self.request.echoed,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [] if answer is None else self._items.done,
            "previous_response_id": None,
            "store": False,
            "usage": None if answer is None else self._usage(answer),
        }

    def _usage(self, answer: Answer) -> dict[str, Any]:
        num_prompt, num_sampled = self._items.num_prompt_tokens, len(answer.token_ids)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": num_sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": num_prompt + num_sampled,
        }


def _input(arguments: str) -> str:
    """What the policy gave a custom tool; all its arguments, where `input` is not the one it gave."""
    given = json.loads(arguments)
    return given["input"] if given.keys() == {"input"} and isinstance(given["input"], str) else arguments


def error_body(error: ApiError) -> dict[str, Any]:
    """An error in OpenAI's format, with this protocol's names."""
    return error.renamed(NAMES).body()


def _read(body: bytes, head: ReplyHead) -> ResponsesWriter:
    request = read_responses(body, head.histories)
    return ResponsesWriter(fields=request.fields, head=head, request=request)


RESPONSES = Protocol(path="/v1/responses", read=_read, error_body=error_body)
