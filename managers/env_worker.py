"""Shell: a Ray actor that hosts many TrajEnvManagers in one event loop.

    run -> managers play ... -> CLOSE from the scheduler -> run returns

One long poll with the scheduler carries leases and trajectories; one with each engine carries replies.

An environment that exceeds its time limit in the event loop, or on a thread that keeps the interpreter's
lock, blocks every other episode of the process. A watcher then kills the process and leaves a report that
names the environment. The scheduler records that episode as failed, starts the worker again and plays the
other episodes elsewhere.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Self

from envsdk.base.display.terminal import say
from envsdk.base.net.long_poll import LongPoll
from envsdk.base.plugins import load_plugin
from envsdk.base.processes.call_watch import CALLS
from envsdk.base.processes.cpu_meter import CpuMeter, CpuUse
from envsdk.base.processes.garbage import collect_rarely, collect_when_grown
from envsdk.base.store.travel import DriverFiles
from envsdk.contracts.chat import ChatTokenizer, digests
from envsdk.contracts.seeds import stable_seed
from envsdk.contracts.trajectory import Rows, Task, Trajectory
from envsdk.engines.engine_host import RayLink
from envsdk.engines.engine_policy import EnginePolicy
from envsdk.engines.proxy import InferenceProxy
from envsdk.engines.run_engines import RunEngines, offer
from envsdk.engines.sampling import SamplingParams
from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.policies import opponents
from envsdk.managers.traj_env_manager import LeaseSource, TagSetup, TrajEnvManager


class WorkerId(NamedTuple):
    """One process of a worker; as text `NAME#INCARNATION`."""

    name: str
    incarnation: int
    """How many processes this worker had before, from 0."""

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """Everything one worker needs when it is started."""

    slots: Mapping[str, str]
    """Slot id -> tag."""
    setups: Mapping[str, TagSetup]
    model: Path
    """Folder with the tokenizer and its chat template."""
    generating: SamplingParams
    sequence_length: int
    turn_timeout_s: float
    engines: Mapping[str, Any]
    """Name -> EngineHost actor. Names of an opponent's begin with its own and a slash."""
    opponents: Mapping[str, Path] = field(default_factory=dict)
    """Name -> folder with the tokenizer of a model that plays against the policy."""
    engines_return: bool = False
    """A lost engine may come back: requests wait for it."""
    records_experts: bool = False
    """Replies come with the experts that a mixture chose."""
    shares_prompts: bool = False
    """A group's first requests go to one engine, which computes their prompt once."""
    manager_classes: Mapping[str, str] = field(default_factory=dict)
    """Tag -> entry point in `envsdk.env_managers`, `TrajEnvManager` when absent."""
    driver_files: DriverFiles = field(default_factory=DriverFiles)
    """Files that this machine may lack."""

    def here(self) -> Self:
        """The setup with paths on this machine, to which files may have to travel. Blocks. StorageError."""
        if not self.driver_files.by_path:
            return self
        setups = {}
        for tag, setup in self.setups.items():
            env_config = self.driver_files.here_in(setup.blueprint.env_config)
            setups[tag] = replace(setup, blueprint=replace(setup.blueprint, env_config=env_config))
        opponents = {name: self.driver_files.here(folder) for name, folder in self.opponents.items()}
        return replace(self, model=self.driver_files.here(self.model), setups=setups, opponents=opponents)


@dataclass(frozen=True, slots=True)
class Finished:
    """Worker to scheduler: an episode ended; its slot is idle."""

    slot_id: str
    lease_id: int
    trajectory: Trajectory

    def __reduce__(self) -> tuple[Any, ...]:
        return Finished, (self.slot_id, self.lease_id, self.trajectory)


@dataclass(frozen=True, slots=True)
class Released:
    """Worker to scheduler: a cancelled lease was stopped; its slot is idle."""

    slot_id: str
    lease_id: int
    num_tokens: int = 0
    """Sampled until then, in whole replies."""


@dataclass(frozen=True, slots=True)
class Play:
    """Scheduler to worker: play this episode in this slot."""

    slot_id: str
    order: EpisodeOrder

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as one nested tuple: see `Rows`."""
        row = list(_ORDERS.row(self.order))
        row[_TASK] = _TASKS.row(self.order.task)
        return _play, (self.slot_id, row)


_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""No file descriptors, memory or processes are left."""

