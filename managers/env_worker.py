"""Shell: a Ray actor that hosts many TrajEnvManagers in one event loop.

    run -> managers loop ... -> Close from the scheduler -> run returns

Leases come and trajectories go by one long poll with the scheduler; replies by one with each engine.

An environment that overruns its limit in the event loop, or on a thread with the interpreter's lock, holds
up every other episode here. A watcher kills the process then and leaves a note which environment it was; the
scheduler records that one episode as failed, replaces the worker and lets the others run elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from envsdk.chat import ChatTokenizer
from envsdk.inference.engine_host import RayLink
from envsdk.inference.engine_policy import EnginePolicy
from envsdk.inference.proxy import InferenceProxy
from envsdk.inference.sampling import SamplingParams
from envsdk.managers.traj_env_manager import EpisodeOrder, LeaseSource, TagSetup, TrajEnvManager
from envsdk.net.long_poll import LongPoll
from envsdk.plugins import load_plugin
from envsdk.processes.call_watch import CALLS
from envsdk.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """Everything one worker is told when it is started."""

    slots: Mapping[str, str]
    """Slot id -> tag."""
    setups: Mapping[str, TagSetup]
    model: Path
    """Folder with the tokenizer and its chat template."""
    generating: SamplingParams
    sequence_length: int
    turn_timeout_s: float
    engines: Mapping[str, Any]
    """Name -> EngineHost actor."""
    engines_return: bool = False
    """An engine that is lost may come back: requests wait for it."""
    manager_classes: Mapping[str, str] = field(default_factory=dict)
    """Tag -> plug-in of `envsdk.env_managers`."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Worker to scheduler: an episode ended; its slot is idle."""

    slot_id: str
    lease_id: int
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class Released:
    """Worker to scheduler: the slot of a cancelled lease is idle."""

    slot_id: str
    lease_id: int


@dataclass(frozen=True, slots=True)
class Play:
    """Scheduler to worker: play this in that slot."""

    slot_id: str
    order: EpisodeOrder


@dataclass(frozen=True, slots=True)
class Stop:
    """Scheduler to worker: stop playing this lease."""

    slot_id: str
    lease_id: int


@dataclass(frozen=True, slots=True)
class EngineJoined:
    """Scheduler to worker: the engine of this name is this actor now."""

    name: str
    actor: Any


@dataclass(frozen=True, slots=True)
class EngineLeft:
    """Scheduler to worker: send this engine no more requests; what runs there may end there."""

    name: str


class Control(Enum):
    """Scheduler to worker."""

    SUSPEND = "suspend"
    """Dispatch no more requests to engines until RESUME."""
    RESUME = "resume"
    CLOSE = "close"
    """No more leases."""


FromWorker = Finished | Released
ToWorker = Play | Stop | EngineJoined | EngineLeft | Control


