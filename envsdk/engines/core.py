"""What an engine writes: a core that samples replies. `EngineFront` makes an `Engine` of it.

    front: submit -> queue -> core.begin(reply) ... reply.take(tokens)* -> reply.end | answer | break_off

The front has the queue, refusals, pauses, versions, counters and failures. A core samples: on the event
loop, on a thread or in another process. A reply ends on the loop, once; everything later is ignored.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.failures import Boundary, EngineError, Failure
from envsdk.contracts.held import Held
from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.continuation import spans_within
from envsdk.engines.engine import (
    EngineAbilities,
    EngineFailure,
    ErrorKind,
    GenerationRequest,
    GenerationResult,
    PromptScores,
    TokenDelta,
    WeightReference,
)

Answer = asyncio.Future[GenerationResult]
NO_WEIGHTS = "its weights were dropped, and no new ones were loaded"


class CoreFailure(Exception):
    """Raise it while a reply is sampled to end the reply with this failure."""

    def __init__(self, message: str, kind: ErrorKind = ErrorKind.REQUEST_FAILED) -> None:
        super().__init__(message)
        self.failure = EngineFailure(message, kind)


def failure_of(error: Exception) -> EngineFailure:
    """Why a reply ended that raised `error` while it was sampled."""
    if isinstance(error, CoreFailure):
        return error.failure
    return EngineFailure(str(Failure.from_exception(Boundary.ENGINE, error)))


@dataclass(slots=True, eq=False)
class Reply:
    """One request's life in a core: open -> ended, exactly once.

    Owner: the front. The core adds tokens and ends it, on the event loop.
    """

    request: GenerationRequest
    future: Answer
    """Resolves with the result when the reply ends."""
    arrival: int = 0
    """Number of the request among all that were submitted."""
    on_end: Callable[[Reply], None] | None = None
    is_open: bool = True
    is_ending: bool = False
    """An abort was asked for."""
    token_ids: list[int] = field(default_factory=list, init=False)
    """Sampled so far. Of cores that use `take`, as `logprobs` and `spans`."""
    logprobs: list[float] = field(default_factory=list, init=False)
    spans: list[VersionSpan] = field(default_factory=list, init=False)
    sets: list[Sequence[int]] = field(default_factory=list, init=False)
    """Tokens that could be drawn at each place, where the request asks for them."""
    prompt_scores: PromptScores | None = field(default=None, init=False)
    """Where the request asks for them and they have come, as `experts`."""
    experts: NDArray[np.int16] | None = field(default=None, init=False)

    def take(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        version: int,
        sets: Sequence[Sequence[int]] = (),
    ) -> None:
        """Some more tokens, all of one version."""
        if not token_ids:
            return
        start = len(self.token_ids)
        self.token_ids += token_ids
        self.logprobs += logprobs
        self.sets += sets
        if self.spans and self.spans[-1].version == version:
            start = self.spans.pop().start
        self.spans.append(VersionSpan(version=version, start=start, end=len(self.token_ids)))

    def forget(self) -> None:
        """Drop the tokens: the reply begins again."""
        self.token_ids.clear()
        self.logprobs.clear()
        self.spans.clear()
        self.sets.clear()

    def since(self, start: int) -> TokenDelta:
        """The tokens from the `start`-th on."""
        end = len(self.token_ids)
        return TokenDelta(
            request_id=self.request.request_id,
            token_ids=np.array(self.token_ids[start:], np.int32),
            logprobs=np.array(self.logprobs[start:], np.float32),
            version_spans=spans_within(self.spans, start, end),
            support=Support.of(self.sets[start:]) if self.sets else None,
        )

    def end(self, reason: FinishReason) -> None:
        """End with the tokens taken."""
        if self.is_open:
            self.answer(self._result(reason))

    def break_off(self, failure: EngineFailure) -> None:
        """End with an error and the tokens taken."""
        if self.is_open:
            self.answer(self._result(FinishReason.ERROR, failure))

    def _result(self, reason: FinishReason, failure: EngineFailure | None = None) -> GenerationResult:
        sampled = self.token_ids, self.logprobs, self.spans
        result = result_of(self.request.request_id, reason, *sampled, failure, self.sets)
        return replace(result, prompt_scores=self.prompt_scores, experts=self.experts)

    def answer(self, result: GenerationResult) -> None:
        """End with a result that the core made itself."""
        if not self.is_open:
            return
        self.is_open = False
        if not self.future.done():
            self.future.set_result(result)
        if self.on_end is not None:
            self.on_end(self)


@dataclass(slots=True)
class Counters:
    """Since the core's start; the front adds what it counts itself."""

    num_tokens_sampled: int = 0
    """Those of running replies included."""
    num_prefilled_tokens: int = 0
    """Prompt tokens really computed."""
    kv_usage: float = 0.0
    """Share of the KV cache in use, 0 to 1."""
    num_waiting: int = 0
    """Replies that were begun and wait in the core."""


