"""InferenceProxy: one front for many engines.

    generate -> (held while suspended) -> dispatched -> answered: the future resolves, exactly once
                                            |-> engine lost or broken: dispatched again elsewhere
                                            |-> cut short by a weight update: goes on from its tokens
                                            \\-> overdue: aborted, answered with an error

The proxy is a library object in each process that plays episodes, not an actor: a relay would
double the cost of every turn. Suspension gates at dispatch: what is queued stays queued.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from envsdk.inference.engine import (
    Engine,
    EngineHealth,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    TokenDelta,
)
from envsdk.inference.router import NoEngineLeft, Router
from envsdk.trajectory import VersionSpan

Deliver = Callable[[Sequence[GenerationResult], EngineHealth | None], None]

OnTokens = Callable[[TokenDelta], None]

MAX_INTERRUPTIONS = 3
"""After so many restarts by weight updates a turn goes on from the tokens it has."""


class EngineLink(ABC):
    """The way to one engine."""

    @abstractmethod
    def connect(self, deliver: Deliver) -> None:
        """Called once, on the event loop that will call everything else."""

    @abstractmethod
    def send(self, request: GenerationRequest) -> None:
        """Queue a request; its result comes through `deliver`."""

    @abstractmethod
    def abort(self, request_ids: Sequence[str]) -> None:
        """Ask the engine to end these."""

    @abstractmethod
    async def lost(self) -> str:
        """Returns why, when the engine is gone; never otherwise."""

    @abstractmethod
    def close(self) -> None:
        """Deliver nothing more."""


class LocalLink(EngineLink):
    """To an engine in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._deliver: Deliver | None = None

    def connect(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def send(self, request: GenerationRequest) -> None:
        self._engine.submit(request).add_done_callback(self._answered)

    def _answered(self, future: asyncio.Future[GenerationResult]) -> None:
        if self._deliver is not None and not future.cancelled():
            result = future.result()
            health = self._engine.health() if result.finish_reason is FinishReason.ERROR else None
            self._deliver([result], health)

    def abort(self, request_ids: Sequence[str]) -> None:
        self._engine.abort(request_ids)

    async def lost(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    def close(self) -> None:
        self._deliver = None


@dataclass(slots=True)
class _Pending:
    request: GenerationRequest
    """As asked for."""
    future: asyncio.Future[GenerationResult]
    on_tokens: OnTokens | None = None
    dispatched_at: float = 0.0
    so_far: GenerationResult | None = None
    """What was sampled before an interruption the turn goes on from."""
    interruptions: int = 0


class InferenceProxy:
    """Dispatches requests to engines and survives losing some.

    Owner: one process that plays episodes. `start` before the first `generate`.
    """

    def __init__(
        self,
        links: Mapping[str, EngineLink],
        *,
        router: Router | None = None,
        turn_timeout_s: float = 300.0,
        keep_interrupted_tokens: bool = False,
        engines_return: bool = False,
    ) -> None:
        """`engines_return`: a broken engine is replaced, so even the last one's requests wait for that."""
        self._links = dict(links)
        self._router = router or Router()
        self._turn_timeout_s = turn_timeout_s
        self._keep_interrupted_tokens = keep_interrupted_tokens
        self._engines_return = engines_return
        self._pending: dict[str, _Pending] = {}
        self._held: list[str] = []
        self._suspended = False
        self._tasks: list[asyncio.Task[None]] = []
        self.health: dict[str, EngineHealth] = {}

    def start(self) -> None:
        """Connect to the engines; call on the event loop."""
        for engine, link in self._links.items():
            self._open(engine, link)
        self._tasks.append(asyncio.ensure_future(self._sweep_overdue()))

    def add_engine(self, engine: str, link: EngineLink) -> None:
        """A new engine, or a restarted one under its old name."""
        if engine in self._links:
            self._give_up(engine)
        self._links[engine] = link
        self._open(engine, link)
        if not self._suspended:
            self._release_held()

    def drain_engine(self, engine: str) -> None:
        """Send it nothing more. What runs there ends there; then the link is closed and the engine forgotten.

        An engine that is not known (any more) is ignored.
        """
        if engine in self._links:
            self._router.drain_engine(engine)
            self._forget_if_drained(engine)

    def generate(
        self, request: GenerationRequest, on_tokens: OnTokens | None = None
    ) -> asyncio.Future[GenerationResult]:
        """Queue a request. The future resolves with a result; cancelling it aborts the request.

        `on_tokens` gets the reply as it comes: deltas in order that make up exactly the result's tokens, the
        last one before the future resolves. It is called on the event loop and must not raise.
        """
        future: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        future.add_done_callback(
            lambda done: self._cancelled(request.request_id) if done.cancelled() else None
        )
        self._pending[request.request_id] = _Pending(request, future, on_tokens)
        self._dispatch_or_hold(request.request_id)
        return future

    def suspend(self) -> None:
        """Dispatch nothing more until `resume`; what runs may finish."""
        self._suspended = True

    def resume(self) -> None:
        """Dispatch what was held, in its order. Idempotent."""
        self._suspended = False
        self._release_held()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for link in self._links.values():
            link.close()

    # Dispatch

    def _open(self, engine: str, link: EngineLink) -> None:
        self._router.add_engine(engine)
        link.connect(lambda results, health: self._answered(engine, results, health))
        self._tasks.append(asyncio.ensure_future(self._watch(engine, link)))

    def _release_held(self) -> None:
        held, self._held = self._held, []
        for request_id in held:
            if request_id in self._pending:
                self._dispatch(request_id)

    def _dispatch_or_hold(self, request_id: str) -> None:
        if self._suspended:
            self._held.append(request_id)
        else:
            self._dispatch(request_id)

    def _dispatch(self, request_id: str) -> None:
        pending = self._pending[request_id]
        request = _continuing(pending)
        try:
            engine = self._router.dispatch(
                request_id, request.session_id, len(request.prompt_ids) + request.sampling.max_new_tokens
            )
        except NoEngineLeft:
            self._held.append(request_id)
            return
        pending.dispatched_at = time.monotonic()
        self._links[engine].send(request)

    # Answers

    def _answered(
        self, engine: str, results: Sequence[GenerationResult], health: EngineHealth | None
    ) -> None:
        if health is not None:
            self.health[engine] = health
        # The last engine's errors are the answer, unless it comes back: nobody else could give a better one.
        is_broken = health is not None and bool(health.error)
        is_given_up = is_broken and (self._engines_return or len(self._links) > 1)
        for result in results:
            if is_given_up and result.finish_reason is FinishReason.ERROR:
                continue
            if self._router.engine_of(result.request_id) != engine:
                continue
            self._router.done(result.request_id)
            pending = self._pending.get(result.request_id)
            if pending is None:
                continue
            if result.finish_reason is FinishReason.ABORT:
                self._interrupted(pending, result)
            else:
                self._resolve(pending, _stitched(pending.so_far, result))
        if is_given_up:
            self._give_up(engine)
        else:
            self._forget_if_drained(engine)

    def _forget_if_drained(self, engine: str) -> None:
        if self._router.is_drained(engine):
            self._give_up(engine)

    def _interrupted(self, pending: _Pending, result: GenerationResult) -> None:
        """A weight update ended a turn nobody asked to end: play it again, or go on from its tokens."""
        pending.interruptions += 1
        if self._keep_interrupted_tokens or pending.interruptions >= MAX_INTERRUPTIONS:
            pending.so_far = _stitched(pending.so_far, result)
            ended = _ended_by_its_tokens(pending.request, pending.so_far)
            if ended is not None:
                self._resolve(pending, replace(pending.so_far, finish_reason=ended))
                return
        self._dispatch_or_hold(pending.request.request_id)

    def _resolve(self, pending: _Pending, result: GenerationResult) -> None:
        del self._pending[pending.request.request_id]
        if not pending.future.done():
            if pending.on_tokens is not None and len(result.token_ids):
                pending.on_tokens(
                    TokenDelta(
                        request_id=result.request_id,
                        token_ids=result.token_ids,
                        logprobs=result.logprobs,
                        version_spans=result.version_spans,
                    )
                )
            pending.future.set_result(result)

    def _cancelled(self, request_id: str) -> None:
        if self._pending.pop(request_id, None) is not None:
            self._abort_on_engine(request_id)

    def _abort_on_engine(self, request_id: str) -> None:
        engine = self._router.engine_of(request_id)
        if engine is not None:
            self._links[engine].abort([request_id])

    # Failures

    async def _watch(self, engine: str, link: EngineLink) -> None:
        """When the engine is gone, its requests go elsewhere, or wait for an engine to come back."""
        await link.lost()
        if self._links.get(engine) is link:
            self._give_up(engine)

    def _give_up(self, engine: str) -> None:
        self._links.pop(engine).close()
        self.health.pop(engine, None)
        for request_id in self._router.remove_engine(engine):
            if request_id in self._pending:
                self._dispatch_or_hold(request_id)

    async def _sweep_overdue(self) -> None:
        """Answer what an engine never answered. Time held by a suspension does not count."""
        while True:
            await asyncio.sleep(min(1.0, self._turn_timeout_s / 4))
            oldest = time.monotonic() - self._turn_timeout_s
            overdue = [
                request_id
                for request_id, pending in self._pending.items()
                if pending.dispatched_at < oldest and self._router.engine_of(request_id) is not None
            ]
            for request_id in overdue:
                self._resolve(self._pending[request_id], _overdue(request_id, self._turn_timeout_s))
                self._abort_on_engine(request_id)


def _continuing(pending: _Pending) -> GenerationRequest:
    """The request, or what is left of it after the tokens it already has."""
    so_far, request = pending.so_far, pending.request
    if so_far is None:
        return request
    sampling = replace(
        request.sampling,
        max_new_tokens=request.sampling.max_new_tokens - len(so_far.token_ids),
        seed=None if request.sampling.seed is None else request.sampling.seed + len(so_far.token_ids),
    )
    prompt_ids = np.concatenate([request.prompt_ids, so_far.token_ids])
    return replace(request, prompt_ids=prompt_ids, sampling=sampling)


def _ended_by_its_tokens(request: GenerationRequest, result: GenerationResult) -> FinishReason | None:
    """Why there is nothing left to sample; None when there is."""
    token_ids = result.token_ids
    if len(token_ids) and int(token_ids[-1]) in request.sampling.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(token_ids) >= request.sampling.max_new_tokens else None


def _stitched(so_far: GenerationResult | None, rest: GenerationResult) -> GenerationResult:
    if so_far is None:
        return rest
    offset = len(so_far.token_ids)
    moved = tuple(
        VersionSpan(version=span.version, start=span.start + offset, end=span.end + offset)
        for span in rest.version_spans
    )
    return replace(
        rest,
        token_ids=np.concatenate([so_far.token_ids, rest.token_ids]),
        logprobs=np.concatenate([so_far.logprobs, rest.logprobs]),
        version_spans=so_far.version_spans + moved,
    )


def _overdue(request_id: str, limit_s: float) -> GenerationResult:
    return GenerationResult(
        request_id=request_id,
        token_ids=np.zeros(0, np.int32),
        logprobs=np.zeros(0, np.float32),
        version_spans=(),
        finish_reason=FinishReason.ERROR,
        error=f"turn_timeout: no reply within turn_timeout_s={limit_s:g}",
    )
