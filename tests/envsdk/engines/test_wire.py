from __future__ import annotations

import pickle
from dataclasses import fields
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.engine import (
    EngineHealth,
    ErrorKind,
    GenerationRequest,
    GenerationResult,
    PromptScores,
    TokenDelta,
    TopTokens,
)
from envsdk.engines.sampling import LogitChanges, SamplingParams
from envsdk.engines.wire import pack_requests, pack_results, unpack_requests, unpack_results

ids = st.integers(0, 2**31 - 1)
sampling = st.builds(
    SamplingParams,
    max_new_tokens=st.integers(1, 4096),
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 100),
    stop_token_ids=st.lists(ids, max_size=3).map(tuple),
    seed=st.none() | ids,
    changes=st.none()
    | st.builds(LogitChanges, bias=st.just(((3, 1.5),)), frequency_penalty=st.floats(-2, 2)),
    top_logprobs=st.integers(0, 20),
    prompt_logprobs=st.booleans(),
)
requests = st.builds(
    GenerationRequest,
    request_id=st.text(),
    prompt_ids=st.lists(ids, max_size=20).map(lambda ids: np.array(ids, np.int32)),
    sampling=sampling,
    session_id=st.text(),
    prompt_group=st.none() | st.integers(0, 2**40),
    priority=st.integers(-5, 5),
    stream=st.booleans(),
    survives_weight_update=st.booleans(),
    experts_from=st.none() | st.integers(0, 100),
)


tops = st.builds(
    lambda count: TopTokens(
        token_ids=np.arange(2 * count, dtype=np.int32).reshape(count, 2),
        logprobs=np.full((count, 2), -np.inf, np.float32),
    ),
    st.integers(0, 5),
)
scores = st.builds(PromptScores, logprobs=st.just(np.array([-1.0], np.float32)), top=st.none() | tops)


@st.composite
def results(draw: st.DrawFn) -> GenerationResult:
    tokens = draw(st.lists(ids, max_size=20))
    cuts = sorted({0, len(tokens), *draw(st.lists(st.integers(0, len(tokens)), max_size=3))})
    spans = [VersionSpan(version=v, start=a, end=b) for v, (a, b) in enumerate(pairwise(cuts))]
    logprobs = draw(st.lists(st.floats(-50, 0, width=32), min_size=len(tokens), max_size=len(tokens)))
    return GenerationResult(
        request_id=draw(st.text()),
        token_ids=np.array(tokens, np.int32),
        logprobs=np.array(logprobs, np.float32),
        version_spans=tuple(spans),
        finish_reason=draw(st.sampled_from(FinishReason)),
        error=draw(st.text()),
        error_kind=draw(st.sampled_from(ErrorKind)),
        top=draw(st.none() | tops),
        prompt_scores=draw(st.none() | scores),
        experts=draw(st.none() | st.just(np.arange(12, dtype=np.int16).reshape(3, 2, 2))),
    )


@st.composite
def deltas(draw: st.DrawFn) -> TokenDelta:
    result = draw(results())
    return TokenDelta(
        request_id=result.request_id,
        token_ids=result.token_ids,
        logprobs=result.logprobs,
        version_spans=result.version_spans,
        top=result.top,
    )


def assert_same(one: object, other: object) -> None:
    assert type(one) is type(other)
    for field in fields(one):  # type: ignore[arg-type]
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
        elif isinstance(mine, TopTokens | PromptScores):
            assert_same(mine, theirs)
        else:
            assert mine == theirs
            assert type(mine) is type(theirs)


@given(sampling, st.lists(st.none() | ids, min_size=2, max_size=4))
def test_requests_that_differ_in_their_seed_alone_arrive_with_their_own(
    shared: SamplingParams, seeds: list[int | None]
) -> None:
    prompt = np.zeros(1, np.int32)
    sent = [
        GenerationRequest(request_id=str(n), prompt_ids=prompt, sampling=shared.with_seed(seed))
        for n, seed in enumerate(seeds)
    ]
    arrived = unpack_requests(pickle.loads(pickle.dumps(pack_requests(sent))))
    assert [each.sampling.seed for each in arrived] == seeds


@given(st.lists(requests, max_size=6))
def test_requests_arrive_as_they_were_sent(sent: list[GenerationRequest]) -> None:
    arrived = unpack_requests(pickle.loads(pickle.dumps(pack_requests(sent))))
    for one, other in zip(sent, arrived, strict=True):
        assert_same(one, other)


@given(st.lists(results() | deltas(), max_size=6), st.booleans())
def test_what_an_engine_says_and_its_health_arrive_as_they_were_sent(
    sent: list[GenerationResult | TokenDelta], with_health: bool
) -> None:
    health = EngineHealth(version=3, num_running=1, num_queued=2, num_tokens_sampled=9, error="x")
    packed = pickle.loads(pickle.dumps(pack_results(sent, health if with_health else None)))
    assert packed.health == (health if with_health else None)
    for one, other in zip(sent, unpack_results(packed), strict=True):
        assert_same(one, other)
