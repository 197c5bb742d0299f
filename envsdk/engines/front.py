"""The front of every engine: queue, refusals, pauses, updates, failures and counters around a `Core`.

submit -> refused | waiting (paused, swapping or full) -> begun in the core -> answered, exactly once
pause:   nothing is begun; running replies freeze, end with `abort` or finish, by the mode
update:  prepare (while replies are sampled) -> swap -> the next tokens carry the new version

engine = EngineFront(core, name="mine", sequence_length=4096)
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from envsdk.base.settings.validation import validated
from envsdk.base.store.model_files import require_model_folder
from envsdk.contracts.failures import ConfigurationError, EngineError, describe_error
from envsdk.contracts.held import Held
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.core import Answer, Core, Counters, Reply, failure_of
from envsdk.engines.engine import (
    Engine,
    EngineConfig,
    EngineFailure,
    EngineHealth,
    GenerationRequest,
    PauseMode,
    TokenDelta,
    WeightReference,
)
from envsdk.engines.refusals import in_use, refused, why_impossible
from envsdk.engines.settings import EngineSettings

SettingsT = TypeVar("SettingsT", bound=EngineSettings)


class WaitingReplies:
    """Lowest priority number first; among equals, first come first served. Pure."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Reply]] = []
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._ids

    def push(self, reply: Reply) -> None:
        """No other reply to a request of this id waits."""
        heapq.heappush(self._heap, (reply.request.priority, reply.arrival, reply))
        self._ids.add(reply.request.request_id)

    def pop(self) -> Reply:
        """The next one. IndexError when none waits."""
        reply = heapq.heappop(self._heap)[2]
        self._ids.discard(reply.request.request_id)
        return reply

    def remove(self, request_ids: Iterable[str] | None = None) -> list[Reply]:
        """Take out those of these requests, or all; unknown ids are ignored."""
        removed = self._ids if request_ids is None else self._ids.intersection(request_ids)
        if not removed:
            return []
        gone = [entry[2] for entry in self._heap if entry[2].request.request_id in removed]
        self._heap = [entry for entry in self._heap if entry[2].request.request_id not in removed]
        heapq.heapify(self._heap)
        self._ids = self._ids - removed
        return gone


