"""The `mock` engine: replies, latencies and failures from a script; no model, no torch.

    submit -> (queued while paused or full ->) running for its latency -> resolved, exactly once
    zero latency: submit -> resolved

For measuring an orchestration without a model, and for rehearsing slow, failing and hung engines.
Everything drawn (reply, latency, failure, hang) depends on the request's seed alone.

    engine = MockEngine.create(EngineConfig(model=None, sequence_length=512, strategy_config={
        "reply": [[5, 6], [7]], "latency": {"kind": "lognormal", "mean_s": 0.2, "sigma": 0.86},
        "failure": {"rate": 0.01}, "hang_rate": 0.001}))
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import statistics
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from envsdk.failures import ConfigurationError
from envsdk.inference.continuation import spans_within
from envsdk.inference.engine import (
    Engine,
    EngineAbilities,
    EngineConfig,
    EngineFailure,
    EngineHealth,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    PauseMode,
    TokenDelta,
    WeightReference,
)
from envsdk.inference.refusals import in_use, refused, why_impossible
from envsdk.inference.settings import EngineSettings
from envsdk.settings.strict import StrictSettings
from envsdk.settings.validation import validated
from envsdk.trajectory import VersionSpan

Rate = Annotated[float, Field(ge=0.0, le=1.0)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class ConstantLatency(StrictSettings):
    """Every reply takes `mean_s`."""

    kind: Literal["constant"]
    mean_s: NonNegativeFloat


class NormalLatency(StrictSettings):
    """Normal, cut off at 0."""

    kind: Literal["normal"]
    mean_s: NonNegativeFloat
    std_s: NonNegativeFloat


class LognormalLatency(StrictSettings):
    """Lognormal with mean `mean_s`; `sigma` is the standard deviation of the logarithm."""

    kind: Literal["lognormal"]
    mean_s: PositiveFloat
    sigma: NonNegativeFloat


class PerTokenLatency(StrictSettings):
    """`base_s` plus `prompt_token_s` per prompt token and `token_s` per token of the reply."""

    kind: Literal["per_token"]
    token_s: NonNegativeFloat
    prompt_token_s: NonNegativeFloat = 0.0
    base_s: NonNegativeFloat = 0.0


DrawnLatency = ConstantLatency | NormalLatency | LognormalLatency
"""Depends on the request's seed alone."""
Latency = Annotated[DrawnLatency | PerTokenLatency, Field(discriminator="kind")]


class ScriptedFailure(StrictSettings):
    """Which share of the requests fails, and how."""

    rate: Rate
    kind: Literal["error", "empty", "crash"] = "error"
    """`error`: the reply ends with `error` when its latency is over. `empty`: a reply without tokens.
    `crash`: the engine dies; every request, this and later ones, ends with `error`."""


class MockSettings(EngineSettings):
    """`strategy_config` of the mock engine."""

    reply: TokenIds | Annotated[list[TokenIds], Field(min_length=1)] | Literal["echo", "random"] = "random"
    """Token ids of every reply; a list of replies, taken by seed (in turn when there is none); `echo`,
    the end of the prompt; or `random`, uniform below `vocab_size`."""
    num_tokens: PositiveInt | None = None
    """Cut or repeat replies to this length; None leaves scripted ones as they are and lets `echo` and
    `random` go on to `max_new_tokens`."""
    vocab_size: PositiveInt = 256
    logprob: Annotated[float, Field(le=0.0)] = -1.0
    """Log-probability given for every scripted token; `random` gives -log(vocab_size)."""
    latency: Latency = ConstantLatency(kind="constant", mean_s=0.0)
    failure: ScriptedFailure = ScriptedFailure(rate=0.0)
    hang_rate: Rate = 0.0
    """Share of requests that are never answered unless aborted."""
    load_s: NonNegativeFloat = 0.0
    """How long `load_weights` takes; replies go on meanwhile."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """What a request will get if nothing interferes."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish_reason: FinishReason
    error: str = ""


