"""One trainer as a group of processes: a `TrainerHost` actor per rank, in a Ray placement group.

    start -> (load | train_step | logprobs | values | send_weights | save)* -> close
             any rank fails -> all ranks ended, TrainerError; the group is of no more use

Every call goes to all ranks in the same order, and rank 0's answer counts. A call ends with the first rank
that fails, with that rank's error: the others, which wait for it, are ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import socket
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from envsdk.base.net.rendezvous import free_port
from envsdk.base.plugins import load_plugin
from envsdk.base.processes.actor_death import (
    error_of,
    is_cause,
    is_death,
    reason_of_death,
    remote_lines,
    until_cause,
)
from envsdk.base.processes.garbage import importing
from envsdk.base.processes.memory import give_back_freed
from envsdk.base.store.atomic import storage_error
from envsdk.base.store.cache import cache_folder
from envsdk.base.store.travel import CHUNK_BYTES, DriverFiles, FileServer
from envsdk.config.ray_models import RolePlacement, TrainerPlacement
from envsdk.contracts.failures import EnvsdkError, StorageError, TrainerError
from envsdk.contracts.held import Held
from envsdk.contracts.support import Support
from envsdk.contracts.trainer import TeacherScores, TrainBatch, Trainer, TrainerConfig, TrainerRank
from envsdk.managers.ray_nodes import check_placement, resources_for
from envsdk.runs.rank_placement import RankPlace, num_ranks_of, rank_resources
from envsdk.runs.reservation import KEEP_DEVICES, PLACEMENT_TIMEOUT_S, Reservation, show_only
from envsdk.runs.teacher_engine import TeacherEngine
from envsdk.weights.delta import WeightBase
from envsdk.weights.device_memory import card_of
from envsdk.weights.source import OutletReport, WeightOutlet
from envsdk.weights.update import TransferReport, WeightSender, WeightTransfer

CLOSE_TIMEOUT_S = 5.0

P = ParamSpec("P")
Answer = TypeVar("Answer")
Scores = list[NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec:
    """One trainer of a run."""

    key: str
    """Its section of the configuration: `actor_train`, `reference`."""
    strategy_name: str
    config: TrainerConfig
    device_mapping: Sequence[int] | None
    uses_accelerators: bool
    """Whether Ray must give each rank one, where there are any."""
    role: str = "trainer"
    """Its section of `ray.placement`."""
    placement: RolePlacement = field(default_factory=TrainerPlacement)
    """Nodes of the cluster that the ranks run on."""
    driver_files: DriverFiles = field(default_factory=DriverFiles)
    """Files that their machines may lack."""


class TrainerHost(FileServer):
    """One rank in a Ray actor. Calls run one after another, `start` first. All ranks get the same calls.

    Only rank 0 answers: what the others found is the same, or is with rank 0 already.
    """

    _trainer: Trainer
    _rank: TrainerRank

    def __init__(self, strategy_name: str, config: TrainerConfig, files: DriverFiles | None = None) -> None:
        """`files` may have the model and the checkpoint to load, should this machine lack them."""
        self._strategy_name = strategy_name
        self._config = config
        self._files = files or DriverFiles()
        self._weight_base = WeightBase()

    def meeting_point(self) -> tuple[str, int]:
        """Address of this node in the cluster, and a port that is free there."""
        address = ray.util.get_node_ip_address()
        return address, free_port(address)

    def start(self, rank: TrainerRank, devices: Sequence[int]) -> None:
        """Load the model. Not in the constructor, whose errors Ray turns into text.

        `devices` are the accelerators of this node that the ranks on it use, by local rank; none: those
        that are there.
        """
        if devices:
            show_only(devices)
        self._rank = rank
        with importing():
            trainer_class: type[Trainer] = load_plugin("envsdk.trainers", self._strategy_name)
        model = self._files.here(self._config.model)
        self._trainer = trainer_class.create(replace(self._config, model=model, rank=rank))

    @property
    def _is_reporting_rank(self) -> bool:
        return self._rank.rank == 0

    def train_step(self, batch: TrainBatch) -> dict[str, float]:
        """Metrics of the step."""
        return self._trainer.train_step(batch)

    def logprobs(
        self,
        sequences: Sequence[NDArray[np.int32]],
        experts: Sequence[NDArray[np.int16] | None] = (),
        supports: Sequence[Support | None] = (),
    ) -> Scores | None:
        told = (experts, supports) if experts or supports else ()  # a trainer of others may know neither
        scores = self._trainer.logprobs(sequences, *told)
        return scores if self._is_reporting_rank else None

    def score(self, sequences: Sequence[NDArray[np.int32]], num_top: int) -> list[TeacherScores]:
        """Asked of a teacher: an engine, or a trainer, which tells of no other tokens."""
        teacher: Any = self._trainer
        if isinstance(teacher, TeacherEngine):
            return teacher.score(sequences, num_top)
        return [TeacherScores(logprobs=each) for each in teacher.logprobs(sequences)]

    def values(self, sequences: Sequence[NDArray[np.int32]]) -> Scores | None:
        values = self._trainer.values(sequences)
        return values if self._is_reporting_rank else None

    def send_weights(self, transfer: WeightTransfer) -> TransferReport | None:
        """Rank 0 sends the current weights to the engines."""
        give_back_freed()  # activations: engines are about to hold two versions of the weights
        if transfer.as_adapter:
            weights = self._trainer.adapter()
        elif transfer.transport.is_on_device:
            weights = self._trainer.device_weights()
        else:
            weights = self._trainer.weights()
        if not self._is_reporting_rank:
            for _ in weights:  # the other ranks take part in collecting each
                pass
            return None
        return WeightSender(transfer, self._weight_base, device=self._trainer.weight_device).send(weights)

    def give_weights(self, outlet: WeightOutlet) -> OutletReport | None:
        """Rank 0's `outlet` takes the current weights, an adapter merged in."""
        weights = iter(self._trainer.weights())
        try:
            if self._is_reporting_rank:
                return OutletReport(location=outlet.take(weights))
        except StorageError as error:
            return OutletReport(location=None, problem=str(error))
        finally:
            for _ in weights:  # the other ranks take part in collecting each
                pass
        return None

    def use_average(self, is_used: bool) -> None:
        """Whether weights that are sent are the moving average."""
        self._trainer.use_average(is_used)

    def hold(self, held: Held) -> None:
        """What this rank holds of its device from now on."""
        self._trainer.hold(held)

    def has_adapter(self) -> bool:
        """The trainer trains an adapter alone."""
        return self._trainer.has_adapter

    def kernels(self) -> Mapping[str, str]:
        """Kernels that the trainer took, in words."""
        return self._trainer.kernels()

    def node_id(self) -> str:
        """The node of the cluster this rank is on."""
        return str(ray.get_runtime_context().get_node_id())

    def card(self) -> str:
        """UUID of the card that this rank's weights are on; "" for main memory."""
        return card_of(self._trainer.weight_device)

    def place_to_write(self, folder: Path, probe: str, own_name: str) -> Path:
        """`folder` where this machine sees its file `probe`; else a folder of this machine, empty."""
        if (folder / probe).is_file():
            return folder
        own = cache_folder() / "outgoing" / own_name
        if self._rank.local_rank == 0:
            shutil.rmtree(own, ignore_errors=True)
        try:
            own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error("make", own, error) from error
        return own

    def files_in(self, folder: Path) -> list[tuple[str, int]]:
        """Names and sizes of the files that were written into it."""
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return [(str(path.relative_to(folder)), path.stat().st_size) for path in files]

    def remove(self, folder: Path) -> None:
        """What was written there has arrived."""
        shutil.rmtree(folder, ignore_errors=True)

    def save(self, folder: Path) -> None:
        """The trainer's state in `folder/trainer` and a Hugging Face model in `folder/model`, of the moving
        average where there is one."""
        for name in ("trainer", "model"):
            try:
                (folder / name).mkdir(exist_ok=True)
            except OSError as error:
                raise storage_error("make", folder / name, error) from error
        self._trainer.save(folder / "trainer")
        self._trainer.use_average(True)
        self._trainer.save_pretrained(folder / "model")
        self._trainer.use_average(False)

    def load(self, folder: Path) -> None:
        self._trainer.load(self._files.here(folder) / "trainer")

    def close(self) -> None:
        self._trainer.close()


