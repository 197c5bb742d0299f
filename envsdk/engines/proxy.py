"""InferenceProxy: one front for many engines.

    generate -> waiting (suspended, or no room) -> dispatched -> answered: the future resolves, exactly once
                                                      |-> engine lost: continues elsewhere from its tokens
                                                      |-> weight update: restarts, continues or survives it
                                                      \\-> overdue: aborted, answered with an error

The proxy is a library object in each process that plays episodes, not an actor: a relay would
double the cost of every turn. Suspension gates at dispatch: what is queued stays queued.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import Any

import numpy as np

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.continuation import ended_by_its_tokens, joined, joined_result, rest_of, tokens_of
from envsdk.engines.engine import (
    Engine,
    EngineFailure,
    EngineHealth,
    ErrorKind,
    GenerationRequest,
    GenerationResult,
    TokenDelta,
)
from envsdk.engines.partial_results import STREAM_S, ProgressWatch
from envsdk.engines.router import Order, Router

Deliver = Callable[[Sequence[GenerationResult | TokenDelta], EngineHealth | None], None]
"""Takes what an engine says, in its order: what it has sampled so far, and results."""

OnTokens = Callable[[TokenDelta], None]

MAX_INTERRUPTIONS = 3
"""After so many restarts by weight updates a turn keeps its tokens; see `OnInterruption`."""


class OnInterruption(Enum):
    """What becomes of a turn when new weights arrive while an engine samples it."""

    RESTART = auto()
    """It begins again from its prompt."""
    CONTINUE = auto()
    """It continues from its tokens."""
    SURVIVES = auto()
    """Engines do not end it: it cannot continue from its tokens (`SamplingParams.can_continue`)."""


class EngineLink(ABC):
    """The way to one engine."""

    @abstractmethod
    def connect(self, deliver: Deliver) -> None:
        """Called once, on the event loop that will call everything else."""

    @abstractmethod
    def send(self, request: GenerationRequest) -> None:
        """Queue a request; its result, and what is known of it before, comes through `deliver`."""

    @abstractmethod
    def abort(self, request_ids: Sequence[str]) -> None:
        """Ask the engine to end these."""

    @abstractmethod
    async def lost(self) -> str:
        """Returns why, when the engine is gone or the link closed; never otherwise."""

    async def renewed(self) -> EngineLink | None:
        """After `lost`: another link to the same engine, once it answers; None when it is gone."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Deliver nothing more."""


