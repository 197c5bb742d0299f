"""Shell: one engine in a Ray actor, and the link to it.

EnvWorker: InferenceProxy -> RayLink ==long poll==> EngineHost -> Engine
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from envsdk.base.net.long_poll import LongPoll, Outbox
from envsdk.base.plugins import load_plugin
from envsdk.base.processes.garbage import collect_rarely, collect_when_grown, importing
from envsdk.base.store.travel import DriverFiles
from envsdk.contracts.held import Held
from envsdk.engines.engine import (
    Engine,
    EngineAbilities,
    EngineConfig,
    EngineHealth,
    GenerationRequest,
    GenerationResult,
    PauseMode,
    TokenDelta,
)
from envsdk.engines.partial_results import REPORT_S, STREAM_S, ProgressWatch
from envsdk.engines.proxy import Deliver, EngineLink
from envsdk.engines.wire import (
    PackedRequests,
    PackedResults,
    pack_requests,
    pack_results,
    unpack_requests,
    unpack_results,
)
from envsdk.weights.buckets import Chunk, UpdateInterrupted
from envsdk.weights.delta import WeightBase
from envsdk.weights.device_memory import card_of
from envsdk.weights.receiver import WeightReceiver
from envsdk.weights.transports import Payload


class BusyStretches:
    """When an engine had something to do; gaps too short to see are closed."""

    MIN_GAP_S = 0.02
    MOST_STRETCHES = 10_000
    """Kept between two calls of `drain`; then gaps are closed, however long."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._num_open = 0
        self._stretches: list[tuple[float, float]] = []
        self._since = 0.0

    def begin(self) -> None:
        """A request came."""
        if self._num_open == 0:
            self._since = self._clock()
            is_full = len(self._stretches) >= self.MOST_STRETCHES
            if is_full or (self._stretches and self._since - self._stretches[-1][1] < self.MIN_GAP_S):
                self._since = self._stretches.pop()[0]
        self._num_open += 1

    def end(self) -> None:
        """A request was answered."""
        self._num_open -= 1
        if self._num_open == 0:
            self._stretches.append((self._since, self._clock()))

    def drain(self) -> list[tuple[float, float]]:
        """The stretches since the last call; an open one is cut here."""
        stretches, self._stretches = self._stretches, []
        if self._num_open:
            now = self._clock()
            stretches.append((self._since, now))
            self._since = now
        return stretches


_Outbox = Outbox[GenerationResult | TokenDelta]
_Reports = Sequence[tuple[_Outbox, TokenDelta]]


@dataclass(slots=True)
class _Client:
    outbox: _Outbox = field(default_factory=Outbox)
    open_requests: set[str] = field(default_factory=set)


RENEW_S = 1.0
"""Between two questions whether an engine can be reached again."""
_PAUSES = {"continue": PauseMode.KEEP, "finish": PauseMode.WAIT, "restart": PauseMode.ABORT}
"""`continue` swaps between two tokens, `finish` lets running turns end, `restart` cuts them short."""


@dataclass(frozen=True, slots=True)
class _Update:
    receiver: WeightReceiver
    loading: asyncio.Future[None]


