"""How a reply that was cut short continues from its tokens. Pure.

    request -> sampled so far -> rest_of(request, so_far) -> rest -> joined_result(so_far, rest)

Every token keeps the log-probability and the version it was sampled with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.engine import GenerationRequest, GenerationResult, TokenDelta, TopTokens


def rest_of(request: GenerationRequest, so_far: TokenDelta | None) -> GenerationRequest:
    """The rest of the request after the tokens it already has.

    Its seed differs, or the rest would repeat the first draws.
    """
    if so_far is None:
        return request
    count = len(so_far.token_ids)
    sampling = replace(
        request.sampling,
        max_new_tokens=request.sampling.max_new_tokens - count,
        seed=None if request.sampling.seed is None else request.sampling.seed + count,
    )
    return replace(
        request, prompt_ids=np.concatenate([request.prompt_ids, so_far.token_ids]), sampling=sampling
    )


def ended_by_its_tokens(request: GenerationRequest, so_far: TokenDelta) -> FinishReason | None:
    """Why there is nothing left to sample; None when there is."""
    token_ids = so_far.token_ids
    if int(token_ids[-1]) in request.sampling.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(token_ids) >= request.sampling.max_new_tokens else None


def joined_result(so_far: TokenDelta | None, rest: GenerationResult) -> GenerationResult:
    """The result of the request as it was asked for."""
    if so_far is None:
        return rest
    tokens = joined([so_far, *tokens_of(rest)])
    assert tokens is not None
    return replace(
        rest,
        token_ids=tokens.token_ids,
        logprobs=tokens.logprobs,
        version_spans=tokens.version_spans,
        top=tokens.top,
        support=tokens.support,
    )


def tokens_of(result: GenerationResult, start: int = 0) -> list[TokenDelta]:
    """A result's tokens from the `start`-th on, as one delta or, when there are none, as no delta."""
    count = len(result.token_ids)
    if start >= count:
        return []
    return [
        TokenDelta(
            request_id=result.request_id,
            token_ids=result.token_ids[start:],
            logprobs=result.logprobs[start:],
            version_spans=spans_within(result.version_spans, start, count),
            top=None if result.top is None else rows_of(result.top, start, count),
            support=None if result.support is None else result.support.take(slice(start, count)),
        )
    ]


def rows_of(top: TopTokens, start: int, end: int) -> TopTokens:
    """Positions `[start, end)`."""
    return TopTokens(token_ids=top.token_ids[start:end], logprobs=top.logprobs[start:end])


def joined(deltas: Sequence[TokenDelta]) -> TokenDelta | None:
    """Deltas end to end; None when there are none."""
    if len(deltas) < 2:
        return deltas[0] if deltas else None
    return TokenDelta(
        request_id=deltas[0].request_id,
        token_ids=np.concatenate([delta.token_ids for delta in deltas]),
        logprobs=np.concatenate([delta.logprobs for delta in deltas]),
        version_spans=_end_to_end(deltas),
        top=_joined_top([delta.top for delta in deltas]),
        support=Support.joined(
            [delta.support for delta in deltas], [len(delta.token_ids) for delta in deltas]
        ),
    )


def _joined_top(tops: Sequence[TopTokens | None]) -> TopTokens | None:
    told = [top for top in tops if top is not None]
    if len(told) < len(tops):
        return None
    return TopTokens(
        token_ids=np.concatenate([top.token_ids for top in told]),
        logprobs=np.concatenate([top.logprobs for top in told]),
    )


def spans_within(spans: Iterable[VersionSpan], start: int, end: int) -> tuple[VersionSpan, ...]:
    """The spans of tokens `[start, end)`, counted from `start`."""
    return tuple(
        VersionSpan(
            version=span.version, start=max(span.start, start) - start, end=min(span.end, end) - start
        )
        for span in spans
        if span.start < end and span.end > start
    )


def _end_to_end(deltas: Iterable[TokenDelta]) -> tuple[VersionSpan, ...]:
    spans: list[VersionSpan] = []
    for delta in deltas:
        offset = spans[-1].end if spans else 0
        for span in delta.version_spans:
            start = span.start + offset
            if spans and spans[-1].version == span.version:
                start = spans.pop().start
            spans.append(VersionSpan(version=span.version, start=start, end=span.end + offset))
    return tuple(spans)