_ORDERS, _TASKS = Rows(EpisodeOrder), Rows(Task)
_TASK = _ORDERS.names.index("task")


def _play(slot_id: str, row: list[Any]) -> Play:
    row[_TASK] = _TASKS.make(row[_TASK])
    return Play(slot_id, _ORDERS.make(row))


@dataclass(frozen=True, slots=True)
class Stop:
    """Scheduler to worker: stop playing this lease."""

    slot_id: str
    lease_id: int


@dataclass(frozen=True, slots=True)
class EngineJoined:
    """Scheduler to worker: this actor is the engine of this name."""

    name: str
    actor: Any


@dataclass(frozen=True, slots=True)
class EngineLeft:
    """Scheduler to worker: send this engine no more requests. Its open requests may end there."""

    name: str


class Control(Enum):
    """Scheduler to worker, about all slots."""

    SUSPEND = "suspend"
    """Send no more requests to engines until RESUME."""
    RESUME = "resume"
    CLOSE = "close"
    """There are no more leases."""


FromWorker = Finished | Released
ToWorker = Play | Stop | EngineJoined | EngineLeft | Control


class EnvWorker(LeaseSource):
    """Body of the actor."""

    def __init__(self, worker_id: WorkerId, setup: WorkerSetup) -> None:
        self._worker_id = worker_id
        self._setup = setup
        self._orders: dict[str, asyncio.Queue[EpisodeOrder | None]] = {}
        self._managers: dict[str, TrajEnvManager] = {}
        self._proxies: dict[str, InferenceProxy] = {}
        """Proxies by opponent; that of the policy's engines has no name."""
        self._links: list[RayLink] = []
        self._poll: LongPoll[FromWorker, list[ToWorker]] | None = None
        self._cpu = CpuMeter()

    async def run(self, scheduler: Any) -> None:
        """Play until the scheduler sends CLOSE. Raises the error of this process's own code, if one did.

        Where the machine has nothing left for this process, it ends: another is started in its place.
        """
        try:
            await self._play(scheduler)
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            say(f"this machine has nothing left for the worker, which ends: {error}", err=True)
            os._exit(1)

    async def _play(self, scheduler: Any) -> None:
        self._setup = await asyncio.to_thread(self._setup.here)
        for name in ("", *self._setup.opponents):
            self._proxies[name] = self._open_proxy(name)
        chat = ChatTokenizer.load(self._setup.model)
        offer(RunEngines(self._proxies[""], chat, self._setup.sequence_length))
        model, others = self._setup.model, self._setup.opponents
        chats = {name: chat_like(chat, model, folder) for name, folder in others.items()}
        for slot_id, tag in self._setup.slots.items():
            manager_class = load_plugin(
                "envsdk.env_managers", self._setup.manager_classes.get(tag, "TrajEnvManager")
            )
            self._orders[slot_id] = asyncio.Queue()
            self._managers[slot_id] = manager_class(
                slot_id=slot_id,
                setup=self._setup.setups[tag],
                policy=self._policy("", chat, tag),
                leases=self,
                worker=str(self._worker_id),
                opponents=opponents(
                    self._setup.setups[tag].players,
                    {name: self._policy(name, each, tag) for name, each in chats.items()},
                ),
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
            _kill_report_path(self._worker_id),
        )
        collect_rarely()
        collecting = asyncio.ensure_future(collect_when_grown())
        polling: asyncio.Future[Any] = asyncio.ensure_future(self._keep_polling())
        playing: asyncio.Future[Any] = asyncio.gather(
            *(manager.run_rollout_loop() for manager in self._managers.values())
        )
        try:
            await asyncio.wait({polling, playing}, return_when=asyncio.FIRST_COMPLETED)
            for task in (polling, playing):
                if task.done():
                    task.result()
        finally:
            collecting.cancel()
            polling.cancel()
            playing.cancel()
            await asyncio.gather(polling, playing, return_exceptions=True)
            for proxy in self._proxies.values():
                await proxy.close()

    async def _keep_polling(self) -> None:
        """Exchange messages. When one is lost, nobody knows which have arrived: this process then ends.

        The scheduler starts another in its place, and its episodes are played elsewhere.
        """
        from ray.exceptions import RayError, RayTaskError  # here, because collecting imports this module

        assert self._poll is not None
        try:
            await self._poll.run()
        except RayTaskError:
            raise  # the scheduler's own error
        except RayError as error:
            say(f"the scheduler is out of reach, this worker ends: {error}", err=True)
            os._exit(1)

    async def kill_report(self) -> tuple[str, Path]:
        """Ray's id of this machine, and the file in which a watcher says why it killed this process."""
        import ray  # here, because collecting imports this module and needs no Ray

        return ray.get_runtime_context().get_node_id(), _kill_report_path(self._worker_id)

    async def cpu(self) -> CpuUse:
        """CPU that this process and its machine used since the last call."""
        return self._cpu.read()

    async def num_calls(self) -> int:
        """Calls to the scheduler and the engines since start."""
        assert self._poll is not None, "not running"
        return self._poll.num_calls + sum(link.num_calls for link in self._links)

    async def lease(self, slot_id: str, tag: str) -> EpisodeOrder | None:
        return await self._orders[slot_id].get()

    def submit(self, slot_id: str, lease_id: int, trajectory: Trajectory) -> None:
        self._send(Finished(slot_id, lease_id, trajectory))

    def released(self, slot_id: str, lease_id: int, num_tokens: int) -> None:
        self._send(Released(slot_id, lease_id, num_tokens))

    def _send(self, message: FromWorker) -> None:
        assert self._poll is not None
        self._poll.send(message)

    def _on_messages(self, messages: list[ToWorker]) -> None:
        for message in messages:
            if isinstance(message, Play):
                self._orders[message.slot_id].put_nowait(message.order)
            elif isinstance(message, Stop):
                self._stop(message)
            elif isinstance(message, EngineJoined):
                self._proxies[_owner(message.name)].add_engine(message.name, self._link(message.actor))
            elif isinstance(message, EngineLeft):
                self._proxies[_owner(message.name)].drain_engine(message.name)
            elif message is Control.SUSPEND:
                for proxy in self._proxies.values():
                    proxy.suspend()
            elif message is Control.RESUME:
                for proxy in self._proxies.values():
                    proxy.resume()
            else:
                for orders in self._orders.values():
                    orders.put_nowait(None)

    def _stop(self, stop: Stop) -> None:
        """Cancel a lease that is being played, or withdraw one that has not begun."""
        orders = self._orders[stop.slot_id]
        if orders.empty():
            self._managers[stop.slot_id].cancel(stop.lease_id)
            return
        order = orders.get_nowait()
        assert order is None or order.lease_id == stop.lease_id
        self._send(Released(stop.slot_id, stop.lease_id))

    def _open_proxy(self, owner: str) -> InferenceProxy:
        # Routers prefer the first of equally loaded engines and know only their own requests: in one order,
        # all workers would begin with the same engine.
        engines = [each for each in self._setup.engines.items() if _owner(each[0]) == owner]
        first = stable_seed("engines", str(self._worker_id)) % max(1, len(engines))
        proxy = InferenceProxy(
            {name: self._link(actor) for name, actor in engines[first:] + engines[:first]},
            turn_timeout_s=self._setup.turn_timeout_s,
            engines_return=self._setup.engines_return,
        )
        proxy.start()
        return proxy

    def _link(self, actor: Any) -> RayLink:
        link = RayLink(str(self._worker_id), actor)
        self._links.append(link)
        return link

    def _policy(self, owner: str, chat: ChatTokenizer, tag: str) -> EnginePolicy:
        return self._setup.setups[tag].engine_policy(
            self._proxies[owner],
            chat,
            self._setup.generating,
            sequence_length=self._setup.sequence_length,
            shares_prompts=self._setup.shares_prompts and not owner,
            records_experts=self._setup.records_experts and not owner,
        )


def chat_like(chat: ChatTokenizer, model: Path, other: Path) -> ChatTokenizer:
    """The tokenizer in the folder `other`: `chat`, that of `model`, where both give texts the same tokens."""
    return chat if digests(model) == digests(other) else ChatTokenizer.load(other)


def _owner(engine: str) -> str:
    """The opponent whose engine this is; empty for the policy's."""
    return engine.rpartition("/")[0]


def _kill_report_path(worker_id: WorkerId) -> Path:
    """The path of the watcher's report: in the folder of the Ray session, which Ray removes."""
    from ray._private import worker

    assert worker._global_node is not None, "not a worker of Ray"
    return Path(worker._global_node.get_session_dir_path()) / f"envsdk-killed-{worker_id}-{os.getpid()}"
