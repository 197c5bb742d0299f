"""Pure: OpenAI's chat completions and completions: replies as JSON, whole or in chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from envsdk.engines.continuation import rows_of
from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.protocol import Answer, Piece, Protocol, ReplyWriter, server_sent
from envsdk.engines.endpoint.record import Prompt
from envsdk.engines.endpoint.reply_text import ThoughtText
from envsdk.engines.endpoint.wire import ChatFields, CompletionFields, read_chat, read_completion
from envsdk.engines.engine import PromptScores, TopTokens
from envsdk.engines.tool_calls.reading import ToolCall

TextAndLogprob = tuple[str, float | None]

DONE = "data: [DONE]\n\n"
"""Ends a stream of OpenAI's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiWriter(ReplyWriter):
    """Writes the answers to one request. A reply's thought is its `reasoning_content`."""

    _thoughts: dict[int, ThoughtText] = field(default_factory=dict)
    """Readers of the choices, by their numbers."""

    @property
    def reply_id(self) -> str:
        return ("chatcmpl-" if self._is_chat else "cmpl-") + self.head.unique

    @property
    def _is_chat(self) -> bool:
        return isinstance(self.fields, ChatFields)

    def whole(self, prompts: Sequence[Prompt], answers: Sequence[tuple[Prompt, Answer]]) -> dict[str, Any]:
        versions = [answer.version for _, answer in answers if answer.version is not None]
        body = self._head("chat.completion", max(versions, default=None))
        choices = [self._choice(index, *answer) for index, answer in enumerate(answers)]
        body |= {"choices": choices, "usage": usage_of(prompts, [answer for _, answer in answers])}
        if self._is_chat and self.fields.return_token_ids:
            body["prompt_token_ids"] = list(prompts[0].ids)
        return body

    def first(self, index: int, prompt: Prompt) -> str:
        asked = self.fields.return_token_ids
        prompt_ids = {"prompt_token_ids": list(prompt.ids)} if asked else {}
        if self._is_chat:
            return server_sent(
                self._chunk(index, {"delta": {"role": "assistant", "content": ""}}) | prompt_ids
            )
        if asked:
            return server_sent(self._chunk(index, {"text": "", **prompt_ids, "token_ids": []}))
        return ""

    @property
    def echoes(self) -> bool:
        return isinstance(self.fields, CompletionFields) and bool(self.fields.echo)

    @property
    def scores_prompt(self) -> bool:
        return isinstance(self.fields, CompletionFields) and self.fields.scores_prompt

    def echo(self, index: int, prompt: Prompt, scores: PromptScores | None) -> str:
        choice: dict[str, Any] = {"text": prompt.text}
        if scores is not None:
            choice["logprobs"] = self._prompt_logprobs(prompt, scores)
        return server_sent(self._chunk(index, choice))

    def piece(self, index: int, piece: Piece) -> str:
        said = self._delta(index, piece.text) if self._is_chat else {"text": piece.text}
        if not (any(said.values()) or self.fields.return_token_ids or self.fields.wants_logprobs):
            return ""
        choice: dict[str, Any] = {"delta": said or {"content": ""}} if self._is_chat else said
        choice |= self._token_details(piece.token_ids, piece.logprobs, piece.top)
        return server_sent(self._chunk(index, choice, version=piece.version))

    def last(self, index: int, answer: Answer) -> str:
        if self._is_chat:
            delta = self._delta(index, answer.rest, is_last=True)
            if answer.tool_calls:
                delta["tool_calls"] = [
                    {"index": number, **call} for number, call in enumerate(_tool_calls(answer.tool_calls))
                ]
            choice: dict[str, Any] = {"delta": delta}
        else:
            choice = {"text": answer.rest}
        choice |= self._token_details((), (), ()) | self._version_spans(answer)
        return server_sent(
            self._chunk(index, choice, version=answer.version, finish_reason=answer.finish_reason)
        )

    def end(self, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> str:
        if not self.fields.includes_usage:
            return DONE
        body = self._head("chat.completion.chunk")
        return server_sent(body | {"choices": [], "usage": usage_of(prompts, answers)}) + DONE

    def failed(self, error: ApiError) -> str:
        return server_sent(error.body()) + DONE

    def _head(self, chat_kind: str, version: int | None = None) -> dict[str, Any]:
        kind = chat_kind if self._is_chat else "text_completion"
        head = {"id": self.reply_id, "object": kind, "created": self.head.created, "model": self.fields.model}
        return head if version is None else head | {"system_fingerprint": f"version-{version}"}

    def _chunk(
        self,
        index: int,
        choice: dict[str, Any],
        *,
        version: int | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        body = self._head("chat.completion.chunk", version)
        choice = {"index": index, "logprobs": None, **choice, "finish_reason": finish_reason}
        body["choices"] = [choice]
        return body | ({"usage": None} if self.fields.includes_usage else {})

    def _choice(self, index: int, prompt: Prompt, answer: Answer) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": answer.finish_reason}
        if self._is_chat:
            parts = self._delta(index, answer.content, is_last=True)
            message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None, **parts}
            if answer.tool_calls:
                message["content"] = message["content"] if message["content"].strip() else None
                message["tool_calls"] = _tool_calls(answer.tool_calls)
            choice["message"] = message
        else:
            choice["text"] = (prompt.text if self.echoes else "") + answer.content
            if self.fields.return_token_ids:
                choice["prompt_token_ids"] = list(prompt.ids)
        choice |= self._token_details(answer.token_ids, answer.logprobs, answer.top)
        if answer.prompt_scores is not None:
            before = self._prompt_logprobs(prompt, answer.prompt_scores)
            after = choice["logprobs"]
            choice["logprobs"] = {
                name: None if after[name] is None else before[name] + after[name] for name in after
            }
        return choice | self._version_spans(answer)

    def _delta(self, index: int, text: str, *, is_last: bool = False) -> dict[str, Any]:
        """Fields of a message with some more of a reply."""
        thought = self._thoughts.setdefault(index, ThoughtText())
        fields: dict[str, Any] = {}
        for part, more in [*thought.push(text), *(thought.finish() if is_last else ())]:
            name = "content" if part == "text" else "reasoning_content"
            fields |= {name: fields.get(name, "") + more} if more else {}
        return fields

    def _version_spans(self, answer: Answer) -> dict[str, Any]:
        if not self.fields.return_token_ids:
            return {}
        spans = [[span.version, span.start, span.end] for span in answer.version_spans]
        return {"version_spans": spans}

    def _token_details(
        self, token_ids: Sequence[int], logprobs: Sequence[float], top: Sequence[TopTokens]
    ) -> dict[str, Any]:
        details: dict[str, Any] = {}
        if self.fields.return_token_ids:
            details["token_ids"] = list(token_ids)
        if self.fields.wants_logprobs:
            tokens = [
                (self.head.token_text(token), None if math.isnan(logprob) else logprob)
                for token, logprob in zip(token_ids, logprobs, strict=True)
            ]
            likeliest = [self._likeliest(each) for each in top] or [[] for _ in tokens]
            write = _chat_logprobs if self._is_chat else _logprobs
            details["logprobs"] = write(tokens, likeliest, num_top=self.fields.num_top)
        return details

    def _prompt_logprobs(self, prompt: Prompt, scores: PromptScores) -> dict[str, Any]:
        """Nothing comes before the first token, so it has none."""
        top = scores.top
        values = [None, *(None if math.isnan(value) else value for value in scores.logprobs.tolist())]
        likeliest: list[list[TextAndLogprob]] = [[]]
        for number in range(len(scores.logprobs)):
            likeliest.append([] if top is None else self._likeliest(rows_of(top, number, number + 1)))
        tokens = list(zip(map(self.head.token_text, prompt.ids), values, strict=True))
        return _logprobs(tokens, likeliest, num_top=self.fields.num_top)

    def _likeliest(self, top: TopTokens) -> list[TextAndLogprob]:
        """Likeliest tokens of one position. A token that cannot be drawn is none of them."""
        pairs = zip(top.token_ids[0].tolist(), top.logprobs[0].tolist(), strict=True)
        return [(self.head.token_text(token), logprob) for token, logprob in pairs if math.isfinite(logprob)]


def usage_of(prompts: Sequence[Prompt], answers: Sequence[Answer]) -> dict[str, int]:
    """Numbers of tokens; a prompt counts once, however many replies it gets."""
    num_prompt = sum(len(prompt.ids) for prompt in prompts)
    num_sampled = sum(len(answer.token_ids) for answer in answers)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_sampled,
        "total_tokens": num_prompt + num_sampled,
    }


