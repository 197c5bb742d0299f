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
import itertools
import math
import random
import statistics
import zlib
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from envsdk.base.settings.strict import StrictSettings
from envsdk.contracts.held import Held
from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.core import Core, Counters, Reply
from envsdk.engines.engine import (
    EngineAbilities,
    EngineConfig,
    EngineFailure,
    GenerationRequest,
    GenerationResult,
    TokenDelta,
    WeightReference,
)
from envsdk.engines.front import EngineFront, settings_of
from envsdk.engines.settings import EngineSettings

Rate = Annotated[float, Field(ge=0.0, le=1.0)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class ConstantLatency(StrictSettings):
    """Every reply takes `mean_s`."""

    kind: Literal["constant"]
    mean_s: NonNegativeFloat


class LognormalLatency(StrictSettings):
    """Lognormal with mean `mean_s`; `sigma` is the deviation of the logarithm. Cut at `longest_s`."""

    kind: Literal["lognormal"]
    mean_s: PositiveFloat
    sigma: NonNegativeFloat
    longest_s: PositiveFloat | None = None


class PerTokenLatency(StrictSettings):
    """`base_s` plus `prompt_token_s` per prompt token and `token_s` per token of the reply."""

    kind: Literal["per_token"]
    token_s: NonNegativeFloat
    prompt_token_s: NonNegativeFloat = 0.0
    base_s: NonNegativeFloat = 0.0


DrawnLatency = ConstantLatency | LognormalLatency
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
class PlannedReply:
    """What a request gets if nothing interferes; `planned` makes it."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish_reason: FinishReason
    error: str = ""


@dataclass(slots=True)
class _Running:
    """A reply whose latency is passing. Tokens appear evenly over `duration_s`."""

    reply: Reply
    script: PlannedReply
    duration_s: float
    since: float | None
    """Loop time of the last start or thaw; None while frozen."""
    version: int
    elapsed_s: float = 0.0
    """Time passed before `since`."""
    timer: asyncio.TimerHandle | None = None

    def num_sampled(self, now: float) -> int:
        passed = self.elapsed_s + (0.0 if self.since is None else now - self.since)
        total = len(self.script.token_ids)
        return min(total, int(total * passed / self.duration_s)) if math.isfinite(self.duration_s) else 0

    def take(self, count: int) -> None:
        """The reply has so many tokens now."""
        start, script = len(self.reply.token_ids), self.script
        ids, logprobs = script.token_ids[start:count], script.logprobs[start:count]
        self.reply.take(ids.tolist(), logprobs.tolist(), self.version)


class MockCore(Core):
    """See the module's text; settings in `MockSettings`."""

    abilities = EngineAbilities(inflight_update=True, priority=True, progress=True)

    def __init__(self, config: EngineConfig, settings: MockSettings) -> None:
        self.max_open = config.max_running
        self.running: dict[Reply, _Running] = {}
        self._settings = settings
        self._sequence_length = config.sequence_length
        self._seed = config.seed
        self._version = 0
        self._broken: Callable[[str], None]
        self._num_tokens_sampled = 0
        self._num_prompt_tokens = 0
        reply = settings.reply
        self._replies: list[list[int]] = []
        if not isinstance(reply, str):
            nested = [list(item) for item in reply if isinstance(item, list)]
            flat = [item for item in reply if isinstance(item, int)]
            self._replies = nested or [flat]
        self._cache: dict[tuple[int, int, tuple[int, ...]], PlannedReply] = {}
        latency = settings.latency
        self._draws = settings.failure.rate > 0 or settings.hang_rate > 0
        self._instant = not self._draws and isinstance(latency, ConstantLatency) and latency.mean_s == 0.0

    async def start(self, broken: Callable[[str], None]) -> None:
        self._broken = broken

    def begin(self, reply: Reply) -> None:
        self._num_prompt_tokens += len(reply.request.prompt_ids)
        script = self.plan(reply.request, reply.arrival)
        if self._instant:
            count = len(script.token_ids)
            spans = (VersionSpan(version=self._version, start=0, end=count),) if count else ()
            self._num_tokens_sampled += count
            reply.answer(
                GenerationResult(
                    request_id=reply.request.request_id,
                    token_ids=script.token_ids,
                    logprobs=script.logprobs,
                    version_spans=spans,
                    finish_reason=script.finish_reason,
                )
            )
            return
        # A stream of its own, so that adding failures to a script changes neither replies nor latencies.
        latency_draw, failure_draw, hang_draw = _fates(self._key(reply.request, reply.arrival))
        failure = self._settings.failure
        duration_s = self._duration_s(reply.request, script, latency_draw)
        if failure_draw < failure.rate:
            if failure.kind == "crash":
                self._crash()
                return
            script = _EMPTY if failure.kind == "empty" else _FAILED
        duration_s = math.inf if hang_draw < self._settings.hang_rate else duration_s
        running = self.running[reply] = _Running(reply, script, duration_s, None, self._version)
        if duration_s == 0.0:
            self._end(running, script.finish_reason)
        else:
            self._start_clock(running)

    def ended(self, reply: Reply) -> None:
        running = self.running.pop(reply, None)
        if running is not None and running.timer is not None:
            running.timer.cancel()

    def abort(self, replies: Collection[Reply]) -> None:
        for reply in replies:
            if running := self.running.get(reply):
                self._end(running, FinishReason.ABORT)

    async def progress(self, num_known: Mapping[Reply, int]) -> list[TokenDelta]:
        self._take_what_is_due()
        return await super().progress(num_known)

    def _take_what_is_due(self) -> None:
        now = asyncio.get_running_loop().time() if self.running else 0.0
        for running in self.running.values():
            running.take(running.num_sampled(now))

    async def freeze(self) -> None:
        now = asyncio.get_running_loop().time()
        for running in self.running.values():
            if running.timer is not None:
                running.timer.cancel()
            if running.since is not None:
                running.elapsed_s += now - running.since
                running.since = None

    async def thaw(self) -> None:
        for running in self.running.values():
            self._start_clock(running)

    async def prepare(self, weights: WeightReference) -> None:
        if not isinstance(weights, Mapping | Path):
            # A stream's sender waits until it has been read.
            await asyncio.to_thread(deque, weights, 0)
        if self._settings.load_s:
            await asyncio.sleep(self._settings.load_s)

    async def hold(self, held: Held) -> None:
        """It has no memory to give back."""

    async def swap(self, prepared: None, version: int, *, is_frozen: bool) -> None:
        self._take_what_is_due()
        for running in self.running.values():
            running.version = version
        self._version = version

    def counters(self) -> Counters:
        self._take_what_is_due()
        num_in_progress = sum(len(reply.token_ids) for reply in self.running)
        return Counters(
            num_tokens_sampled=self._num_tokens_sampled + num_in_progress,
            num_prefilled_tokens=self._num_prompt_tokens,
        )

    async def close(self) -> None:
        self.abort(list(self.running))

    def plan(self, request: GenerationRequest, arrival: int) -> PlannedReply:
        """What the request gets if nothing interferes."""
        sampling = request.sampling
        budget = min(sampling.max_new_tokens, self._sequence_length - len(request.prompt_ids))
        if not self._replies:
            return self._drawn_script(request, budget, arrival)
        index = (arrival if sampling.seed is None else sampling.seed) % len(self._replies)
        key = (index, budget, sampling.stop_token_ids)
        if (cached := self._cache.get(key)) is None:
            ids = self._replies[index]
            if self._settings.num_tokens is not None:
                ids = list(itertools.islice(itertools.cycle(ids), self._settings.num_tokens))
            cached = self._cache[key] = planned(ids, budget, sampling.stop_token_ids, self._settings.logprob)
        return cached

    def _drawn_script(self, request: GenerationRequest, budget: int, arrival: int) -> PlannedReply:
        settings = self._settings
        length = min(settings.num_tokens or budget, budget)
        if settings.reply == "echo":
            tail = request.prompt_ids[-length:].tolist()
            return planned(tail, budget, request.sampling.stop_token_ids, settings.logprob)
        if request.sampling.temperature == 0:  # greedy: the prompt alone decides
            key = zlib.crc32(np.asarray(request.prompt_ids, np.int32).tobytes())
        else:
            key = self._key(request, arrival)
        draw = random.Random(key)
        ids = [int(draw.random() * settings.vocab_size) for _ in range(length)]
        return planned(ids, budget, request.sampling.stop_token_ids, -math.log(settings.vocab_size))

    def _key(self, request: GenerationRequest, arrival: int) -> int:
        seed = request.sampling.seed
        return (self._seed * 1_000_003 + arrival) * 2 + 1 if seed is None else _key_of_seed(seed)

    def _duration_s(self, request: GenerationRequest, script: PlannedReply, uniform: float) -> float:
        latency = self._settings.latency
        if isinstance(latency, PerTokenLatency):
            prompt_s = latency.prompt_token_s * len(request.prompt_ids)
            return latency.base_s + prompt_s + latency.token_s * len(script.token_ids)
        return _quantile_s(latency, uniform)

    def _start_clock(self, running: _Running) -> None:
        loop = asyncio.get_running_loop()
        running.since = loop.time()
        if math.isfinite(running.duration_s):
            left_s = running.duration_s - running.elapsed_s
            running.timer = loop.call_later(left_s, self._end, running, running.script.finish_reason)

    def _crash(self) -> None:
        why = "the mock engine crashed, as its script asked"
        self._error = why
        for running in list(self.running.values()):
            self._end(running, FinishReason.ERROR, why)
        self._broken(why)

    def _end(self, running: _Running, reason: FinishReason, error: str = "") -> None:
        """Answer with what is sampled by now: all of it when the reply ran its course."""
        reply, script = running.reply, running.script
        if reason is script.finish_reason and not error:
            running.take(len(script.token_ids))
            error = script.error
        else:
            running.take(running.num_sampled(asyncio.get_running_loop().time()))
        self._num_tokens_sampled += len(reply.token_ids)
        if error:
            reply.break_off(EngineFailure(error))
        else:
            reply.end(reason)


class MockEngine(EngineFront):
    """The mock behind the engine contract."""

    core: MockCore

    @classmethod
    def create(cls, config: EngineConfig) -> Self:
        settings = settings_of(MockSettings, config, "mock")
        return cls(MockCore(config, settings), name="mock", sequence_length=config.sequence_length)


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
        case LognormalLatency(mean_s=mean_s, sigma=sigma, longest_s=longest_s):
            drawn_s = mean_s * math.exp(sigma * _STANDARD_NORMAL.inv_cdf(uniform) - sigma * sigma / 2)
            return drawn_s if longest_s is None else min(drawn_s, longest_s)


_NO_IDS = np.empty(0, np.int32)
_NO_LOGPROBS = np.empty(0, np.float32)
_EMPTY = PlannedReply(_NO_IDS, _NO_LOGPROBS, FinishReason.STOP)
_FAILED = PlannedReply(_NO_IDS, _NO_LOGPROBS, FinishReason.ERROR, "a failure from the mock engine's script")


def planned(ids: list[int], budget: int, stop_token_ids: tuple[int, ...], logprob: float) -> PlannedReply:
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
    return PlannedReply(token_ids, logprobs, reason)