class Core(ABC):
    """Samples replies. Called on one event loop; every method but the coroutines returns at once.

    start -> (begin | abort | progress | freeze .. thaw | prepare .. swap | hold)* -> close

    What `abort`, `recall`, `freeze`, `thaw`, `swap` and `counters` raise breaks the engine.
    """

    abilities: EngineAbilities
    """May change in `start`."""
    max_open: int
    """Replies that may be open at a time; the front queues the others."""
    weight_device: str = "cpu"
    """As the engine's (`Engine.weight_device`); known when it has started."""

    _error = ""

    @property
    def error(self) -> str:
        """Why nothing can be sampled any more; empty when all is well."""
        return self._error

    async def start(self, broken: Callable[[str], None]) -> None:
        """Get ready to sample. Later, `broken(why)` ends all replies with an error, now and from then on."""
        return None

    def why_refused(self, request: GenerationRequest) -> EngineFailure | None:
        """Why this core cannot run a request that its abilities and context allow; None when it can."""
        return None

    @abstractmethod
    def begin(self, reply: Reply) -> None:
        """Start sampling. What it raises is the error of this reply alone."""

    @abstractmethod
    def abort(self, replies: Collection[Reply]) -> None:
        """End these with `FinishReason.ABORT`, at once or soon. They may be frozen, or ended meanwhile."""

    def ended(self, reply: Reply) -> None:
        """An open reply ended, in the core or in the front: free what the core holds of it."""
        return None

    async def recall(self) -> Collection[Reply]:
        """Give back the replies that wait in the core, with nothing sampled: a pause queues them again."""
        return ()

    async def progress(self, num_known: Mapping[Reply, int]) -> list[TokenDelta]:
        """What open replies have beyond so many tokens. Asked only with the ability `progress`."""
        return [reply.since(known) for reply, known in num_known.items() if len(reply.token_ids) > known]

    @abstractmethod
    async def freeze(self) -> None:
        """Sample nothing more until `thaw`. A reply that the core cannot freeze ends first."""

    @abstractmethod
    async def thaw(self) -> None:
        """Continue the replies where they are."""

    @abstractmethod
    async def prepare(self, weights: WeightReference) -> Any:
        """Read and check new weights while replies are sampled. What it raises changes nothing.

        A stream is read once, on a thread: reading it blocks.
        """

    @abstractmethod
    async def swap(self, prepared: Any, version: int, *, is_frozen: bool) -> None:
        """Sample with what `prepare` returned, from the next token on; nothing is begun meanwhile.

        `is_frozen`: a pause holds the core, and it stays frozen.
        """

    async def hold(self, held: Held) -> None:
        """As `Engine.hold`; frozen. What it raises breaks the engine."""
        raise EngineError("it cannot give its memory back: set actor_infer.offload to none")

    def discard(self, prepared: Any) -> None:
        """The update is over: free what `prepare` returned."""
        return None

    @abstractmethod
    def counters(self) -> Counters:
        """Now. Does not block."""

    @abstractmethod
    async def close(self) -> None:
        """End open replies with `FinishReason.ABORT` and free everything. Called once, also after errors."""


class TaskCore(Core):
    """A core with one asyncio task for each reply."""

    def __init__(self) -> None:
        self.tasks: dict[Reply, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def sample(self, reply: Reply) -> None:
        """Sample until the reply ends. What it raises is the error of this reply alone."""

    def begin(self, reply: Reply) -> None:
        task = self.tasks[reply] = asyncio.ensure_future(self._sample(reply))
        task.add_done_callback(lambda _: self._sampled(reply))

    async def _sample(self, reply: Reply) -> None:
        try:
            await self.sample(reply)
        except Exception as error:  # noqa: BLE001 - the engine's boundary: it becomes the reply's error
            reply.break_off(self.failure_of(reply, error))

    def _sampled(self, reply: Reply) -> None:
        self.tasks.pop(reply, None)
        reply.break_off(EngineFailure("the engine ended the reply without a reason"))

    def failure_of(self, reply: Reply, error: Exception) -> EngineFailure:
        """Why the reply ended that raised `error`."""
        return failure_of(error)

    def abort(self, replies: Collection[Reply]) -> None:
        for reply in replies:
            reply.end(FinishReason.ABORT)

    def ended(self, reply: Reply) -> None:
        task = self.tasks.get(reply)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Let it run, until `end_tasks` at the latest."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def end_tasks(self) -> None:
        """Wait for all tasks: when the replies are ended or their tasks canceled."""
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        await asyncio.gather(*self._background, return_exceptions=True)


def result_of(
    request_id: str,
    reason: FinishReason,
    token_ids: Sequence[int] = (),
    logprobs: Sequence[float] = (),
    version_spans: Collection[VersionSpan] = (),
    failure: EngineFailure | None = None,
    sets: Sequence[Sequence[int]] = (),
) -> GenerationResult:
    """What was sampled, as arrays; `failure` is given with the reason `error`."""
    return GenerationResult(
        request_id=request_id,
        token_ids=np.array(token_ids, np.int32),
        logprobs=np.array(logprobs, np.float32),
        version_spans=tuple(version_spans),
        finish_reason=reason,
        error=failure.message if failure is not None else "",
        error_kind=failure.kind if failure is not None else ErrorKind.REQUEST_FAILED,
        support=Support.of(sets) if sets else None,
    )
