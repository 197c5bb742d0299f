"""Pure: what is asked of SGLang's server, and what its answers say.

The fields are those of `/generate`, `/server_info`, `/v1/loads` and `/update_weights_from_disk` in SGLang
0.5.20. A prompt goes as token ids and comes back as token ids; text is never read.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import EngineFailure, ErrorKind, PromptScores, TopTokens
from envsdk.engines.engine_support.failures import TRANSIENT_STATUSES, ReplyRefused, Unavailable, error_text
from envsdk.engines.refusals import bad_structure
from envsdk.engines.sampling import SamplingParams
from envsdk.engines.settings import ROUTED_EXPERTS
from envsdk.engines.sglang.settings import SGLangSettings
from envsdk.engines.tagged_json import change_fields, sglang_structure

RELEASE = "0.5.20"
"""Release of SGLang, whose source this follows."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one message adds to a reply."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """As many as `token_ids`; NaN when none were asked for."""
    finish_reason: FinishReason | None
    num_prefilled: int = 0
    """Prompt tokens that were computed rather than found in the cache; sent with the finish reason."""
    told: str = ""
    """The server's words on an abort."""
    sets: Sequence[Sequence[int]] = ()
    """Tokens that could be drawn at the place of each of `token_ids`, where the server tells them."""
    prompt_scores: PromptScores | None = None
    """Where they are asked for: with the finish reason."""
    experts: str | None = None
    """As `prompt_scores`; numbers of 32 bits in base64."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What decides whether a server will do."""

    version: str
    deterministic: bool
    reuses_prefixes: bool
    keeps_structures: bool
    takes_adapters: bool
    tells_experts: bool


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a server does not tell of its model."""

    end_tokens: frozenset[int]
    expert_shape: tuple[int, int] | None
    """Layers, and chosen experts of each; None where the model is no mixture."""


def why_unsupported(settings: SGLangSettings, sampling: SamplingParams) -> EngineFailure | None:
    """Why SGLang cannot answer with these settings; None when it can."""
    if settings.logprobs == "sampling" and sampling.is_truncated and sampling.top_k == 0:
        return EngineFailure(
            f"SGLang gives log-probabilities after top_p={sampling.top_p:g} and min_p={sampling.min_p:g} "
            "only together with a top_k; set top_k as well, or top_p to 1 and min_p to 0, or "
            "`logprobs: untruncated`"
        )
    return None


def why_unended(sampling: SamplingParams, end_tokens: frozenset[int]) -> EngineFailure | None:
    """Why a text with a structure could not be ended; None when it can, or `end_tokens` are not known."""
    if sampling.structure is None or not end_tokens or end_tokens & set(sampling.stop_token_ids):
        return None
    return bad_structure(
        f"SGLang ends the text with one of the model's end tokens {sorted(end_tokens)}, and "
        f"none of them is among the request's stop tokens {list(sampling.stop_token_ids)}"
    )


def model_facts(folder: Path | None) -> ModelFacts:
    """What the files of a model's folder say; nothing of those that are not there."""
    found: list[dict[str, Any]] = []
    for file in ("config.json", "generation_config.json"):
        try:
            found.append(json.loads((folder / file).read_text(encoding="utf-8")) if folder else {})
        except (OSError, ValueError):
            found.append({})
    named = [config.get("eos_token_id") for config in found]
    ends = (each if isinstance(each, list) else [each] for each in named if each is not None)
    text = found[0].get("text_config") or found[0]
    num_chosen = text.get("num_experts_per_tok") or text.get("top_k_experts")
    shape = (text["num_hidden_layers"], num_chosen) if num_chosen else None
    return ModelFacts(frozenset(itertools.chain.from_iterable(ends)), shape)


