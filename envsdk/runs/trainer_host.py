"""Shell: one rank of a trainer in a Ray actor, so that training and generation overlap."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from envsdk.base.net.rendezvous import free_port
from envsdk.base.plugins import load_plugin
from envsdk.base.processes.memory import give_back_freed
from envsdk.base.store.atomic import storage_error
from envsdk.base.store.cache import cache_folder
from envsdk.base.store.travel import DriverFiles, FileServer
from envsdk.contracts.failures import StorageError
from envsdk.contracts.held import Held
from envsdk.contracts.support import Support
from envsdk.contracts.trainer import TeacherScores, TrainBatch, Trainer, TrainerConfig, TrainerRank
from envsdk.runs.reservation import show_only
from envsdk.runs.teacher_engine import TeacherEngine
from envsdk.weights.delta import WeightBase
from envsdk.weights.device_memory import card_of
from envsdk.weights.source import OutletReport, WeightOutlet
from envsdk.weights.update import TransferReport, WeightSender, WeightTransfer

Scores = list[NDArray[np.float32]]


class TrainerHost(FileServer):
    """Body of the actor: calls run one after another, `start` first. All ranks get the same calls.

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
