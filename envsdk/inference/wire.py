"""Requests and results as columns, for the way between processes.

Pickling a thousand small arrays one by one costs more than sampling them with a small model does;
a handful of flat arrays and lists costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.inference.engine import (
    EngineHealth,
    ErrorKind,
    GenerationRequest,
    GenerationResult,
    PromptScores,
    TokenDelta,
    TopTokens,
)
from envsdk.inference.sampling import SamplingParams
from envsdk.trajectory import FinishReason, Rows, VersionSpan

_SAMPLING, _SPAN = Rows(SamplingParams), Rows(VersionSpan)
_SEED = _SAMPLING.names.index("seed")


@dataclass(frozen=True, slots=True)
class PackedRequests:
    """`n` requests; prompts lie end to end in `prompt_ids`."""

    request_ids: list[str]
    session_ids: list[str]
    prompt_groups: list[int | None]
    priorities: list[int]
    watched: list[bool]
    lasting: list[bool]
    seeds: list[int | None]
    sampling: list[int]
    """Of each, the position of its parameters in `all_sampling`, which lists different ones once."""
    all_sampling: list[tuple[Any, ...]]
    """The fields of `SamplingParams` in their order; the seed is that of some request."""
    num_prompt_tokens: list[int]
    prompt_ids: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PackedResults:
    """`n` results and deltas; tokens and log-probabilities lie end to end. `health` rides along."""

    request_ids: list[str]
    finish_reasons: list[str]
    """Empty for a delta."""
    errors: list[str]
    error_kinds: list[str]
    spans: list[tuple[tuple[int, int, int], ...]]
    num_tokens: list[int]
    extras: dict[int, tuple[TopTokens | None, PromptScores | None]]
    """By position among the results, of the few that have some."""
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    health: EngineHealth | None


def _joined(arrays: list[NDArray[np.generic]], dtype: type[np.generic]) -> NDArray[np.generic]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)


def pack_requests(requests: Sequence[GenerationRequest]) -> PackedRequests:
    seeds: list[int | None] = []
    sampling: list[int] = []
    all_sampling: list[tuple[Any, ...]] = []
    known: dict[tuple[Any, ...], int] = {}
    for request in requests:
        row = _SAMPLING.row(request.sampling)
        shape = row[:_SEED] + row[_SEED + 1 :]
        number = known.setdefault(shape, len(known))
        if number == len(all_sampling):
            all_sampling.append(row)
        seeds.append(row[_SEED])
        sampling.append(number)
    return PackedRequests(
        request_ids=[request.request_id for request in requests],
        session_ids=[request.session_id for request in requests],
        prompt_groups=[request.prompt_group for request in requests],
        priorities=[request.priority for request in requests],
        watched=[request.stream for request in requests],
        lasting=[request.survives_weight_update for request in requests],
        seeds=seeds,
        sampling=sampling,
        all_sampling=all_sampling,
        num_prompt_tokens=[len(request.prompt_ids) for request in requests],
        prompt_ids=_joined([request.prompt_ids for request in requests], np.int32),  # type: ignore[arg-type]
    )


def unpack_requests(packed: PackedRequests) -> list[GenerationRequest]:
    all_sampling = [_SAMPLING.make(row) for row in packed.all_sampling]
    requests: list[GenerationRequest] = []
    start = 0
    for request_id, session_id, prompt_group, priority, stream, is_lasting, seed, sampling, count in zip(
        packed.request_ids,
        packed.session_ids,
        packed.prompt_groups,
        packed.priorities,
        packed.watched,
        packed.lasting,
        packed.seeds,
        packed.sampling,
        packed.num_prompt_tokens,
        strict=True,
    ):
        requests.append(
            GenerationRequest(
                request_id=request_id,
                prompt_ids=packed.prompt_ids[start : start + count],
                sampling=all_sampling[sampling].with_seed(seed),
                session_id=session_id,
                prompt_group=prompt_group,
                priority=priority,
                stream=stream,
                survives_weight_update=is_lasting,
            )
        )
        start += count
    return requests


def pack_results(
    results: Sequence[GenerationResult | TokenDelta], health: EngineHealth | None
) -> PackedResults:
    """Their order stays."""
    return PackedResults(
        request_ids=[result.request_id for result in results],
        finish_reasons=[
            "" if isinstance(result, TokenDelta) else result.finish_reason.value for result in results
        ],
        errors=["" if isinstance(result, TokenDelta) else result.error for result in results],
        error_kinds=["" if isinstance(result, TokenDelta) else result.error_kind.value for result in results],
        spans=[tuple(map(_SPAN.row, result.version_spans)) for result in results],
        num_tokens=[len(result.token_ids) for result in results],
        extras={
            number: (result.top, None if isinstance(result, TokenDelta) else result.prompt_scores)
            for number, result in enumerate(results)
            if result.top is not None
            or (not isinstance(result, TokenDelta) and result.prompt_scores is not None)
        },
        token_ids=_joined([result.token_ids for result in results], np.int32),  # type: ignore[arg-type]
        logprobs=_joined([result.logprobs for result in results], np.float32),  # type: ignore[arg-type]
        health=health,
    )


def unpack_results(packed: PackedResults) -> list[GenerationResult | TokenDelta]:
    results: list[GenerationResult | TokenDelta] = []
    start = 0
    for number, (request_id, finish_reason, error, error_kind, packed_spans, count) in enumerate(
        zip(
            packed.request_ids,
            packed.finish_reasons,
            packed.errors,
            packed.error_kinds,
            packed.spans,
            packed.num_tokens,
            strict=True,
        )
    ):
        top, prompt_scores = packed.extras.get(number, (None, None))
        token_ids = packed.token_ids[start : start + count]
        logprobs = packed.logprobs[start : start + count]
        spans = tuple(VersionSpan(version=v, start=a, end=b) for v, a, b in packed_spans)
        if finish_reason:
            results.append(
                GenerationResult(
                    request_id=request_id,
                    token_ids=token_ids,
                    logprobs=logprobs,
                    version_spans=spans,
                    finish_reason=FinishReason(finish_reason),
                    error=error,
                    error_kind=ErrorKind(error_kind),
                    top=top,
                    prompt_scores=prompt_scores,
                )
            )
        else:
            results.append(
                TokenDelta(
                    request_id=request_id,
                    token_ids=token_ids,
                    logprobs=logprobs,
                    version_spans=spans,
                    top=top,
                )
            )
        start += count
    return results