@dataclass(slots=True)
class _Running:
    """A reply whose latency is passing. Tokens appear evenly over `duration_s`."""

    request: GenerationRequest
    future: asyncio.Future[GenerationResult]
    reply: _Reply
    duration_s: float
    since: float | None
    """Loop time of the last start or resume; None while frozen by a pause."""
    version: int
    elapsed_s: float = 0.0
    """Time passed before `since`."""
    timer: asyncio.TimerHandle | None = None
    spans: list[VersionSpan] = field(default_factory=list)
    """Closed spans; the open one began where the last of these ends."""

    def num_sampled(self, now: float) -> int:
        passed = self.elapsed_s + (0.0 if self.since is None else now - self.since)
        total = len(self.reply.token_ids)
        return min(total, int(total * passed / self.duration_s)) if math.isfinite(self.duration_s) else 0

    def close_span(self, end: int) -> None:
        self.spans += self.open_span(end)

    def open_span(self, end: int) -> list[VersionSpan]:
        start = self.spans[-1].end if self.spans else 0
        return [VersionSpan(version=self.version, start=start, end=end)] if end > start else []

    def delta(self, start: int, end: int) -> TokenDelta:
        return TokenDelta(
            request_id=self.request.request_id,
            token_ids=self.reply.token_ids[start:end],
            logprobs=self.reply.logprobs[start:end],
            version_spans=spans_within([*self.spans, *self.open_span(end)], start, end),
        )