class EnvWorker(LeaseSource):
    """Body of the actor."""

    def __init__(self, worker_id: str, setup: WorkerSetup) -> None:
        self._worker_id = worker_id
        self._setup = setup
        self._orders: dict[str, asyncio.Queue[EpisodeOrder | None]] = {}
        self._managers: dict[str, TrajEnvManager] = {}
        self._proxy: InferenceProxy | None = None
        self._links: list[RayLink] = []
        self._poll: LongPoll[FromWorker, list[ToWorker]] | None = None

    async def run(self, scheduler: Any) -> None:
        """Play until the scheduler says CLOSE; raises what broke the connection otherwise."""
        proxy = self._proxy = self._open_proxy()
        policies = self._make_policies(proxy)
        for slot_id, tag in self._setup.slots.items():
            manager_class = load_plugin(
                "envsdk.env_managers", self._setup.manager_classes.get(tag, "TrajEnvManager")
            )
            self._orders[slot_id] = asyncio.Queue()
            self._managers[slot_id] = manager_class(
                slot_id=slot_id,
                setup=self._setup.setups[tag],
                policy=policies[tag],
                leases=self,
                worker=self._worker_id,
            )
        self._poll = LongPoll(
            lambda number, messages: scheduler.exchange.remote(self._worker_id, number, messages),
            self._on_messages,
        )
        CALLS.start_watcher(
            {
                manager.place: slot_id
                for slot_id, manager in self._managers.items()
                if manager.place is not None
            },
            _note(self._worker_id),
        )
        polling: asyncio.Future[Any] = asyncio.ensure_future(self._poll.run())
        playing: asyncio.Future[Any] = asyncio.gather(
            *(manager.run_rollout_loop() for manager in self._managers.values())
        )
        try:
            await asyncio.wait({polling, playing}, return_when=asyncio.FIRST_COMPLETED)
            for task in (polling, playing):
                if task.done():
                    task.result()
        finally:
            polling.cancel()
            playing.cancel()
            await asyncio.gather(polling, playing, return_exceptions=True)
            await proxy.close()

    async def note(self) -> tuple[str, Path]:
        """On which machine (Ray's name), and where, a watcher would say why it killed this process."""
        import ray  # here, because collecting imports this module and needs no Ray

        return ray.get_runtime_context().get_node_id(), _note(self._worker_id)

    async def num_calls(self) -> int:
        """Calls to the scheduler and the engines since start."""
        assert self._poll is not None, "not running"
        return self._poll.num_calls + sum(link.num_calls for link in self._links)

    async def lease(self, slot_id: str) -> EpisodeOrder | None:
        return await self._orders[slot_id].get()

    def submit(self, slot_id: str, lease_id: int, trajectory: Trajectory) -> None:
        self._send(Finished(slot_id, lease_id, trajectory))

    def released(self, slot_id: str, lease_id: int) -> None:
        self._send(Released(slot_id, lease_id))

    def _send(self, message: FromWorker) -> None:
        assert self._poll is not None
        self._poll.send(message)

    def _on_messages(self, messages: list[ToWorker]) -> None:
        assert self._proxy is not None
        for message in messages:
            if isinstance(message, Play):
                self._orders[message.slot_id].put_nowait(message.order)
            elif isinstance(message, Stop):
                self._stop(message)
            elif isinstance(message, EngineJoined):
                self._proxy.add_engine(message.name, self._link(message.actor))
            elif isinstance(message, EngineLeft):
                self._proxy.drain_engine(message.name)
            elif message is Control.SUSPEND:
                self._proxy.suspend()
            elif message is Control.RESUME:
                self._proxy.resume()
            else:
                for orders in self._orders.values():
                    orders.put_nowait(None)

    def _stop(self, stop: Stop) -> None:
        """Cancel a lease that is being played, or take back one that has not begun."""
        orders = self._orders[stop.slot_id]
        if orders.empty():
            self._managers[stop.slot_id].cancel(stop.lease_id)
            return
        order = orders.get_nowait()
        assert order is None or order.lease_id == stop.lease_id
        self._send(Released(stop.slot_id, stop.lease_id))

    def _open_proxy(self) -> InferenceProxy:
        proxy = InferenceProxy(
            {name: self._link(actor) for name, actor in self._setup.engines.items()},
            turn_timeout_s=self._setup.turn_timeout_s,
            engines_return=self._setup.engines_return,
        )
        proxy.start()
        return proxy

    def _link(self, actor: Any) -> RayLink:
        link = RayLink(self._worker_id, actor)
        self._links.append(link)
        return link

    def _make_policies(self, proxy: InferenceProxy) -> dict[str, EnginePolicy]:
        chat = ChatTokenizer.load(self._setup.model)
        return {
            tag: EnginePolicy(
                proxy,
                chat,
                self._setup.generating,
                sequence_length=self._setup.sequence_length,
                max_new_tokens=setup.max_new_tokens,
                structure=setup.structure,
            )
            for tag, setup in self._setup.setups.items()
        }


def _note(worker_id: str) -> Path:
    """In the folder of the Ray session, which nobody need clear up."""
    from ray._private import worker

    assert worker._global_node is not None, "not a worker of Ray"
    return Path(worker._global_node.get_session_dir_path()) / f"envsdk-note-{worker_id}-{os.getpid()}"
