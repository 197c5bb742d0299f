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

from pydantic import BaseModel, ConfigDict, Field

from envsdk.engines.endpoint.answering import Answer, Piece
from envsdk.engines.endpoint.bodies import DONE, token_json, usage_of
from envsdk.engines.endpoint.errors import ApiError, invalid, unsupported
from envsdk.engines.endpoint.messages import FIRST
from envsdk.engines.endpoint.parsing import read_json, validate
from envsdk.engines.endpoint.protocol import Protocol, ReplyHead, ReplyWriter, server_sent
from envsdk.engines.endpoint.record import Prompt
from envsdk.engines.endpoint.wire import CompletionFields, StreamOptions, read_fields
from envsdk.engines.engine import TopTokens

_LEAST = -9999.0
"""What vLLM gives for a log-probability that is no number, or less than this."""
_REFUSED = ("content_parts", "ec_transfer_params", "features", "kv_transfer_params")
_WITHOUT_EFFECT = frozenset(
    {"detokenize", "flat_logprobs", "output_kind", "routed_experts_prompt_start", "skip_clone",
     "skip_reading_prefix_cache", "stream_interval"}
)  # fmt: skip
"""Sampling parameters that never change a reply here."""
_IGNORED = ("cache_salt", "priority", "reasoning_ended", "reasoning_parser_kwargs", "token_offsets")
_OF_THE_REQUEST = frozenset({"echo", "model", "output_mode", "prompt", "request_id", "stream"})
"""Fields of a completion that are none of `sampling_params`."""