def generate_body(
    settings: SGLangSettings,
    *,
    rid: str,
    input_ids: Sequence[int],
    sampling: SamplingParams,
    max_new_tokens: int,
    lora_name: str | None = None,
    experts_from: int | None = None,
) -> dict[str, Any]:
    """One request to `/generate`. Penalties are named because a server may have other defaults."""
    sampling_params: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        **sampling.shape(),
        "top_k": sampling.top_k or -1,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": list(sampling.stop_token_ids),
        "stream_interval": settings.stream_interval,
    }
    if settings.deterministic and sampling.seed is not None:
        sampling_params["sampling_seed"] = sampling.seed % 2**63
    if sampling.changes is not None:
        sampling_params |= change_fields(sampling.changes)
    if sampling.structure is not None:
        sampling_params |= sglang_structure(sampling.structure)
    return {
        **({"lora_path": lora_name} if lora_name is not None else {}),
        "rid": rid,
        "input_ids": list(input_ids),
        "sampling_params": sampling_params,
        "stream": True,
        "return_logprob": settings.logprobs != "none",
        **(
            {}
            if experts_from is None
            else {"return_routed_experts": True, "routed_experts_start_len": experts_from}
        ),
        "return_sampling_mask": settings.logprobs == "sampling" and sampling.is_truncated,
        **(
            {"logprob_start_len": 0, "top_logprobs_num": sampling.top_logprobs}
            if sampling.prompt_logprobs
            else {}
        ),
    }


class _FinishReason(BaseModel):
    type: str
    message: str = ""
    status_code: int | None = None
    matched: Any = None


class _Span(BaseModel):
    version: str


class _MetaInfo(BaseModel):
    completion_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: _FinishReason | None = None
    weight_version: str | None = None
    weight_versions: list[_Span] = []
    output_token_logprobs: list[tuple[float | None, int, Any]] = []
    output_token_sampling_logprobs: list[float | None] = []
    output_token_sampling_mask: list[Any] = []
    input_token_logprobs: list[tuple[float | None, int, Any]] = []
    input_top_logprobs: list[list[tuple[float, int, Any]] | None] = []
    routed_experts: str | None = None


class _Message(BaseModel):
    output_ids: list[int] | None = None
    meta_info: _MetaInfo | None = None
    error: Any = None


_FINISH_REASONS = {str(reason): reason for reason in FinishReason if reason is not FinishReason.ERROR}


def read_message(data: str, *, body: Mapping[str, Any], num_known: int, stamp: str) -> Delta:
    """The `data` of one server-sent event, an answer to `body` of which `num_known` tokens came before.

    Messages hold all tokens so far or those since the last message, as the server was started. `stamp` is
    the weights' version that all of the answer must have. Raises Unavailable when the event tells of a
    failure that may pass, ReplyRefused for any other and when it lacks what was asked for.
    """
    try:
        message = _Message.model_validate_json(data)
    except ValidationError as error:
        raise ReplyRefused(f"the server sent no message of `/generate` but {data[:200]!r}") from error
    if message.error is not None:
        raise _failure(error_text(message.error), _code(message.error))
    meta, output_ids = message.meta_info, message.output_ids
    if meta is None or output_ids is None:
        raise ReplyRefused(f"the server sent a message without output_ids or meta_info: {data[:200]!r}")
    finish = meta.finish_reason
    if finish is not None and finish.type == "abort" and finish.status_code is not None:
        raise _failure(error_text(finish.message), finish.status_code)
    num_new = meta.completion_tokens - num_known
    token_ids = _newest(output_ids, num_new, meta.completion_tokens)
    if token_ids is None:
        raise ReplyRefused(
            f"the server tells of {meta.completion_tokens} tokens, of which {num_known} came before, and "
            f"sent {len(output_ids)}"
        )
    logprobs = _logprobs(meta, body, token_ids, num_new)
    sets = _newest(meta.output_token_sampling_mask, num_new, meta.completion_tokens) or ()
    if finish is None:
        return Delta(token_ids, logprobs, None, sets=sets)
    reason = _FINISH_REASONS.get(finish.type)
    if reason is None:
        raise ReplyRefused(f"the server ended the reply with finish_reason `{finish.type}`")
    _check_stamps(meta, stamp)
    if reason is FinishReason.STOP and (not token_ids or finish.matched != token_ids[-1]):
        raise ReplyRefused(f"the server stopped at {finish.matched!r}, which is not the reply's last token")
    num_prefilled = max(0, meta.prompt_tokens - meta.cached_tokens)
    scores = _prompt_scores(meta, body) if "logprob_start_len" in body else None
    told = finish.message, sets, scores, meta.routed_experts
    return Delta(token_ids, logprobs, reason, num_prefilled, *told)


