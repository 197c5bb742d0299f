"""Engines that are nothing but arithmetic on a clock without waiting: whatever they say can be checked.

A token says where it stands, its log-probability under which weights it was sampled; so a reply that was
begun here and ended there is right, or it shows.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.engine import EngineHealth, GenerationRequest, GenerationResult, TokenDelta
from envsdk.engines.proxy import Deliver, EngineLink

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

STOP = 0
REPORT_S = 0.5


class _Selector(selectors.SelectSelector):
    """Lets the time pass that it would have waited for."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen again"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers are due as soon as nothing else is to be done."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def skip(self, seconds: float) -> None:
        """Let time pass as if the process were stopped: no timer is heeded meanwhile."""
        self._clock.now += seconds


def run(scenario: Coroutine[Any, Any, ResultT]) -> ResultT:
    """`scenario` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(scenario)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test whose `sleep` takes no time, however busy the machine is."""

    @wraps(test)
    def play(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return play


def token_at(position: int) -> int:
    """The token at this place of prompt and reply."""
    return STOP if position % 61 == 0 else 1 + position % 50


def structured_token_at(index: int) -> int:
    """The token at this place of a reply with a structure, which an engine takes from its beginning."""
    return STOP if index == 45 else 60 + index % 30


def logprob_under(version: int) -> float:
    return -1.0 - version


def assert_right(result: GenerationResult, asked: GenerationRequest) -> None:
    """The reply is the one and only that the request has, each token with the weights that sampled it."""
    start, count = len(asked.prompt_ids), len(result.token_ids)
    assert result.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), result.error
    is_bound = asked.sampling.structure is not None
    expected = [structured_token_at(i) if is_bound else token_at(start + i) for i in range(count)]
    assert result.token_ids.tolist() == expected
    assert STOP not in result.token_ids[:-1].tolist()
    assert (result.token_ids[-1] == STOP) == (result.finish_reason is FinishReason.STOP)
    assert count == asked.sampling.max_new_tokens or result.finish_reason is FinishReason.STOP
    versions = [span.version for span in result.version_spans for _ in range(span.start, span.end)]
    assert result.logprobs.tolist() == [logprob_under(version) for version in versions]


@dataclass
class _Turn:
    link: SimulatedLink
    request: GenerationRequest
    versions: list[int] = field(default_factory=list)
    """Of the tokens so far."""
    num_reported: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_ids) + len(self.versions)

    def token(self, index: int) -> int:
        if self.request.sampling.structure is not None:
            return structured_token_at(index)
        return token_at(len(self.request.prompt_ids) + index)

    def delta(self, start: int) -> TokenDelta:
        versions = self.versions[start:]
        ends = [i + 1 for i in range(len(versions)) if versions[i : i + 2] != [versions[i]] * 2]
        return TokenDelta(
            request_id=self.request.request_id,
            token_ids=np.array([self.token(start + i) for i in range(len(versions))], np.int32),
            logprobs=np.array([logprob_under(version) for version in versions], np.float32),
            version_spans=tuple(
                VersionSpan(version=versions[end - 1], start=begin, end=end)
                for begin, end in zip([0, *ends], ends, strict=False)
            ),
        )