class LocalLink(EngineLink):
    """To an engine in this process."""

    def __init__(self, engine: Engine, *, report_s: float = STREAM_S) -> None:
        """`report_s`: between two reports of what a watched turn has sampled."""
        self._engine = engine
        self._deliver: Deliver | None = None
        self._watch: ProgressWatch[None] = ProgressWatch(
            engine, self._sampled, period_s=report_s, spare_short_turns=False
        )
        self._watching: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    def connect(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def send(self, request: GenerationRequest) -> None:
        # An engine in this process is never lost alone, so only streamed turns need their tokens early.
        if request.stream and self._engine.abilities.progress:
            self._watch.opened(request.request_id, None)
            if self._watching is None:
                self._watching = asyncio.ensure_future(self._watch.run())
        self._engine.submit(request).add_done_callback(self._answered)

    def _answered(self, future: asyncio.Future[GenerationResult]) -> None:
        if self._deliver is not None and not future.cancelled():
            result = future.result()
            self._watch.ended(result.request_id)
            health = self._engine.health() if result.finish_reason is FinishReason.ERROR else None
            self._deliver([result], health)

    def _sampled(self, reports: Sequence[tuple[None, TokenDelta]]) -> None:
        if self._deliver is not None:
            self._deliver([delta for _, delta in reports], None)

    def abort(self, request_ids: Sequence[str]) -> None:
        self._engine.abort(request_ids)

    async def lost(self) -> str:
        await self._closed.wait()
        return "closed"

    def close(self) -> None:
        self._deliver = None
        self._closed.set()
        if self._watching is not None:
            self._watching.cancel()


@dataclass(slots=True)
class _Pending:
    request: GenerationRequest
    """As asked for."""
    future: asyncio.Future[GenerationResult]
    on_tokens: OnTokens | None
    order: Order
    num_reported: int = 0
    """Tokens that `on_tokens` got."""
    dispatched_at: float = 0.0
    so_far: TokenDelta | None = None
    """Tokens the turn had when it was dispatched, and continues from."""
    since: list[TokenDelta] = field(default_factory=list)
    """Tokens the engine reported since."""
    interruptions: int = 0

    def sampled(self) -> TokenDelta | None:
        """All that is known of the reply."""
        return joined([*([self.so_far] if self.so_far is not None else []), *self.since])

    def report(self, deltas: Sequence[TokenDelta]) -> None:
        if self.on_tokens is not None:
            for delta in deltas:
                self.num_reported += len(delta.token_ids)
                self.on_tokens(delta)


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
        """`keep_interrupted_tokens`: turns that a weight update cut short continue from their tokens.

        `engines_return`: a broken engine is replaced, so even the last one's requests wait for that.
        """
        self._links = dict(links)
        self._router = router or Router()
        self._turn_timeout_s = turn_timeout_s
        self._keep_interrupted_tokens = keep_interrupted_tokens
        self._engines_return = engines_return
        self._pending: dict[str, _Pending] = {}
        self._arrivals = itertools.count()
        self._suspended = False
        self._newest_version = 0
        """Any engine is known to have had."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.health: dict[str, EngineHealth] = {}

    def start(self) -> None:
        """Connect to the engines; call on the event loop."""
        for engine, link in self._links.items():
            self._open(engine, link)
        self._in_background(self._sweep_overdue())

    def add_engine(self, engine: str, link: EngineLink) -> None:
        """A new engine, or a restarted one under its old name."""
        if engine in self._links:
            self._give_up(engine)
        self._links[engine] = link
        self._open(engine, link)
        self._dispatch()

    def drain_engine(self, engine: str) -> None:
        """Send it nothing more. What runs there ends there; then the link is closed and the engine forgotten.

        An engine that is not known (any more) is ignored.
        """
        if engine in self._links:
            self._router.drain_engine(engine)
            self._forget_if_drained(engine)
            self._dispatch()

    def generate(
        self, request: GenerationRequest, on_tokens: OnTokens | None = None
    ) -> asyncio.Future[GenerationResult]:
        """Queue a request. The future resolves with a result; cancelling it aborts the request.

        `on_tokens` gets the reply as it comes: deltas in order that make up exactly the result's tokens, the
        last one before the future resolves. It is called on the event loop and must not raise.
        """
        future: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        future.add_done_callback(partial(self._ended, request.request_id))
        if on_tokens is not None:
            request = replace(request, stream=True)
        order = (request.priority, next(self._arrivals))
        pending = self._pending[request.request_id] = _Pending(request, future, on_tokens, order)
        if self._is_closed:
            self._resolve(pending, _failed(_nothing(request.request_id), _CLOSED))
            return future
        self._submit(pending)
        self._dispatch()
        return future

    def suspend(self) -> None:
        """Dispatch nothing more until `resume`; what runs may finish."""
        self._suspended = True

    def resume(self) -> None:
        """Dispatch what was held, in its order. Idempotent."""
        self._suspended = False
        self._dispatch()

    async def close(self) -> None:
        """Answer open and later requests with an error; engines may still sample them. Idempotent."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        for link in self._links.values():
            link.close()
        for request_id, pending in list(self._pending.items()):
            sampled = pending.sampled() or _nothing(request_id)
            self._resolve(pending, _failed(sampled, _CLOSED))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _open(self, engine: str, link: EngineLink) -> None:
        self._router.add_engine(engine)
        link.connect(lambda said, health: self._said(engine, said, health))
        self._in_background(self._watch(engine, link))

    def _submit(self, pending: _Pending) -> None:
        request = pending.request
        # However many of the tokens are there already, the sum of both is the same.
        num_tokens = len(request.prompt_ids) + request.sampling.max_new_tokens
        self._router.submit(
            request.request_id, request.session_id, num_tokens, pending.order, group=request.prompt_group
        )

    def _dispatch(self) -> None:
        """Send what can go. Called whenever something may have become possible."""
        while not self._suspended and (taken := self._router.take()) is not None:
            request_id, engine = taken
            pending = self._pending[request_id]
            pending.dispatched_at = _now()
            survives = self._on_interruption(pending) is OnInterruption.SURVIVES
            request = rest_of(pending.request, pending.so_far)
            if request.survives_weight_update is not survives:
                request = replace(request, survives_weight_update=survives)
            self._links[engine].send(request)

    def _on_interruption(self, pending: _Pending) -> OnInterruption:
        may_restart = not self._keep_interrupted_tokens and pending.interruptions < MAX_INTERRUPTIONS
        if may_restart and pending.on_tokens is None:
            return OnInterruption.RESTART
        can_continue = pending.request.sampling.can_continue
        return OnInterruption.CONTINUE if can_continue else OnInterruption.SURVIVES

    def _said(
        self, engine: str, said: Sequence[GenerationResult | TokenDelta], health: EngineHealth | None
    ) -> None:
        if health is not None:
            self.health[engine] = health
            self._newest_version = max(self._newest_version, health.version)
            self._router.look(engine, num_queued=health.num_queued, kv_usage=health.kv_usage)
        # Errors of the last engine are the answer, unless it returns: no other engine can answer.
        is_broken = health is not None and bool(health.error)
        is_given_up = is_broken and (self._engines_return or len(self._links) > 1)
        for item in said:
            if self._router.engine_of(item.request_id) != engine:
                continue
            if isinstance(item, TokenDelta):
                self._sampled(item)
            elif not (is_given_up and item.finish_reason is FinishReason.ERROR):
                self._answered(item)
        if is_given_up:
            self._give_up(engine)
        else:
            self._forget_if_drained(engine)
            self._dispatch()

    def _sampled(self, delta: TokenDelta) -> None:
        pending = self._pending.get(delta.request_id)
        if pending is not None:
            pending.since.append(delta)
            pending.report([delta])

    def _answered(self, result: GenerationResult) -> None:
        self._router.done(result.request_id)
        pending = self._pending.get(result.request_id)
        if pending is None:
            return
        reply = joined_result(pending.so_far, result)
        if result.finish_reason is not FinishReason.ABORT:
            self._resolve(pending, reply)
            return
        # A weight update ended the turn, not its caller.
        sampled = tokens_of(reply)
        pending.report(tokens_of(reply, start=pending.num_reported))
        self._resubmit(pending, sampled[0] if sampled else None, is_outdated=True)

    def _resubmit(self, pending: _Pending, sampled: TokenDelta | None, *, is_outdated: bool) -> None:
        """Submit a turn again that was cut short: with its tokens, or from its beginning.

        `is_outdated`: there are newer weights than those that sampled the last of its tokens. A reply with a
        structure or with penalties cannot continue from its tokens, since an engine takes the first token it
        samples for the reply's first.
        """
        pending.interruptions += is_outdated
        pending.so_far, pending.since = None, []
        restarts = is_outdated and self._on_interruption(pending) is OnInterruption.RESTART
        if sampled is not None and not restarts:
            ended = ended_by_its_tokens(pending.request, sampled)
            if ended is not None:
                self._resolve(pending, _ended(sampled, ended))
                return
            if pending.request.sampling.can_continue:
                pending.so_far = sampled
            elif pending.on_tokens is not None:
                self._resolve(pending, _failed(sampled, _TORN))
                return
        self._submit(pending)

    def _forget_if_drained(self, engine: str) -> None:
        if self._router.is_drained(engine):
            self._give_up(engine)

    def _resolve(self, pending: _Pending, result: GenerationResult) -> None:
        del self._pending[pending.request.request_id]
        if not pending.future.done():
            if pending.on_tokens is not None:
                pending.report(tokens_of(result, start=pending.num_reported))
            pending.future.set_result(result)

    def _ended(self, request_id: str, future: asyncio.Future[GenerationResult]) -> None:
        if future.cancelled() and self._pending.pop(request_id, None) is not None:
            self._abort(request_id)

    def _abort(self, request_id: str) -> None:
        engine = self._router.engine_of(request_id)
        if engine is not None:
            self._links[engine].abort([request_id])  # until it says so, the request takes its place there
        else:
            self._router.done(request_id)

    async def _watch(self, engine: str, link: EngineLink) -> None:
        """When the engine is gone, its requests go elsewhere, or wait for an engine to come back.

        Where only the link was lost, nobody else will notice and announce the engine again.
        """
        await link.lost()
        if self._links.get(engine) is not link:
            return
        self._give_up(engine)
        renewed = await link.renewed()
        if renewed is not None and engine not in self._links:
            self.add_engine(engine, renewed)

    def _give_up(self, engine: str) -> None:
        self._links.pop(engine).close()
        self.health.pop(engine, None)
        for request_id in self._router.remove_engine(engine):
            pending = self._pending.get(request_id)
            if pending is not None:
                sampled = pending.sampled()
                is_outdated = sampled is not None and sampled.version_spans[-1].version < self._newest_version
                self._resubmit(pending, sampled, is_outdated=is_outdated)
        self._dispatch()

    async def _sweep_overdue(self) -> None:
        """Answer what an engine never answered. Time held by a suspension does not count."""
        while True:
            await asyncio.sleep(min(1.0, self._turn_timeout_s / 4))
            oldest = _now() - self._turn_timeout_s
            overdue = [
                request_id
                for request_id, pending in self._pending.items()
                if pending.dispatched_at < oldest and self._router.engine_of(request_id) is not None
            ]
            for request_id in overdue:
                pending = self._pending[request_id]
                late = EngineFailure(
                    f"no reply within turn_timeout_s={self._turn_timeout_s:g}", ErrorKind.TURN_TIMEOUT
                )
                self._resolve(pending, _failed(pending.sampled() or _nothing(request_id), late))
                self._abort(request_id)


_CLOSED = EngineFailure("the proxy is closed")
_TORN = EngineFailure(
    "its engine was lost or updated, and a reply with a structure, penalties or a scored prompt cannot "
    "continue once it was partly read"
)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _failed(sampled: TokenDelta, failure: EngineFailure) -> GenerationResult:
    ended = _ended(sampled, FinishReason.ERROR)
    return replace(ended, error=failure.message, error_kind=failure.kind)


def _ended(sampled: TokenDelta, reason: FinishReason) -> GenerationResult:
    return GenerationResult(
        request_id=sampled.request_id,
        token_ids=sampled.token_ids,
        logprobs=sampled.logprobs,
        version_spans=sampled.version_spans,
        finish_reason=reason,
    )


def _nothing(request_id: str) -> TokenDelta:
    return TokenDelta(
        request_id=request_id,
        token_ids=np.zeros(0, np.int32),
        logprobs=np.zeros(0, np.float32),
        version_spans=(),
    )