class MockEngine(Engine):
    """See the module's text; settings in `MockSettings`."""

    abilities = EngineAbilities(inflight_update=True, priority=True, progress=True)

    def __init__(self, config: EngineConfig, settings: MockSettings) -> None:
        self._settings = settings
        self._sequence_length = config.sequence_length
        self._max_running = config.max_running
        self._seed = config.seed
        self._version = 0
        self._paused = False
        self._started = False
        self._error = ""
        self._arrivals = itertools.count()
        self._queue: list[tuple[int, int, GenerationRequest, asyncio.Future[GenerationResult]]] = []
        self._running: dict[str, _Running] = {}
        self._queued_ids: set[str] = set()
        self._idle = asyncio.Event()
        self._dispatching = False
        self._num_tokens_sampled = 0
        self._num_prompt_tokens = 0
        reply = settings.reply
        self._script: list[list[int]] = []
        if not isinstance(reply, str):
            nested = [list(item) for item in reply if isinstance(item, list)]
            flat = [item for item in reply if isinstance(item, int)]
            self._script = nested or [flat]
        self._cache: dict[tuple[int, int, tuple[int, ...]], _Reply] = {}
        latency = settings.latency
        self._draws = settings.failure.rate > 0 or settings.hang_rate > 0
        self._instant = not self._draws and isinstance(latency, ConstantLatency) and latency.mean_s == 0.0

    @classmethod
    def create(cls, config: EngineConfig) -> MockEngine:
        if config.sequence_length < 2:
            raise ConfigurationError(f"sequence_length is {config.sequence_length}; it must be at least 2")
        settings = validated(MockSettings, config.strategy_config, "strategy_config of engine `mock`")
        return cls(config, settings)

    async def start(self) -> None:
        self._started = True
        self._dispatch()

    def submit(self, request: GenerationRequest) -> asyncio.Future[GenerationResult]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[GenerationResult] = loop.create_future()
        if refusal := self._refusal(request):
            future.set_result(refused(request.request_id, refusal))
            return future
        self._num_prompt_tokens += len(request.prompt_ids)
        if self._instant and self._started and not self._paused:
            reply = self._reply(request, next(self._arrivals))
            count = len(reply.token_ids)
            self._num_tokens_sampled += count
            spans = (VersionSpan(version=self._version, start=0, end=count),) if count else ()
            future.set_result(
                GenerationResult(
                    request_id=request.request_id,
                    token_ids=reply.token_ids,
                    logprobs=reply.logprobs,
                    version_spans=spans,
                    finish_reason=reply.finish_reason,
                )
            )
            return future
        heapq.heappush(self._queue, (request.priority, next(self._arrivals), request, future))
        self._queued_ids.add(request.request_id)
        future.add_done_callback(lambda _: self._drop_if_canceled(request.request_id, future))
        self._dispatch()
        return future

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if running := self._running.get(request_id):
                self._end(running, FinishReason.ABORT)
        if doomed := self._queued_ids.intersection(request_ids):
            kept = [entry for entry in self._queue if entry[2].request_id not in doomed]
            ended = [entry for entry in self._queue if entry[2].request_id in doomed]
            heapq.heapify(kept)
            self._queue = kept
            self._queued_ids -= doomed
            for _, _, request, future in ended:
                _resolve(future, _empty(request.request_id, FinishReason.ABORT))
        self._dispatch()

    async def progress(self, num_known: Mapping[str, int]) -> list[TokenDelta]:
        now = asyncio.get_running_loop().time()
        found = []
        for request_id, known in num_known.items():
            running = self._running.get(request_id)
            if running is not None and (count := running.num_sampled(now)) > known:
                found.append(running.delta(known, count))
        return found

    async def pause(self, mode: PauseMode) -> None:
        self._paused = True
        if mode is PauseMode.WAIT:
            self._start_frozen_clocks()
            while self._running and self._paused:
                self._idle.clear()
                await self._idle.wait()
            return
        now = asyncio.get_running_loop().time()
        for running in list(self._running.values()):
            if mode is PauseMode.ABORT and not running.request.survives_weight_update:
                self._end(running, FinishReason.ABORT)
            elif running.since is not None:
                if running.timer is not None:
                    running.timer.cancel()
                running.elapsed_s += now - running.since
                running.since = None

    async def resume(self) -> None:
        self._paused = False
        self._idle.set()
        self._start_frozen_clocks()
        self._dispatch()

    def _start_frozen_clocks(self) -> None:
        for running in self._running.values():
            if running.since is None:
                self._start_clock(running)

    async def load_weights(self, weights: WeightReference, version: int) -> None:
        if not isinstance(weights, Mapping | Path):
            # A stream's sender waits until it has been read.
            await asyncio.to_thread(deque, weights, 0)
        if self._settings.load_s:
            await asyncio.sleep(self._settings.load_s)
        now = asyncio.get_running_loop().time()
        for running in self._running.values():
            running.close_span(running.num_sampled(now))
            running.version = version
        self._version = version

    def health(self) -> EngineHealth:
        now = asyncio.get_running_loop().time() if self._running else 0.0
        num_in_progress = sum(running.num_sampled(now) for running in self._running.values())
        return EngineHealth(
            version=self._version,
            num_running=len(self._running),
            num_queued=len(self._queue),
            num_tokens_sampled=self._num_tokens_sampled + num_in_progress,
            num_prompt_tokens=self._num_prompt_tokens,
            num_prefilled_tokens=self._num_prompt_tokens,
            error=self._error,
        )

    async def close(self) -> None:
        self._error = self._error or "the engine is closed"  # also keeps the queue from moving up
        self.abort([*self._running, *self._queued_ids])

    def _refusal(self, request: GenerationRequest) -> EngineFailure | None:
        """Why this request cannot be run; None when it can."""
        if self._error:
            return EngineFailure(self._error)
        if request.request_id in self._running or request.request_id in self._queued_ids:
            return in_use(request.request_id)
        return why_impossible(request, sequence_length=self._sequence_length, abilities=self.abilities)

    def _reply(self, request: GenerationRequest, arrival: int) -> _Reply:
        sampling = request.sampling
        budget = min(sampling.max_new_tokens, self._sequence_length - len(request.prompt_ids))
        if not self._script:
            return self._drawn_reply(request, budget, arrival)
        index = (arrival if sampling.seed is None else sampling.seed) % len(self._script)
        key = (index, budget, sampling.stop_token_ids)
        if (cached := self._cache.get(key)) is None:
            ids = self._script[index]
            if self._settings.num_tokens is not None:
                ids = list(itertools.islice(itertools.cycle(ids), self._settings.num_tokens))
            cached = self._cache[key] = _cut(ids, budget, sampling.stop_token_ids, self._settings.logprob)
        return cached

    def _drawn_reply(self, request: GenerationRequest, budget: int, arrival: int) -> _Reply:
        settings = self._settings
        length = min(settings.num_tokens or budget, budget)
        if settings.reply == "echo":
            tail = request.prompt_ids[-length:].tolist()
            return _cut(tail, budget, request.sampling.stop_token_ids, settings.logprob)
        if request.sampling.temperature == 0:  # greedy: the prompt alone decides
            key = zlib.crc32(np.asarray(request.prompt_ids, np.int32).tobytes())
        else:
            key = self._key(request, arrival)
        draw = random.Random(key)
        ids = [int(draw.random() * settings.vocab_size) for _ in range(length)]
        return _cut(ids, budget, request.sampling.stop_token_ids, -math.log(settings.vocab_size))

    def _key(self, request: GenerationRequest, arrival: int) -> int:
        seed = request.sampling.seed
        return (self._seed * 1_000_003 + arrival) * 2 + 1 if seed is None else _key_of_seed(seed)

    def _duration_s(self, request: GenerationRequest, reply: _Reply, uniform: float) -> float:
        latency = self._settings.latency
        if isinstance(latency, PerTokenLatency):
            prompt_s = latency.prompt_token_s * len(request.prompt_ids)
            return latency.base_s + prompt_s + latency.token_s * len(reply.token_ids)
        return _quantile_s(latency, uniform)

    def _dispatch(self) -> None:
        if self._dispatching or self._paused or self._error or not self._started:
            return
        self._dispatching = True  # a reply without latency ends, and would dispatch, inside this loop
        while self._queue and len(self._running) < self._max_running and not self._error:
            _, arrival, request, future = heapq.heappop(self._queue)
            self._queued_ids.discard(request.request_id)
            self._run(request, future, arrival)
        self._dispatching = False

    def _run(
        self, request: GenerationRequest, future: asyncio.Future[GenerationResult], arrival: int
    ) -> None:
        # A stream of its own, so that adding failures to a script changes neither replies nor latencies.
        latency_draw, failure_draw, hang_draw = _fates(self._key(request, arrival))
        failure = self._settings.failure
        reply = self._reply(request, arrival)
        duration_s = self._duration_s(request, reply, latency_draw)
        if failure_draw < failure.rate:
            if failure.kind == "crash":
                self._crash(request, future)
                return
            reply = _EMPTY if failure.kind == "empty" else _FAILED
        running = _Running(
            request=request,
            future=future,
            reply=reply,
            duration_s=math.inf if hang_draw < self._settings.hang_rate else duration_s,
            since=None,
            version=self._version,
        )
        self._running[request.request_id] = running
        if running.duration_s == 0.0:
            self._end(running, reply.finish_reason)
        else:
            self._start_clock(running)

    def _start_clock(self, running: _Running) -> None:
        loop = asyncio.get_running_loop()
        running.since = loop.time()
        if math.isfinite(running.duration_s):
            left_s = running.duration_s - running.elapsed_s
            running.timer = loop.call_later(left_s, self._end, running, running.reply.finish_reason)

    def _crash(self, request: GenerationRequest, future: asyncio.Future[GenerationResult]) -> None:
        self._error = "the mock engine crashed, as its script asked"
        _resolve(future, refused(request.request_id, EngineFailure(self._error)))
        for running in list(self._running.values()):
            self._end(running, FinishReason.ERROR, self._error)
        for _, _, queued, waiting in self._queue:
            _resolve(waiting, refused(queued.request_id, EngineFailure(self._error)))
        self._queue.clear()
        self._queued_ids.clear()

    def _drop_if_canceled(self, request_id: str, future: asyncio.Future[GenerationResult]) -> None:
        if future.cancelled():  # nobody waits for it: free its place
            self.abort([request_id])

    def _end(self, running: _Running, reason: FinishReason, error: str = "") -> None:
        """Answer with what is sampled by now: all of it when the reply ran its course."""
        if running.timer is not None:
            running.timer.cancel()
        ran_its_course = reason is running.reply.finish_reason and not error
        if ran_its_course:
            count = len(running.reply.token_ids)
            error = running.reply.error
        else:
            count = running.num_sampled(asyncio.get_running_loop().time())
        running.close_span(count)
        del self._running[running.request.request_id]
        self._num_tokens_sampled += count
        _resolve(
            running.future,
            GenerationResult(
                request_id=running.request.request_id,
                token_ids=running.reply.token_ids[:count],
                logprobs=running.reply.logprobs[:count],
                version_spans=tuple(running.spans),
                finish_reason=reason,
                error=error,
            ),
        )
        if not self._running:
            self._idle.set()
        self._dispatch()