class SimulatedEngine:
    """One token for every running turn each `token_s`, with a KV cache of `kv_tokens`.

    starts at `version`; `update` gives it another one; `hang` and `kill` end it.
    """

    def __init__(
        self, *, version: int = 0, token_s: float = 0.05, max_running: int = 8, kv_tokens: int = 600
    ) -> None:
        self.version = version
        self.is_dead = self.is_hung = False
        self.num_cuts: Counter[str] = Counter()
        """How often updates cut a turn short."""
        self._token_s, self._max_running, self._kv_tokens = token_s, max_running, kv_tokens
        self._arrivals = itertools.count()
        self._queue: list[tuple[int, int, _Turn]] = []
        self._running: dict[str, _Turn] = {}
        self._links: list[SimulatedLink] = []
        self._timer: asyncio.TimerHandle | None = None
        self._next_report = 0.0

    @property
    def num_open(self) -> int:
        return len(self._running) + len(self._queue)

    def link(self) -> SimulatedLink:
        self._links.append(SimulatedLink(self))
        return self._links[-1]

    def submit(self, link: SimulatedLink, request: GenerationRequest) -> None:
        assert request.sampling.max_new_tokens > 0
        if not self.is_dead and not self.is_hung:
            heapq.heappush(self._queue, (request.priority, next(self._arrivals), _Turn(link, request)))
            self._admit()

    def abort(self, request_ids: Sequence[str]) -> None:
        if self.is_dead or self.is_hung:
            return
        for turn in [turn for _, _, turn in self._queue if turn.request.request_id in request_ids]:
            self._queue = [entry for entry in self._queue if entry[2] is not turn]
            heapq.heapify(self._queue)
            self._end(turn, FinishReason.ABORT)
        for request_id in request_ids:
            if turn := self._running.pop(request_id, None):  # type: ignore[assignment]
                self._end(turn, FinishReason.ABORT)
        self._admit()

    def update(self, version: int, *, restart: bool) -> None:
        """New weights between two tokens. `restart` cuts running turns short."""
        if restart:
            cut = [name for name, turn in self._running.items() if not turn.request.survives_weight_update]
            self.num_cuts.update(cut)
            self.abort(cut)
        self.version = version

    def hang(self) -> None:
        self.is_hung = True

    def kill(self) -> None:
        self.is_dead = True
        for link in self._links:
            link.is_lost.set()

    def health(self) -> EngineHealth:
        return EngineHealth(
            version=self.version,
            num_running=len(self._running),
            num_queued=len(self._queue),
            num_tokens_sampled=0,
            kv_usage=self._kv_used() / self._kv_tokens,
        )

    def _kv_used(self) -> int:
        return sum(turn.num_tokens for turn in self._running.values())

    def _admit(self) -> None:
        while self._queue and len(self._running) < self._max_running:
            turn = self._queue[0][2]
            if self._running and self._kv_used() + turn.num_tokens > self._kv_tokens:
                break
            heapq.heappop(self._queue)
            self._running[turn.request.request_id] = turn
        if self._running and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._token_s, self._step)

    def _step(self) -> None:
        self._timer = None
        if self.is_dead or self.is_hung:
            return
        for request_id, turn in list(self._running.items()):
            turn.versions.append(self.version)
            sampling = turn.request.sampling
            if turn.token(len(turn.versions) - 1) == STOP:
                self._end(self._running.pop(request_id), FinishReason.STOP)
            elif len(turn.versions) >= sampling.max_new_tokens:
                self._end(self._running.pop(request_id), FinishReason.LENGTH)
        now = asyncio.get_running_loop().time()
        if now >= self._next_report:
            self._next_report = now + REPORT_S
            for turn in self._running.values():
                if len(turn.versions) > turn.num_reported:
                    turn.link.say([turn.delta(turn.num_reported)], self.health())
                    turn.num_reported = len(turn.versions)
        self._admit()

    def _end(self, turn: _Turn, reason: FinishReason) -> None:
        sampled = turn.delta(0)
        result = GenerationResult(
            request_id=turn.request.request_id,
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            version_spans=sampled.version_spans,
            finish_reason=reason,
        )
        turn.link.say([result], self.health())


class SimulatedLink(EngineLink):
    """One proxy's way to an engine."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self.engine = engine
        self.sent: list[GenerationRequest] = []
        self.is_lost = asyncio.Event()
        self.is_closed = False
        self._deliver: Deliver | None = None

    def connect(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def send(self, request: GenerationRequest) -> None:
        assert not self.is_closed
        self.sent.append(request)
        self.engine.submit(self, request)

    def abort(self, request_ids: Sequence[str]) -> None:
        assert not self.is_closed
        self.engine.abort(request_ids)

    def say(self, said: Sequence[GenerationResult | TokenDelta], health: EngineHealth) -> None:
        """In order, and never while the other side is speaking."""
        asyncio.get_running_loop().call_soon(self._heard, said, health)

    def _heard(self, said: Sequence[GenerationResult | TokenDelta], health: EngineHealth) -> None:
        if not self.is_closed:
            assert self._deliver is not None
            self._deliver(said, health)

    async def lost(self) -> str:
        await self.is_lost.wait()
        return "lost"

    def close(self) -> None:
        self.is_closed = True
