"""Requests and results as plain rows and flat arrays, for the way between processes.

Pickling a thousand small arrays one by one costs more than sampling them with a small model does;
rows of plain values and a few flat arrays cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import FinishReason, Rows, VersionSpan
from envsdk.engines.engine import (
    EngineHealth,
    ErrorKind,
    GenerationRequest,
    GenerationResult,
    PromptScores,
    TokenDelta,
    TopTokens,
)
from envsdk.engines.sampling import SamplingParams

_REQUEST, _SAMPLING, _SPAN = Rows(GenerationRequest), Rows(SamplingParams), Rows(VersionSpan)
_PROMPT, _PARAMETERS = map(_REQUEST.names.index, ("prompt_ids", "sampling"))
_SEED = _SAMPLING.names.index("seed")


@dataclass(frozen=True, slots=True)
class PackedRequests:
    """`n` requests; prompts lie end to end in `prompt_ids`."""

    rows: list[tuple[Any, ...]]
    """One per request: its fields in their order, with the number of prompt tokens in place of the prompt,
    and the position in `all_sampling` and the seed in place of the parameters."""
    all_sampling: list[tuple[Any, ...]]
    """Different parameters once: the fields of `SamplingParams` in their order; the seed is that of some
    request."""
    prompt_ids: NDArray[np.int32]


Extras = tuple[TopTokens | None, PromptScores | None, NDArray[np.int16] | None, Support | None]


@dataclass(frozen=True, slots=True)
class PackedResults:
    """`n` results and deltas; tokens and log-probabilities lie end to end. `health` rides along."""

    rows: list[tuple[str, str, str, str, tuple[tuple[int, int, int], ...], int]]
    """One per result: request id, finish reason (empty for a delta), error, its kind, spans, tokens."""
    extras: dict[int, Extras]
    """Likeliest tokens, scores, experts and supports by position, for the few results that have some."""
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    health: EngineHealth | None


def _joined(arrays: list[NDArray[np.generic]], dtype: type[np.generic]) -> NDArray[np.generic]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)


def pack_requests(requests: Sequence[GenerationRequest]) -> PackedRequests:
    rows = []
    all_sampling: list[tuple[Any, ...]] = []
    known: dict[tuple[Any, ...], int] = {}
    for request in requests:
        sampling = _SAMPLING.row(request.sampling)
        number = known.setdefault(sampling[:_SEED] + sampling[_SEED + 1 :], len(known))
        if number == len(all_sampling):
            all_sampling.append(sampling)
        row = list(_REQUEST.row(request))
        row[_PROMPT], row[_PARAMETERS] = len(request.prompt_ids), (number, request.sampling.seed)
        rows.append(tuple(row))
    prompt_ids = _joined([request.prompt_ids for request in requests], np.int32)
    return PackedRequests(rows, all_sampling, prompt_ids)  # type: ignore[arg-type]


def unpack_requests(packed: PackedRequests) -> list[GenerationRequest]:
    all_sampling = [_SAMPLING.make(row) for row in packed.all_sampling]
    requests: list[GenerationRequest] = []
    start = 0
    for packed_row in packed.rows:
        row = list(packed_row)
        count, (number, seed) = row[_PROMPT], row[_PARAMETERS]
        row[_PROMPT] = packed.prompt_ids[start : start + count]
        row[_PARAMETERS] = all_sampling[number].with_seed(seed)
        requests.append(_REQUEST.make(row))
        start += count
    return requests


def pack_results(
    results: Sequence[GenerationResult | TokenDelta], health: EngineHealth | None
) -> PackedResults:
    """Their order stays."""
    rows = []
    extras: dict[int, Extras] = {}
    for number, result in enumerate(results):
        ending, scores, experts = ("", "", ""), None, None
        if isinstance(result, GenerationResult):
            ending = (result.finish_reason.value, result.error, result.error_kind.value)
            scores, experts = result.prompt_scores, result.experts
        spans = tuple(map(_SPAN.row, result.version_spans))
        rows.append((result.request_id, *ending, spans, len(result.token_ids)))
        extra = (result.top, scores, experts, result.support)
        if any(each is not None for each in extra):
            extras[number] = extra
    return PackedResults(
        rows,
        extras,
        token_ids=_joined([result.token_ids for result in results], np.int32),  # type: ignore[arg-type]
        logprobs=_joined([result.logprobs for result in results], np.float32),  # type: ignore[arg-type]
        health=health,
    )


def unpack_results(packed: PackedResults) -> list[GenerationResult | TokenDelta]:
    results: list[GenerationResult | TokenDelta] = []
    start = 0
    for number, (request_id, finish_reason, error, error_kind, packed_spans, count) in enumerate(packed.rows):
        top, prompt_scores, experts, support = packed.extras.get(number, (None, None, None, None))
        sampled: dict[str, Any] = {
            "request_id": request_id,
            "token_ids": packed.token_ids[start : start + count],
            "logprobs": packed.logprobs[start : start + count],
            "version_spans": tuple(VersionSpan(version=v, start=a, end=b) for v, a, b in packed_spans),
            "top": top,
            "support": support,
        }
        start += count
        if not finish_reason:
            results.append(TokenDelta(**sampled))
            continue
        results.append(
            GenerationResult(
                **sampled,
                finish_reason=FinishReason(finish_reason),
                error=error,
                error_kind=ErrorKind(error_kind),
                prompt_scores=prompt_scores,
                experts=experts,
            )
        )
    return results