def _tool_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]


def _logprobs(
    tokens: Sequence[TextAndLogprob], likeliest: Sequence[Sequence[TextAndLogprob]], *, num_top: int
) -> dict[str, Any]:
    top: list[dict[str, float | None] | None] = []
    for (text, logprob), others in zip(tokens, likeliest, strict=True):
        # Of tokens with the same text the likeliest; the given one is always there.
        by_text = dict(reversed(others))
        by_text.setdefault(text, logprob)
        top.append(by_text if logprob is not None else None)
    return {
        "tokens": [text for text, _ in tokens],
        "token_logprobs": [logprob for _, logprob in tokens],
        "top_logprobs": top if num_top else None,
        "text_offset": None,
    }


def _chat_logprobs(
    tokens: Sequence[TextAndLogprob], likeliest: Sequence[Sequence[TextAndLogprob]], *, num_top: int
) -> dict[str, Any]:
    content = []
    for token, others in zip(tokens, likeliest, strict=True):
        top = [token_json(*other) for other in others[:num_top]]
        content.append(token_json(*token) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def token_json(text: str, logprob: float | None) -> dict[str, Any]:
    """A token with its log-probability, as chat completions have it."""
    # A token that is a part of a character has no text to tell its bytes from.
    is_part = "\N{REPLACEMENT CHARACTER}" in text
    return {"token": text, "logprob": logprob, "bytes": None if is_part else list(text.encode())}


CHAT = Protocol(
    path="/v1/chat/completions",
    read=lambda body, head: OpenAiWriter(fields=read_chat(body, head.histories["chat"]), head=head),
)
COMPLETIONS = Protocol(
    path="/v1/completions", read=lambda body, head: OpenAiWriter(fields=read_completion(body), head=head)
)