class EngineHost:
    """Body of the actor: owns the engine and an outbox per client. `start` comes first."""

    _engine: Engine
    _running: ProgressWatch[_Outbox]
    _watched: ProgressWatch[_Outbox]

    def __init__(self, strategy_name: str, config: EngineConfig, files: DriverFiles | None = None) -> None:
        """`files` may have the model, should this machine lack it."""
        self._strategy_name = strategy_name
        self._config = config
        self._files = files
        self._clients: dict[str, _Client] = {}
        self._served = ""
        self._waiting: list[tuple[str, GenerationRequest]] = []
        self._busy = BusyStretches()
        self._updates: dict[str, _Update] = {}
        self._weight_base = WeightBase()
        self._watches: list[asyncio.Task[None]] = []
        self._held = Held.ALL

    async def start(self) -> None:
        """Load the model and begin. Not in the constructor, whose errors Ray turns into text."""
        with importing():
            engine_class: type[Engine] = load_plugin("envsdk.engines", self._strategy_name)
        config = self._config
        if self._files is not None and config.model is not None:
            config = replace(config, model=await asyncio.to_thread(self._files.here, config.model))
        engine = self._engine = engine_class.create(config)
        await engine.start()
        self._running = ProgressWatch(engine, self._leave_quietly, period_s=REPORT_S, spare_short_turns=True)
        self._watched = ProgressWatch(engine, self._leave, period_s=STREAM_S, spare_short_turns=False)
        collect_rarely()
        self._watches = [asyncio.ensure_future(collect_when_grown())]
        if engine.abilities.progress:
            watches = (self._running, self._watched)
            self._watches += [asyncio.ensure_future(watch.run()) for watch in watches]

    async def exchange(
        self, client: str, number: int, packed: PackedRequests, aborts: Sequence[str]
    ) -> PackedResults:
        """Take requests in and wait for any results of this client.

        A client that ends in `#N` is a process's Nth incarnation: what earlier ones asked for is aborted.
        """
        known = self._clients.get(client)
        if known is None:
            if self._has_later_incarnation(client):
                return pack_results([], self._engine.health())
            self._forget_earlier_incarnations(client)
            known = self._clients[client] = _Client()
        outbox = known.outbox
        for request in unpack_requests(packed):
            self._take(client, request)
        if aborts:
            self._engine.abort(aborts)
        results = await outbox.collect(number)
        return pack_results(results, self._engine.health())

    async def serve_only(self, clients: str) -> None:
        """Hold up requests of clients whose names do not begin so; with "" take in those held, too."""
        self._served = clients
        waiting, self._waiting = self._waiting, []
        for client, request in waiting:
            if client in self._clients:
                self._take(client, request)

    def _take(self, client: str, request: GenerationRequest) -> None:
        if client.startswith(self._served):
            self._submit(request, self._clients[client])
        else:
            self._waiting.append((client, request))

    def _submit(self, request: GenerationRequest, client: _Client) -> None:
        watch = self._watched if request.stream else self._running

        def answered(done: asyncio.Future[GenerationResult]) -> None:
            self._busy.end()
            result = done.result()
            client.open_requests.discard(result.request_id)
            watch.ended(result.request_id)
            client.outbox.put(result)

        self._busy.begin()
        client.open_requests.add(request.request_id)
        watch.opened(request.request_id, client.outbox)
        self._engine.submit(request).add_done_callback(answered)

    def _leave(self, reports: _Reports) -> None:
        for outbox, delta in reports:
            outbox.put(delta)

    def _leave_quietly(self, reports: _Reports) -> None:
        """Sent with the next answer or the next reports: a call for each would cost more."""
        for client in self._clients.values():
            client.outbox.flush()
        for outbox, delta in reports:
            outbox.put_quietly(delta)

    def _incarnations(self, client: str) -> list[str]:
        """The known ones of its process."""
        process, found, _ = client.rpartition("#")
        return [name for name in self._clients if found and name.rpartition("#")[0] == process]

    def _has_later_incarnation(self, client: str) -> bool:
        """Then the call is one of a dead process, which Ray held up."""
        return any(_incarnation(name) > _incarnation(client) for name in self._incarnations(client))

    def _forget_earlier_incarnations(self, client: str) -> None:
        for name in self._incarnations(client):
            gone = self._clients.pop(name)
            self._engine.abort(list(gone.open_requests))
            gone.outbox.close()

    async def begin_update(self, update_id: str, version: int, mode: str, delta: bool = False) -> str:
        """Make ready for the buckets of `version`; what an earlier update left unfinished is dropped.

        With `delta` the buckets hold encoded tensors, and the answer is the update that they may differ from:
        "" when there is none. Replies continue while buckets come, if the engine can (`inflight_update`).
        """
        for earlier in list(self._updates):
            await self.abandon_update(earlier)
        engine = self._engine

        takes_turn = self._held is not Held.ALL  # and stays paused

        async def before_swap() -> None:
            if mode != "continue" and not takes_turn:
                await engine.pause(_PAUSES[mode])

        base = self._weight_base if delta else None
        known = "" if base is None else base.version
        receiver = WeightReceiver(before_end=before_swap, base=base, device=engine.weight_device)
        in_flight = engine.abilities.inflight_update

        async def load() -> None:
            try:
                if not in_flight and not takes_turn:
                    await engine.pause(_PAUSES[mode])
                await engine.load_weights(receiver.stream(), version)
                if base is not None:
                    base.complete(update_id)
            finally:
                receiver.close()
                if (not in_flight or mode != "continue") and not takes_turn:
                    await engine.resume()

        self._updates[update_id] = _Update(receiver, asyncio.ensure_future(load()))
        return known

    async def take_bucket(
        self, update_id: str, number: int, chunks: tuple[Chunk, ...], num_bytes: int, payload: Payload
    ) -> bool:
        """Bucket `number` of the update. Returns when it has been read; False when it never will be.

        `complete_update` or `abandon_update` then raises why not.
        """
        update = self._updates.get(update_id)
        return update is not None and await update.receiver.put(number, chunks, num_bytes, payload)

    async def complete_update(self, update_id: str) -> None:
        """All buckets were taken: swap. Raises what the engine raised; it then has its earlier weights."""
        update = self._updates[update_id]
        update.receiver.end()
        try:
            await update.loading
        finally:
            self._updates.pop(update_id, None)

    async def abandon_update(self, update_id: str) -> str:
        """The rest will not come. Raises what stopped the engine before, if anything did.

        Returns why what came did not reach it, "" when it did.
        """
        update = self._updates.get(update_id)
        if update is None:
            return ""
        stopped_before = update.loading.done()
        if not update.receiver.is_ended:
            update.receiver.interrupt()
        try:
            await update.loading
        except UpdateInterrupted as error:
            return str(error) if stopped_before else ""
        finally:
            self._updates.pop(update_id, None)
        return ""

    async def hold(self, held: Held) -> None:
        """What the engine holds of its device from now on; it is paused meanwhile, unless that is all."""
        if held is not Held.ALL:
            self._held = held
            await self._engine.pause(PauseMode.KEEP)
        await self._engine.hold(held)
        if held is Held.ALL:
            self._held = held
            await self._engine.resume()

    def abilities(self) -> EngineAbilities:
        """The engine's."""
        return self._engine.abilities

    def node_id(self) -> str:
        """The node of the cluster this engine is on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def card(self) -> str:
        """UUID of the card that the engine takes weights on; "" for main memory."""
        return card_of(self._engine.weight_device)

    async def health(self) -> EngineHealth:
        return self._engine.health()

    async def busy_stretches(self) -> list[tuple[float, float]]:
        """When at least one request was open, since the last call: `(start, end)` in Unix seconds."""
        return self._busy.drain()

    async def close(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await self._engine.close()


def _incarnation(client: str) -> tuple[int, ...]:
    return tuple(int(number) for number in client.rpartition("#")[2].split("."))


class RayLink(EngineLink):
    """To an `EngineHost` actor, by long poll.

    A call that fails while the actor lives loses the link: nobody knows which messages have arrived. The next
    one has the name of a later incarnation, so the engine forgets what was asked for by this one.
    """

    def __init__(self, client: str, actor: Any) -> None:
        self._client = client
        self._actor = actor
        self._deliver: Deliver | None = None
        self._poll: LongPoll[GenerationRequest | str, PackedResults] = LongPoll(
            self._exchange, self._on_reply
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def num_calls(self) -> int:
        return self._poll.num_calls

    def connect(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._task = asyncio.ensure_future(self._poll.run())

    def send(self, request: GenerationRequest) -> None:
        self._poll.send(request)

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._poll.send(request_id)

    def _exchange(self, number: int, items: list[GenerationRequest | str]) -> Any:
        requests = [item for item in items if isinstance(item, GenerationRequest)]
        aborts = [item for item in items if isinstance(item, str)]
        return self._actor.exchange.remote(self._client, number, pack_requests(requests), aborts)

    def _on_reply(self, packed: PackedResults) -> None:
        if self._deliver is not None:
            self._deliver(unpack_results(packed), packed.health)

    async def lost(self) -> str:
        assert self._task is not None, "connect first"
        done, _ = await asyncio.wait({self._task})
        error = next(iter(done)).exception() if not self._task.cancelled() else None
        return str(error) if error else "closed"

    async def renewed(self) -> EngineLink | None:
        from ray.exceptions import ActorDiedError, OutOfMemoryError, RayError

        assert self._task is not None, "connect first"
        if self._task.cancelled():
            return None
        while True:
            try:
                await self._actor.health.remote()
            except (ActorDiedError, OutOfMemoryError):
                return None
            except RayError:
                await asyncio.sleep(RENEW_S)
            else:
                break
        process, _, incarnation = self._client.rpartition("#")
        number, _, renewal = incarnation.partition(".")
        return RayLink(f"{process}#{number}.{int(renewal or 0) + 1}", self._actor)

    def close(self) -> None:
        self._deliver = None
        if self._task is not None:
            self._task.cancel()