def _of_all(
    method: Callable[Concatenate[TrainerHost, P], Answer | None],
) -> Callable[Concatenate[TrainerGroup, P], Coroutine[Any, Any, Answer]]:
    """The call of all ranks, with rank 0's answer."""

    @wraps(method)
    async def asked(group: TrainerGroup, /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        assert not kwargs, "arguments of actors are told by position"
        answer: Answer = await group.on_all(method.__name__, *map(ray.put, args))
        return answer

    return asked


class TrainerGroup:
    """The actors of one trainer. Owner: the cluster; called from one event loop.

    group = TrainerGroup(spec, all_mappings=[spec.device_mapping])
    await group.start()
    metrics = await group.train_step(batch)
    """

    def __init__(
        self,
        spec: TrainerSpec,
        *,
        all_mappings: Sequence[Sequence[int] | None],
        placement_timeout_s: float = PLACEMENT_TIMEOUT_S,
    ) -> None:
        check_placement(spec.role, spec.placement)
        self._spec = spec
        self.key = spec.key
        """Its section of the configuration."""
        self.world_size = num_ranks_of(spec.device_mapping)
        """Number of ranks."""
        self._all_mappings = all_mappings
        self._placement_timeout_s = placement_timeout_s
        self._hosts: list[Any] = []
        self._reservation: Reservation | None = None
        self._failure: EnvsdkError | None = None
        self._num_calls = 0

    async def start(self) -> None:
        """Place the ranks and load the model on each.

        ConfigurationError when the cluster can never hold them, TrainerError when it is too busy.
        """
        bundle = rank_resources(
            resources_for(self._spec.placement),
            mapping=self._spec.device_mapping,
            all_mappings=self._all_mappings,
            uses_accelerators=self._spec.uses_accelerators,
        )
        self._reservation = Reservation(
            bundle,
            self._spec.device_mapping,
            placement=self._spec.placement,
            spreads=self._spec.placement.strategy == "spread",
            count=self.world_size,
            key=self._spec.key,
            of_what="1 rank" if self.world_size == 1 else f"{self.world_size} ranks",
            error=TrainerError,
            timeout_s=self._placement_timeout_s,
        )
        places = await asyncio.to_thread(self._reservation.take)
        self._hosts = [self._host(place, self._reservation.bundle) for place in places]
        [(address, port)] = await self._first_to_fail([self._hosts[0].meeting_point.remote()])
        starting = [
            host.start.remote(
                TrainerRank(
                    rank=rank,
                    world_size=self.world_size,
                    local_rank=place.local_rank,
                    master_address=address,
                    master_port=port,
                ),
                place.devices,
            )
            for rank, (host, place) in enumerate(zip(self._hosts, places, strict=True))
        ]
        await self._first_to_fail(starting)

    train_step = _of_all(TrainerHost.train_step)
    logprobs = _of_all(TrainerHost.logprobs)
    score = _of_all(TrainerHost.score)
    values = _of_all(TrainerHost.values)
    send_weights = _of_all(TrainerHost.send_weights)
    give_weights = _of_all(TrainerHost.give_weights)
    node_id = _of_all(TrainerHost.node_id)
    card = _of_all(TrainerHost.card)
    kernels = _of_all(TrainerHost.kernels)
    has_adapter = _of_all(TrainerHost.has_adapter)

    async def nodes(self) -> set[str]:
        """The nodes of all ranks."""
        return set(await asyncio.gather(*(host.node_id.remote() for host in self._hosts)))

    async def save(self, folder: Path) -> None:
        """Every rank writes its part into `folder`; what ranks wrote on other machines is brought here.

        Whether another machine shares the folder is found out by a file in it.
        """
        if self._spec.driver_files.reader is None:
            await self.on_all("save", folder)
            return
        probe = folder / f".probe-{uuid.uuid4().hex}"
        probe.touch()
        own_name = hashlib.sha256(f"{socket.gethostname()}:{folder.parent}".encode()).hexdigest()[:16]
        places: list[Path] = await self._on_each(
            "place_to_write", [(folder, probe.name, own_name)] * self.world_size
        )
        probe.unlink()
        await self._on_each("save", [(place,) for place in places])
        nodes: list[str] = await self._on_each("node_id", [()] * self.world_size)
        elsewhere = {
            node: (host, place) for node, host, place in zip(nodes, self._hosts, places, strict=True)
        }
        for host, place in elsewhere.values():
            if place != folder:
                await self._bring(host, place, folder)

    async def _bring(self, host: Any, source: Path, folder: Path) -> None:
        """Move the files in `source` on the machine of a rank into `folder` here."""
        [files] = await self._first_to_fail([host.files_in.remote(source)])
        for name, size in files:
            target = folder / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    for offset in range(0, size, CHUNK_BYTES):
                        part = host.read.remote(source / name, offset, min(CHUNK_BYTES, size - offset))
                        file.write((await self._first_to_fail([part]))[0])
            except OSError as error:
                raise storage_error("write", target, error) from error
        await self._first_to_fail([host.remove.remote(source)])

    async def load(self, folder: Path) -> None:
        await self.on_all("load", folder)

    async def close(self) -> None:
        """End all ranks: in order when they are idle, at once when they are not. Idempotent."""
        if self._hosts and self._failure is None and not self._num_calls:
            closing = asyncio.gather(*(host.close.remote() for host in self._hosts), return_exceptions=True)
            await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        self._end()

    def _host(self, place: RankPlace, bundle: Mapping[str, float]) -> Any:
        assert self._reservation is not None
        # The ranks of a node see all its accelerators that they use: peers reach each other's memory.
        keep = KEEP_DEVICES if place.devices else {}
        actor = ray.remote(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0.0),
            resources=self._spec.placement.resources,
            max_restarts=0,
            runtime_env=keep,
        )(TrainerHost)
        strategy = PlacementGroupSchedulingStrategy(
            self._reservation.group, placement_group_bundle_index=place.bundle
        )
        spec = self._spec
        placed = actor.options(scheduling_strategy=strategy)
        return placed.remote(spec.strategy_name, spec.config, spec.driver_files)

    async def on_all(self, method: str, *args: Any) -> Any:
        """Rank 0's answer, when all have answered. Large arguments are references: one copy for all."""
        return (await self._on_each(method, [args] * len(self._hosts)))[0]

    async def _on_each(self, method: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """The answers of all, by rank."""
        if self._failure is not None:
            raise self._failure
        return await self._first_to_fail(
            [getattr(host, method).remote(*args) for host, args in zip(self._hosts, arguments, strict=True)]
        )

    async def _first_to_fail(self, calls: Sequence[Any]) -> list[Any]:
        answers = [asyncio.ensure_future(call) for call in calls]
        self._num_calls += 1
        try:
            await asyncio.wait(answers, return_when=asyncio.FIRST_EXCEPTION)
            if any(error_of(answer) is not None for answer in answers):
                await until_cause(answers)
                self._failure = self._failure_of(answers)
                self._end()
                raise self._failure
            return [answer.result() for answer in answers]
        finally:
            self._num_calls -= 1
            for answer in answers:
                answer.cancel()

    def _failure_of(self, answers: Sequence[asyncio.Future[Any]]) -> EnvsdkError:
        """The error of the rank that failed first; a rank that died or knows the cause comes first."""
        failed = [(rank, error) for rank, answer in enumerate(answers) if (error := error_of(answer))]
        rank, error = min(failed, key=lambda pair: (not is_death(pair[1]), not is_cause(pair[1])))
        who = f"{self._spec.key}: rank {rank} of {self.world_size}"
        if is_death(error):
            return TrainerError(f"{who} died: {reason_of_death(error)}")
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, EnvsdkError):
            return cause
        return TrainerError(f"{who} failed with {type(cause).__name__}: {cause}\n{remote_lines(error)}")

    def _end(self) -> None:
        for host in self._hosts:
            ray.kill(host)
        self._hosts = []
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