_STANDARD_NORMAL = statistics.NormalDist()


def drawn_latency_s(latency: DrawnLatency, seed: int) -> float:
    """How long the engine takes for a request with this seed: for simulations of the same draws."""
    return _quantile_s(latency, _fates(_key_of_seed(seed))[0])


def _key_of_seed(seed: int) -> int:
    return seed * 2


def _fates(key: int) -> tuple[float, float, float]:
    """Uniform draws for latency, failure and hang."""
    draw = random.Random(~key)
    return max(draw.random(), 1e-12), max(draw.random(), 1e-12), max(draw.random(), 1e-12)


def _quantile_s(latency: DrawnLatency, uniform: float) -> float:
    match latency:
        case ConstantLatency(mean_s=mean_s):
            return mean_s
        case NormalLatency(mean_s=mean_s, std_s=std_s):
            return max(0.0, mean_s + std_s * _STANDARD_NORMAL.inv_cdf(uniform))
        case LognormalLatency(mean_s=mean_s, sigma=sigma):
            return mean_s * math.exp(sigma * _STANDARD_NORMAL.inv_cdf(uniform) - sigma * sigma / 2)


_NO_IDS = np.empty(0, np.int32)
_NO_LOGPROBS = np.empty(0, np.float32)
_EMPTY = _Reply(_NO_IDS, _NO_LOGPROBS, FinishReason.STOP)
_FAILED = _Reply(_NO_IDS, _NO_LOGPROBS, FinishReason.ERROR, "a failure from the mock engine's script")


