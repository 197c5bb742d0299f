"""Pure: Anthropic's Messages: replies as blocks of thought, text and calls, whole or as events."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.protocol import Answer, Piece, Protocol, ReplyWriter, server_sent
from envsdk.engines.endpoint.protocols.anthropic_request import FINISHED, UNFINISHED, read_messages
from envsdk.engines.endpoint.record import Prompt
from envsdk.engines.endpoint.reply_text import Part, ThoughtText

Texts = list[tuple[Part, str]]


@dataclass(slots=True)
class _Blocks:
    """The blocks of a reply, as its text comes."""

    thought: ThoughtText = field(default_factory=ThoughtText)
    spaces: str = ""
    """White space before the text. Clients drop a block of nothing else, so it waits for what follows."""
    is_text: bool = False
    count: int = 0
    """Blocks that a stream has closed."""
    open: Part | None = None
    """The block that a stream is writing."""
    num_prompt_tokens: int = 0

    def push(self, text: str) -> Texts:
        return self._after_spaces(self.thought.push(text))

    def finish(self, answer: Answer) -> Texts:
        """What was held back."""
        texts = self._after_spaces(self.thought.finish())
        return [*texts, ("text", self.spaces)] if self.spaces and not answer.tool_calls else texts

    @property
    def signature(self) -> str:
        """Signature of the thought, when it is closed."""
        return UNFINISHED if self.thought.part == "thinking" else FINISHED

    def _after_spaces(self, texts: Texts) -> Texts:
        given: Texts = []
        for part, text in texts:
            if part == "text" and not self.is_text:
                text, self.spaces = self.spaces + text, ""
                self.is_text = bool(text.strip())
                if not self.is_text:
                    self.spaces = text
                    continue
            given.append((part, text))
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesWriter(ReplyWriter):
    """Writes the answer to one request."""

    _stream: _Blocks = field(default_factory=_Blocks)

    def whole(self, prompts: Sequence[Prompt], answers: Sequence[tuple[Prompt, Answer]]) -> dict[str, Any]:
        ((prompt, answer),) = answers
        blocks = _Blocks()
        texts = blocks.push(answer.content)
        texts += blocks.finish(answer)
        content: list[dict[str, Any]] = []
        for part, pieces in itertools.groupby(texts, key=lambda each: each[0]):
            signed = {"signature": blocks.signature} if part == "thinking" else {}
            content.append({"type": part, part: "".join(text for _, text in pieces), **signed})
        head = self._message([*content, *_calls(answer)], _usage(len(prompt.ids), answer))
        return head | _stop(self.fields.longest_reply, answer)

    def first(self, index: int, prompt: Prompt) -> str:
        self._stream.num_prompt_tokens = len(prompt.ids)
        message = self._message([], _usage(len(prompt.ids), None))
        message |= {"stop_reason": None, "stop_sequence": None}
        return _event("message_start", message=message) + self.ping()

    def piece(self, index: int, piece: Piece) -> str:
        return self._write(self._stream.push(piece.text))

    def last(self, index: int, answer: Answer) -> str:
        stream = self._stream
        events = self._write(stream.push(answer.rest)) + self._write(stream.finish(answer))
        events += self._close()
        for number, call in enumerate(_calls(answer), start=stream.count):
            arguments = json.dumps(call["input"], ensure_ascii=False)
            delta = {"type": "input_json_delta", "partial_json": arguments}
            events += _event("content_block_start", index=number, content_block={**call, "input": {}})
            events += _event("content_block_delta", index=number, delta=delta)
            events += _event("content_block_stop", index=number)
        usage = _usage(stream.num_prompt_tokens, answer)
        return events + _event("message_delta", delta=_stop(self.fields.longest_reply, answer), usage=usage)

    def end(self, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> str:
        return _event("message_stop")

    def ping(self) -> str:
        return _event("ping")

    def failed(self, error: ApiError) -> str:
        return server_sent(error_body(error), event="error")

    def _message(self, content: Sequence[Mapping[str, Any]], usage: Mapping[str, int]) -> dict[str, Any]:
        return {
            "id": f"msg_{self.head.unique}",
            "type": "message",
            "role": "assistant",
            "model": self.fields.model,
            "content": list(content),
            "usage": usage,
        }

    def _write(self, texts: Texts) -> str:
        events, stream = "", self._stream
        for part, text in texts:
            if part != stream.open:
                events += self._close()
                stream.open = part
                block = {"type": part, part: ""} | ({"signature": ""} if part == "thinking" else {})
                events += _event("content_block_start", index=stream.count, content_block=block)
            if text:
                events += self._delta({"type": f"{part}_delta", part: text})
        return events

    def _delta(self, delta: Mapping[str, Any]) -> str:
        return _event("content_block_delta", index=self._stream.count, delta=delta)

    def _close(self) -> str:
        stream = self._stream
        if stream.open is None:
            return ""
        signature = {"type": "signature_delta", "signature": stream.signature}
        events = self._delta(signature) if stream.open == "thinking" else ""
        events += _event("content_block_stop", index=stream.count)
        stream.count, stream.open = stream.count + 1, None
        return events


def _event(kind: str, **content: Any) -> str:
    return server_sent({"type": kind, **content}, event=kind)


def _calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in answer.tool_calls
    ]


def _usage(num_prompt_tokens: int, answer: Answer | None) -> dict[str, int]:
    return {
        "input_tokens": num_prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0 if answer is None else len(answer.token_ids),
    }


def _stop(longest_reply: int | None, answer: Answer) -> dict[str, Any]:
    reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[answer.finish_reason]
    if reason == "end_turn" and answer.stop:
        reason = "stop_sequence"
    if reason == "max_tokens" and answer.fills_context and len(answer.token_ids) != longest_reply:
        reason = "model_context_window_exceeded"
    return {"stop_reason": reason, "stop_sequence": answer.stop or None}


_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


_NAMES = {"response_format.json_schema": "output_config.format", "response_format": "output_config.format"}


def error_body(error: ApiError) -> dict[str, Any]:
    """An error in Anthropic's format. Claude Code knows by its first words that a prompt is too long."""
    kind = _ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    error = error.renamed(_NAMES)
    is_too_long = error.code == "context_length_exceeded"
    message = f"prompt is too long: {error.message}" if is_too_long else error.message
    return {"type": "error", "error": {"type": kind, "message": message}}


MESSAGES = Protocol(
    path="/v1/messages",
    read=lambda body, head: MessagesWriter(fields=read_messages(body, head.histories), head=head),
    error_body=error_body,
    count_body=lambda num_tokens: {"input_tokens": num_tokens},
)
