"""Pure: vLLM's `/inference/v1/generate`: token ids in, token ids out, by the protocol of vLLM 0.32.

It is a completion with one prompt, whose sampling parameters stand in a field of their own. Weight versions
come as vLLM has them, spans over the reply's tokens with the version as text. Prompts with media, and
what vLLM's servers move between each other, are refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from envsdk.base.settings.nearest import suggest
from envsdk.engines.endpoint.bodies import DONE, token_json, usage_of
from envsdk.engines.endpoint.errors import ApiError, invalid, unsupported
from envsdk.engines.endpoint.messages import FIRST
from envsdk.engines.endpoint.parsing import read_json
from envsdk.engines.endpoint.protocol import Answer, Piece, Protocol, ReplyHead, ReplyWriter, server_sent
from envsdk.engines.endpoint.record import Prompt
from envsdk.engines.endpoint.wire import CompletionFields, read_fields
from envsdk.engines.engine import TopTokens

_LEAST = -9999.0
"""What vLLM gives for a log-probability that is no number, or less than this."""
_REFUSED = ("content_parts", "ec_transfer_params", "features", "kv_transfer_params")
_IGNORED = ("cache_salt", "priority", "reasoning_ended", "reasoning_parser_kwargs", "token_offsets")
_IGNORED_SAMPLING = frozenset(
    {"detokenize", "flat_logprobs", "output_kind", "routed_experts_prompt_start", "skip_clone",
     "skip_reading_prefix_cache", "stream_interval"}
)  # fmt: skip
"""Sampling parameters that never change a reply here."""
_OWN = ("model", "output_mode", "request_id", "return_token_ids", "stream", "stream_options", "token_ids")
"""Fields beside `sampling_params`."""


class GenerateFields(CompletionFields):
    """`POST /inference/v1/generate`, with its sampling parameters among the other fields."""

    default_max_tokens = None
    prompt_field = "token_ids"

    prompt: Annotated[list[int], Field(alias="token_ids", min_length=1), FIRST]
    request_id: str
    output_mode: Literal["tokens", "text"] = "tokens"
    """`text` adds the reply's text, and texts of the tokens to `logprobs`."""

    @property
    def is_cut_to_room(self) -> bool:
        return True

    @property
    def num_top(self) -> int:
        """The sampled token is the first of those that are told."""
        return self.logprobs if self.logprobs is not None and self.logprobs > 1 else 0


def read_generate(body: bytes, head: ReplyHead) -> GenerateFields:
    """Raises ApiError, for a sampling parameter by its own name."""
    values = read_json(body)
    for name in _REFUSED:
        if values.pop(name, None):
            raise unsupported(name, "is not supported: a prompt is token ids of this model alone")
    ignored = [name for name in _IGNORED if values.pop(name, None)]
    sampling = values.pop("sampling_params", None)
    if not isinstance(sampling, dict):
        raise invalid("sampling_params", "`sampling_params` must be an object")
    for name in {*(values.keys() - _OWN), *(sampling.keys() & {*_OWN, "echo"})}:
        hint = suggest(name, [*_OWN, "sampling_params"], known="parameters")
        raise ApiError(400, f"unknown parameter `{name}`; {hint}", code="unknown_parameter", param=name)
    values |= {name: value for name, value in sampling.items() if value is not None}
    values["model"] = values.get("model") or head.model
    values["request_id"] = f"generate-tokens-{values.get('request_id') or head.unique}"
    fields = read_fields(GenerateFields, values, ignored, ignoring=_IGNORED_SAMPLING)
    if fields.is_without_reply:
        raise invalid("max_tokens", "`max_tokens` must be at least 1")
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateWriter(ReplyWriter):
    """Writes the answer to one request."""

    fields: GenerateFields

    def whole(self, prompts: Sequence[Prompt], answers: Sequence[tuple[Prompt, Answer]]) -> dict[str, Any]:
        told = [answer for _, answer in answers]
        choices = [self._choice(number, each, each.content, each) for number, each in enumerate(told)]
        body = {"created": self.head.created, "model": self.fields.model}
        return self._head(prompts[0]) | body | {"choices": choices, "usage": usage_of(prompts, told)}

    def first(self, index: int, prompt: Prompt) -> str:
        if index or not self.fields.return_token_ids:
            return ""
        return self._event(self._choice(index, None), prompt)

    def piece(self, index: int, piece: Piece) -> str:
        return self._event(self._choice(index, piece, piece.text))

    def last(self, index: int, answer: Answer) -> str:
        return self._event(self._choice(index, None, answer.rest, answer))

    def end(self, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> str:
        usage = {**self._head(), "choices": [], "usage": usage_of(prompts, answers)}
        return (server_sent(usage) if self.fields.includes_usage else "") + DONE

    def failed(self, error: ApiError) -> str:
        return server_sent(error.body()) + DONE

    def _head(self, prompt: Prompt | None = None) -> dict[str, Any]:
        head: dict[str, Any] = {"request_id": self.fields.request_id, "output_mode": self.fields.output_mode}
        if prompt is not None and self.fields.return_token_ids:
            head["prompt_token_ids"] = list(prompt.ids)
        return head

    def _event(self, choice: Mapping[str, Any], prompt: Prompt | None = None) -> str:
        return server_sent({**self._head(prompt), "choices": [choice], "usage": None})

    def _choice(
        self, index: int, sampled: Piece | Answer | None, text: str = "", ended: Answer | None = None
    ) -> dict[str, Any]:
        """`sampled`: whose tokens are told; `ended`: the complete reply, at its end."""
        choice: dict[str, Any] = {"index": index, "finish_reason": None, "logprobs": None}
        choice["token_ids"] = [] if sampled is None else list(sampled.token_ids)
        if self.fields.wants_logprobs:
            choice["logprobs"] = {"content": [] if sampled is None else self._logprobs(sampled)}
        if self.fields.output_mode == "text":
            choice["text"] = text
        return choice if ended is None else choice | self._end(ended)

    def _logprobs(self, sampled: Piece | Answer) -> list[dict[str, Any]]:
        content = []
        for number, own in enumerate(zip(sampled.token_ids, sampled.logprobs, strict=True)):
            likeliest = [own] + (_but(own[0], sampled.top[number]) if sampled.top else [])
            top = [self._token(*pair) for pair in likeliest[: max(self.fields.num_top, 1)]]
            content.append({**self._token(*own), "top_logprobs": top})
        return content

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        value = _LEAST if math.isnan(logprob) else max(logprob, _LEAST)
        if self.fields.output_mode == "text":
            return token_json(self.head.token_text(token), value)
        return {"token_id": token, "logprob": value}

    def _end(self, answer: Answer) -> dict[str, Any]:
        last = answer.token_ids[-1] if answer.token_ids and answer.finish_reason == "stop" else None
        stop_token = last if last in (self.fields.stop_token_ids or ()) else None
        spans = [
            {"version": str(span.version), "start": span.start, "end": span.end}
            for span in answer.version_spans
        ]
        reason = {"finish_reason": answer.finish_reason, "stop_reason": answer.stop or stop_token}
        return reason | {"weight_versions": spans}


def _but(token: int, top: TopTokens) -> list[tuple[int, float]]:
    pairs = zip(top.token_ids[0].tolist(), top.logprobs[0].tolist(), strict=True)
    return [(other, logprob) for other, logprob in pairs if other != token and math.isfinite(logprob)]


GENERATE = Protocol(
    path="/inference/v1/generate",
    read=lambda body, head: GenerateWriter(fields=read_generate(body, head), head=head),
)