class EngineFront(Engine):
    """An engine around a core. Owner: one event loop."""

    def __init__(self, core: Core, *, name: str, sequence_length: int) -> None:
        """`name`: of the engine, for messages."""
        self.core = core
        self.abilities = core.abilities
        self._name = name
        self._sequence_length = sequence_length
        self._arrivals = itertools.count()
        self._waiting = WaitingReplies()
        self._open: dict[str, Reply] = {}
        """Begun in the core, by request id."""
        self._changed = asyncio.Event()
        """A reply ended, or a pause did."""
        self._version = 0
        self._num_prompt_tokens = 0
        self._error = ""
        self._is_started = False
        self._is_paused = False
        self._is_frozen = False
        """A pause holds the core."""
        self._is_swapping = False
        self._is_dispatching = False
        self._is_closed = False
        self._update_lock = asyncio.Lock()
        self._core_lock = asyncio.Lock()
        """Held while the core is frozen, thawed or given weights."""

    async def start(self) -> None:
        try:
            await self.core.start(self._fail)
        except BaseException:
            await self.close()
            raise
        self.abilities = self.core.abilities
        self.weight_device = self.core.weight_device
        self._is_started = True
        self._dispatch()

    def submit(self, request: GenerationRequest) -> Answer:
        future: Answer = asyncio.get_running_loop().create_future()
        if failure := self._why_refused(request):
            future.set_result(refused(request.request_id, failure))
            return future
        self._num_prompt_tokens += len(request.prompt_ids)
        reply = Reply(request, future, next(self._arrivals), self._ended)
        if not self._waiting and self._may_begin():
            self._begin(reply)
        else:
            self._waiting.push(reply)
        if not future.done():
            # Still open: it was canceled, and nobody waits for it any more.
            future.add_done_callback(lambda _: self.abort([request.request_id]) if reply.is_open else None)
        return future

    def _why_refused(self, request: GenerationRequest) -> EngineFailure | None:
        if error := self._error or self.core.error:
            return EngineFailure(error)
        if request.request_id in self._open or request.request_id in self._waiting:
            return in_use(request.request_id)
        impossible = why_impossible(request, sequence_length=self._sequence_length, abilities=self.abilities)
        return impossible or self.core.why_refused(request)

    def _may_begin(self) -> bool:
        return (
            len(self._open) < self.core.max_open
            and self._is_started
            and not (self._is_paused or self._is_swapping or self._error or self.core.error)
        )

    def _begin(self, reply: Reply) -> None:
        self._open[reply.request.request_id] = reply
        try:
            self.core.begin(reply)
        except Exception as error:  # noqa: BLE001 - the core's boundary: it becomes the reply's error
            reply.break_off(failure_of(error))

    def _dispatch(self) -> None:
        if self._is_dispatching:
            return
        self._is_dispatching = True  # a reply may end, and would dispatch, while it is begun
        try:
            while self._waiting and self._may_begin():
                self._begin(self._waiting.pop())
        finally:
            self._is_dispatching = False

    def _ended(self, reply: Reply) -> None:
        if self._open.pop(reply.request.request_id, None) is not None:
            self.core.ended(reply)
        if self._is_paused:
            self._changed.set()
        if self._waiting:
            self._dispatch()

    def abort(self, request_ids: Sequence[str]) -> None:
        for reply in self._waiting.remove(request_ids):
            reply.end(FinishReason.ABORT)
        found = (self._open.get(request_id) for request_id in request_ids)
        self._abort([reply for reply in found if reply is not None])

    def _abort(self, replies: Iterable[Reply]) -> None:
        doomed = [reply for reply in replies if not reply.is_ending]
        for reply in doomed:
            reply.is_ending = True
        if doomed:
            with self._breaks("end replies"):
                self.core.abort(doomed)

    async def progress(self, num_known: Mapping[str, int]) -> list[TokenDelta]:
        known = {reply: num_known[name] for name in num_known if (reply := self._open.get(name)) is not None}
        return await self.core.progress(known) if known and self._is_alive else []

    async def pause(self, mode: PauseMode) -> None:
        self._is_paused = True
        # A pause may be canceled; a reply that comes back must not be lost with it.
        await asyncio.shield(asyncio.ensure_future(self._recall()))
        if mode is PauseMode.WAIT:
            await self._thaw()
            await self._until_ended(self._open.values())
            return
        ending = []
        if mode is PauseMode.ABORT:
            ending = [reply for reply in self._open.values() if not reply.request.survives_weight_update]
            self._abort(ending)
        if self._open or mode is PauseMode.KEEP:
            await self._freeze()
        await self._until_ended(ending)

    async def _recall(self) -> None:
        """Queue again what waits in the core."""
        if self._is_alive:
            with self._breaks("give replies back"):
                for reply in await self.core.recall():
                    if reply.is_ending:  # aborted while it came back
                        reply.end(FinishReason.ABORT)
                    elif reply.is_open:
                        del self._open[reply.request.request_id]
                        self._waiting.push(reply)
                        self._dispatch()  # the pause may be over

    async def resume(self) -> None:
        self._is_paused = False
        self._changed.set()
        await self._thaw()
        self._dispatch()

    async def _freeze(self) -> None:
        async with self._core_lock:
            if self._is_paused and not self._is_frozen and self._is_alive:
                self._is_frozen = True
                with self._breaks("freeze"):
                    await self.core.freeze()

    async def _thaw(self) -> None:
        async with self._core_lock:
            if self._is_frozen and self._is_alive:
                with self._breaks("thaw"):
                    await self.core.thaw()
                self._is_frozen = False

    async def _until_ended(self, replies: Iterable[Reply]) -> None:
        """Or until the pause is over."""
        left = list(replies)
        while self._is_paused and (left := [reply for reply in left if reply.is_open]):
            self._changed.clear()
            await self._changed.wait()

    async def load_weights(self, weights: WeightReference, version: int) -> None:
        async with self._update_lock:
            self._check_alive("cannot take weights")
            prepared = await self.core.prepare(weights)
            try:
                async with self._core_lock:
                    self._check_alive("ended while weights were loaded")
                    self._is_swapping = True
                    await self._swap(prepared, version)
            finally:
                self._is_swapping = False
                self._dispatch()
                self.core.discard(prepared)

    async def _swap(self, prepared: object, version: int) -> None:
        try:
            await self.core.swap(prepared, version, is_frozen=self._is_frozen)
        except BaseException as error:
            why = describe_error(error) if not isinstance(error, asyncio.CancelledError) else "canceled"
            self._fail(f"weights {version} did not arrive, and part of them may be in place: {why}")
            if isinstance(error, Exception):
                raise EngineError(f"engine `{self._name}`: {self._error}") from error
            raise
        self._version = version

    async def hold(self, held: Held) -> None:
        async with self._update_lock, self._core_lock:
            self._check_alive("cannot take its turn on the device")
            with self._breaks(f"hold {held.name.lower()}"):
                await self.core.hold(held)
            self._check_alive("cannot take its turn on the device")

    @property
    def _is_alive(self) -> bool:
        return self._is_started and not (self._error or self.core.error)

    def _check_alive(self, what: str) -> None:
        if not self._is_alive:
            why = self._error or self.core.error or "it is not started"
            raise EngineError(f"engine `{self._name}` {what}: {why}")

    def health(self) -> EngineHealth:
        counters = Counters()
        with self._breaks("count"):
            counters = self.core.counters()
        return EngineHealth(
            version=self._version,
            num_running=max(0, len(self._open) - counters.num_waiting),
            num_queued=len(self._waiting) + counters.num_waiting,
            num_tokens_sampled=counters.num_tokens_sampled,
            num_prompt_tokens=self._num_prompt_tokens,
            num_prefilled_tokens=counters.num_prefilled_tokens,
            kv_usage=counters.kv_usage,
            error=self._error or self.core.error,
        )

    @contextmanager
    def _breaks(self, doing: str) -> Iterator[None]:
        """An error of the core in here breaks it: nobody knows what it still samples."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the core's boundary: it becomes every reply's error
            self._fail(f"the engine cannot {doing}: {describe_error(error)}")

    def _fail(self, why: str) -> None:
        """The core is broken: end every reply, now and from now on, with this error."""
        self._error = self._error or why
        failure = EngineFailure(self._error)
        for reply in [*self._open.values(), *self._waiting.remove()]:
            reply.break_off(failure)
        self._changed.set()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._error = self._error or "the engine is closed"
        try:
            await self.core.close()
        finally:
            for reply in [*self._open.values(), *self._waiting.remove()]:
                reply.end(FinishReason.ABORT)


def settings_of(model: type[SettingsT], config: EngineConfig, name: str) -> SettingsT:
    """What `config` sets of the engine `name`. ConfigurationError, also without room for a reply."""
    if config.sequence_length < 2:
        raise ConfigurationError(f"sequence_length is {config.sequence_length}; it must be at least 2")
    return validated(model, config.strategy_config, f"strategy_config of engine `{name}`")


def model_of(config: EngineConfig, name: str) -> Path:
    """The folder of the engine's model. ConfigurationError when there is none."""
    if config.model is None:
        raise ConfigurationError(f"engine `{name}` needs a model: set `pretrain` to a Hugging Face folder")
    require_model_folder(config.model)
    return config.model
