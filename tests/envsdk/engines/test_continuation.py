from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.continuation import (
    ended_by_its_tokens,
    joined,
    joined_result,
    rest_of,
    rows_of,
    spans_within,
    tokens_of,
)
from envsdk.engines.engine import GenerationRequest, GenerationResult, TokenDelta, TopTokens
from envsdk.engines.sampling import SamplingParams


def versions_of(spans: tuple[VersionSpan, ...]) -> list[int]:
    """One per token; the spans must follow each other without gap."""
    versions: list[int] = []
    for span in spans:
        assert span.start == len(versions) < span.end
        versions += [span.version] * (span.end - span.start)
    return versions


@st.composite
def results(draw: st.DrawFn, max_tokens: int = 20) -> GenerationResult:
    count = draw(st.integers(0, max_tokens))
    cuts = sorted({0, count, *draw(st.lists(st.integers(0, count), max_size=3))})
    return GenerationResult(
        request_id="r",
        token_ids=np.array(draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)), np.int32),
        logprobs=-np.arange(count, dtype=np.float32),
        version_spans=tuple(
            VersionSpan(version=draw(st.integers(0, 2)) + 3 * place, start=start, end=end)
            for place, (start, end) in enumerate(pairwise(cuts))
        ),
        finish_reason=draw(st.sampled_from(FinishReason)),
        top=TopTokens(
            token_ids=np.arange(2 * count, dtype=np.int32).reshape(count, 2),
            logprobs=np.full((count, 2), -1.0, np.float32),
        ),
    )


def top_ids(told: TokenDelta | GenerationResult | None) -> list[list[int]]:
    return told.top.token_ids.tolist() if told is not None and told.top is not None else []


def deltas_of(result: GenerationResult, cuts: list[int]) -> list[TokenDelta]:
    count = len(result.token_ids)
    places = sorted({0, count, *(cut for cut in cuts if cut < count)})
    return [
        TokenDelta(
            request_id=result.request_id,
            token_ids=result.token_ids[start:end],
            logprobs=result.logprobs[start:end],
            version_spans=spans_within(result.version_spans, start, end),
            top=rows_of(result.top, start, end) if result.top is not None else None,
        )
        for start, end in pairwise(places)
    ]


@given(result=results(), cuts=st.lists(st.integers(0, 20), max_size=5))
def test_a_reply_cut_into_deltas_and_joined_is_what_it_was(result: GenerationResult, cuts: list[int]) -> None:
    deltas = deltas_of(result, cuts)
    for delta in deltas:
        assert len(versions_of(delta.version_spans)) == len(delta.token_ids) == len(delta.logprobs) > 0
    tokens = joined(deltas)
    if tokens is None:
        assert len(result.token_ids) == 0
        return
    np.testing.assert_array_equal(tokens.token_ids, result.token_ids)
    np.testing.assert_array_equal(tokens.logprobs, result.logprobs)
    assert versions_of(tokens.version_spans) == versions_of(result.version_spans)
    assert top_ids(tokens) == top_ids(result)


@given(first=results(), rest=results(), start=st.integers(0, 20))
def test_a_continued_reply_is_what_was_sampled_before_and_after_each_under_its_versions(
    first: GenerationResult, rest: GenerationResult, start: int
) -> None:
    result = joined_result(joined(tokens_of(first)), rest)
    assert result.token_ids.tolist() == [*first.token_ids.tolist(), *rest.token_ids.tolist()]
    assert result.logprobs.tolist() == [*first.logprobs.tolist(), *rest.logprobs.tolist()]
    versions = versions_of(first.version_spans) + versions_of(rest.version_spans)
    assert versions_of(result.version_spans) == versions
    assert result.finish_reason is rest.finish_reason
    assert top_ids(result) == top_ids(first) + top_ids(rest)
    tail = joined(tokens_of(result, start))
    assert (tail.token_ids.tolist() if tail else []) == result.token_ids.tolist()[start:]
    assert (versions_of(tail.version_spans) if tail else []) == versions[start:]
    assert top_ids(tail) == top_ids(result)[start:]


@given(so_far=results(), seed=st.none() | st.integers(0, 1000), max_new_tokens=st.integers(1, 30))
def test_what_is_left_of_a_request_goes_on_after_its_tokens(
    so_far: GenerationResult, seed: int | None, max_new_tokens: int
) -> None:
    sampling = SamplingParams(max_new_tokens=max_new_tokens, seed=seed, stop_token_ids=(0,), temperature=0.5)
    request = GenerationRequest(
        request_id="r", prompt_ids=np.array([7, 8], np.int32), sampling=sampling, session_id="s", priority=3
    )
    tokens = joined(tokens_of(so_far))
    if tokens is None:
        assert rest_of(request, None) is request
        return
    count = len(tokens.token_ids)
    ended = ended_by_its_tokens(request, tokens)
    if tokens.token_ids[-1] == 0:
        assert ended is FinishReason.STOP
    elif count >= max_new_tokens:
        assert ended is FinishReason.LENGTH
    else:
        assert ended is None
        rest = rest_of(request, tokens)
        assert rest.prompt_ids.tolist() == [7, 8, *tokens.token_ids.tolist()]
        assert rest.prompt_ids.dtype == np.int32
        assert rest.sampling.max_new_tokens == max_new_tokens - count > 0
        assert rest.sampling.seed == (None if seed is None else seed + count)
        assert (rest.request_id, rest.session_id, rest.priority) == ("r", "s", 3)
        assert (rest.sampling.temperature, rest.sampling.stop_token_ids) == (0.5, (0,))