def _cut(ids: list[int], budget: int, stop_token_ids: tuple[int, ...], logprob: float) -> _Reply:
    """End `ids` at a stop token (the first one is appended when there is room) or at the budget."""
    stop_at = next((i for i, token in enumerate(ids[:budget]) if token in stop_token_ids), None)
    if stop_at is not None:
        ids = ids[: stop_at + 1]
        reason = FinishReason.STOP
    elif len(ids) >= budget:
        ids = ids[:budget]
        reason = FinishReason.LENGTH
    else:
        ids = [*ids, *stop_token_ids[:1]]
        reason = FinishReason.STOP
    token_ids = np.array(ids, np.int32)
    logprobs = np.full(len(ids), logprob, np.float32)
    # One array may serve many results.
    token_ids.setflags(write=False)
    logprobs.setflags(write=False)
    return _Reply(token_ids, logprobs, reason)


def _empty(request_id: str, reason: FinishReason) -> GenerationResult:
    return GenerationResult(
        request_id=request_id,
        token_ids=_NO_IDS,
        logprobs=_NO_LOGPROBS,
        version_spans=(),
        finish_reason=reason,
    )


def _resolve(future: asyncio.Future[GenerationResult], result: GenerationResult) -> None:
    """Answer, unless the caller was canceled and nobody listens any more."""
    if not future.done():
        future.set_result(result)