class GenerateBody(BaseModel):
    """`POST /inference/v1/generate`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token_ids: Annotated[list[int], Field(min_length=1), FIRST]
    sampling_params: dict[str, Any]
    model: str | None = None
    """The served one when absent."""
    request_id: str | None = None
    output_mode: Literal["tokens", "text"] = "tokens"
    """`text` adds the reply's text, and texts of the tokens to `logprobs`."""
    return_token_ids: bool | None = None
    """Whether the prompt's token ids come back."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Any = None
    priority: Any = None
    reasoning_ended: Any = None
    reasoning_parser_kwargs: Any = None
    token_offsets: Any = None


class GenerateFields(CompletionFields):
    """The completion that a request means."""

    default_max_tokens = None
    prompt_field = "token_ids"

    request_id: str
    output_mode: str

    @property
    def is_cut_to_room(self) -> bool:
        return True


def read_generate(body: bytes, head: ReplyHead) -> GenerateFields:
    """Raises ApiError, for a sampling parameter by its own name."""
    values = read_json(body)
    for name in _REFUSED:
        if values.pop(name, None):
            raise unsupported(name, "is not supported: a prompt is token ids of this model alone")
    asked = validate(GenerateBody, values)
    sampling = {name: value for name, value in asked.sampling_params.items() if value is not None}
    for name in sampling.keys() & _OF_THE_REQUEST:
        raise unsupported(f"sampling_params.{name}", "is no sampling parameter")
    ignored = [name for name in _IGNORED if getattr(asked, name)]
    values = {
        **sampling,
        "prompt": asked.token_ids,
        "model": asked.model or head.model,
        "request_id": f"generate-tokens-{asked.request_id or head.unique}",
        "output_mode": asked.output_mode,
        "return_token_ids": asked.return_token_ids,
        "stream": asked.stream,
        "stream_options": asked.stream_options,
    }
    fields = read_fields(GenerateFields, values, ignored, ignoring=_WITHOUT_EFFECT)
    if fields.is_without_reply:
        raise invalid("max_tokens", "`max_tokens` must be at least 1")
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateWriter(ReplyWriter):
    """Writes the answer to one request."""

    fields: GenerateFields

    def whole(self, prompts: Sequence[Prompt], answers: Sequence[tuple[Prompt, Answer]]) -> dict[str, Any]:
        choices = []
        for index, (_, answer) in enumerate(answers):
            text = {"text": answer.content} if self._is_text else {}
            sampled = self._tokens(answer.token_ids, answer.logprobs, answer.top)
            choices.append({"index": index, **_end(self.fields, answer), **sampled, **text})
        absent = ("ec_transfer_params", "kv_transfer_params", "prompt_logprobs")
        return {
            **self._head(prompts[0]),
            **dict.fromkeys(absent),
            "created": self.head.created,
            "model": self.fields.model,
            "choices": choices,
            "usage": usage_of(prompts, [answer for _, answer in answers]),
        }

    def first(self, index: int, prompt: Prompt) -> str:
        if index or not self.fields.return_token_ids:
            return ""
        return self._event(index, (), (), (), prompt=prompt)

    def piece(self, index: int, piece: Piece) -> str:
        return self._event(index, piece.token_ids, piece.logprobs, piece.top, text=piece.text)

    def last(self, index: int, answer: Answer) -> str:
        return self._event(index, (), (), (), text=answer.rest, **_end(self.fields, answer))

    def end(self, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> str:
        usage = {**self._head(), "choices": [], "usage": usage_of(prompts, answers)}
        return (server_sent(usage) if self.fields.includes_usage else "") + DONE

    def failed(self, error: ApiError) -> str:
        return server_sent(error.body()) + DONE

    @property
    def _is_text(self) -> bool:
        return self.fields.output_mode == "text"

    def _head(self, prompt: Prompt | None = None) -> dict[str, Any]:
        head: dict[str, Any] = {"request_id": self.fields.request_id, "output_mode": self.fields.output_mode}
        if prompt is not None and self.fields.return_token_ids:
            head["prompt_token_ids"] = list(prompt.ids)
        return head

    def _event(
        self,
        index: int,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        top: Sequence[TopTokens],
        *,
        prompt: Prompt | None = None,
        text: str = "",
        **end: Any,
    ) -> str:
        choice = {"index": index, "finish_reason": None, **end, **self._tokens(token_ids, logprobs, top)}
        choice |= {"text": text} if self._is_text else {}
        return server_sent({**self._head(prompt), "choices": [choice], "usage": None})

    def _tokens(
        self, token_ids: Sequence[int], logprobs: Sequence[float], top: Sequence[TopTokens]
    ) -> dict[str, Any]:
        told: dict[str, Any] = {"token_ids": list(token_ids), "logprobs": None}
        if self.fields.wants_logprobs:
            content = []
            for number, sampled in enumerate(zip(token_ids, logprobs, strict=True)):
                pairs = [sampled] + ([] if not top else _pairs(top[number], but=sampled[0]))
                likeliest = [self._token(*pair) for pair in pairs[: max(self.fields.num_top, 1)]]
                content.append({**self._token(*sampled), "top_logprobs": likeliest})
            told["logprobs"] = {"content": content}
        return told

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        value = _LEAST if math.isnan(logprob) else max(logprob, _LEAST)
        if self._is_text:
            return token_json(self.head.token_text(token), value)
        return {"token_id": token, "logprob": value}


def _pairs(top: TopTokens, *, but: int) -> list[tuple[int, float]]:
    pairs = zip(top.token_ids[0].tolist(), top.logprobs[0].tolist(), strict=True)
    return [(token, logprob) for token, logprob in pairs if token != but and math.isfinite(logprob)]


def _end(fields: GenerateFields, answer: Answer) -> Mapping[str, Any]:
    last = answer.token_ids[-1] if answer.token_ids and answer.finish_reason == "stop" else None
    stop_token = last if last in (fields.stop_token_ids or ()) else None
    spans = answer.version_spans
    return {
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop or stop_token,
        "weight_versions": [
            {"version": str(span.version), "start": span.start, "end": span.end} for span in spans
        ],
    }


GENERATE = Protocol(
    path="/inference/v1/generate",
    read=lambda body, head: GenerateWriter(fields=read_generate(body, head), head=head),
)