def _prompt_scores(meta: _MetaInfo, body: Mapping[str, Any]) -> PromptScores:
    own, num_top = meta.input_token_logprobs[1:], body["top_logprobs_num"]
    tops = [each or [] for each in meta.input_top_logprobs[1:]]
    if [token for _, token, _ in own] != body["input_ids"][1:] or (num_top and len(tops) != len(own)):
        raise ReplyRefused("the server's input_token_logprobs are not those of the prompt")
    logprobs = np.array([logprob for logprob, _, _ in own], np.float32)
    if not num_top:
        return PromptScores(logprobs=logprobs)
    pairs = np.array([[each[:2] for each in top] for top in tops], np.float64).reshape(len(own), num_top, 2)
    top = TopTokens(token_ids=pairs[..., 1].astype(np.int32), logprobs=pairs[..., 0].astype(np.float32))
    return PromptScores(logprobs=logprobs, top=top)


_T = TypeVar("_T")


def _newest(values: Sequence[_T], num_new: int, num_all: int) -> Sequence[_T] | None:
    """The last `num_new` of the first `num_all`; None when they are not all there.

    After an abort a message of few tokens may repeat one that came before.
    """
    if num_new < 0 or len(values) < num_new:
        return None
    if len(values) >= num_all:
        return values[num_all - num_new : num_all]
    return values[len(values) - num_new :]


def _logprobs(
    meta: _MetaInfo, body: Mapping[str, Any], token_ids: Sequence[int], num_new: int
) -> Sequence[float]:
    if not body["return_logprob"]:
        return [math.nan] * num_new
    told = _newest(meta.output_token_logprobs, num_new, meta.completion_tokens)
    if told is None or [token for _, token, _ in told] != list(token_ids):
        raise ReplyRefused("the server's output_token_logprobs are not those of its output_ids")
    values: Sequence[float | None] | None = [logprob for logprob, _, _ in told]
    if body["return_sampling_mask"]:
        values = _newest(meta.output_token_sampling_logprobs, num_new, meta.completion_tokens)
        if values is None:
            raise ReplyRefused(
                f"the server gave no output_token_sampling_logprobs, as SGLang {RELEASE} does; set "
                "`logprobs: untruncated`, or top_p to 1, top_k and min_p to 0"
            )
    known = [value for value in values or () if value is not None and math.isfinite(value)]
    if len(known) != num_new:
        raise ReplyRefused(f"the server gave {len(known)} log-probabilities for {num_new} tokens")
    return [min(value, 0.0) for value in known]  # rounding may leave a certain token above 0


def _check_stamps(meta: _MetaInfo, stamp: str) -> None:
    stamps = {meta.weight_version, *(span.version for span in meta.weight_versions)}
    if stamps != {stamp}:
        told = ", ".join(sorted(str(each) for each in stamps))
        raise ReplyRefused(
            f"the reply is of weights `{told}`, not of `{stamp}`: somebody else updates this server, or "
            "it was restarted"
        )


def _failure(message: str, code: int | None) -> Exception:
    if "grammar" in message.lower():  # no other failure speaks of one
        return ReplyRefused(message, kind=ErrorKind.STRUCTURED_OUTPUT)
    told = f"the server broke the reply off: {message}"
    return Unavailable(told) if code is None or code in TRANSIENT_STATUSES else ReplyRefused(told)


def _code(error: Any) -> int | None:
    code = error.get("code") if isinstance(error, Mapping) else None
    return code if isinstance(code, int) else None


def read_facts(server_info: Mapping[str, Any]) -> ServerFacts:
    """The answer of `/server_info`."""
    return ServerFacts(
        version=str(server_info.get("version", "of unknown version")),
        deterministic=bool(server_info.get("enable_deterministic_inference")),
        reuses_prefixes=not server_info.get("disable_radix_cache"),
        keeps_structures=not server_info.get("skip_tokenizer_init")
        and server_info.get("grammar_backend") != "none",
        takes_adapters=bool(server_info.get("enable_lora")),
        tells_experts=bool(server_info.get(ROUTED_EXPERTS)),
    )


def read_kv_usage(answer: Mapping[str, Any]) -> float:
    """Share of the KV cache in use, of the fullest rank, from the answer of `/v1/loads`; 0 when untold."""
    loads = answer.get("loads")
    shares = [load.get("token_usage") for load in loads or () if isinstance(load, Mapping)]
    return max((float(share) for share in shares if isinstance(share, (int, float))), default=0.0)
