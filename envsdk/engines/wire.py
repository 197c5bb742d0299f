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

from envsdk.contracts.trajectory import Rows, VersionSpan
from envsdk.engines.engine import EngineHealth, GenerationRequest, GenerationResult, TokenDelta
from envsdk.engines.sampling import SamplingParams

_REQUEST, _SAMPLING, _SPAN = Rows(GenerationRequest), Rows(SamplingParams), Rows(VersionSpan)
_DELTA, _RESULT = Rows(TokenDelta), Rows(GenerationResult)
_PROMPT, _PARAMETERS = map(_REQUEST.names.index, ("prompt_ids", "sampling"))
_TOKENS, _LOGPROBS, _SPANS = map(_DELTA.names.index, ("token_ids", "logprobs", "version_spans"))
"""Places in the rows of both; a result has further fields behind those of a delta."""
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


@dataclass(frozen=True, slots=True)
class PackedResults:
    """`n` results and deltas; tokens and log-probabilities lie end to end. `health` rides along."""

    rows: list[tuple[Any, ...]]
    """One per result: its fields in their order, with the number of tokens in place of each of these arrays,
    and spans as tuples."""
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
    for result in results:
        row = list((_RESULT if isinstance(result, GenerationResult) else _DELTA).row(result))
        row[_TOKENS] = row[_LOGPROBS] = len(result.token_ids)
        row[_SPANS] = tuple(map(_SPAN.row, result.version_spans))
        rows.append(tuple(row))
    return PackedResults(
        rows,
        token_ids=_joined([result.token_ids for result in results], np.int32),  # type: ignore[arg-type]
        logprobs=_joined([result.logprobs for result in results], np.float32),  # type: ignore[arg-type]
        health=health,
    )


def unpack_results(packed: PackedResults) -> list[GenerationResult | TokenDelta]:
    results: list[GenerationResult | TokenDelta] = []
    start = 0
    for packed_row in packed.rows:
        row = list(packed_row)
        end = start + row[_TOKENS]
        row[_TOKENS], row[_LOGPROBS] = packed.token_ids[start:end], packed.logprobs[start:end]
        row[_SPANS] = tuple(map(_SPAN.make, row[_SPANS]))
        results.append((_DELTA if len(row) == len(_DELTA.names) else _RESULT).make(row))
        start = end
    return results
