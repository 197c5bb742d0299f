"""Engines that write down the weights they get, and do as they are told.

Each engine is a process that imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from numpy.typing import NDArray

from envsdk.contracts.failures import EngineError
from envsdk.engines.engine import EngineConfig, EngineHealth, WeightReference
from envsdk.engines.engine_host import EngineHost
from envsdk.engines.mock import MockEngine
from envsdk.weights.buckets import UpdateInterrupted
from envsdk.weights.transports import Transport

if TYPE_CHECKING:
    from torch import Tensor

    from envsdk.runs.trainer_group import TrainerGroup
    from envsdk.weights.device_memory import Handle
    from envsdk.weights.group import WeightGroup
    from envsdk.weights.update import TransferReport

NAME = "tests.trainers.toy_engines:ToyEngine"
BREAKING = "tests.trainers.toy_engines:BreakingEngine"
BLIND = "tests.trainers.toy_engines:BlindEngine"
BUSY = "tests.trainers.toy_engines:BusyEngine"
SEEING = "tests.trainers.toy_engines:SeeingEngine"


class ToyEngine(MockEngine):
    """`strategy_config: {folder: WHERE, VERSION: DEED}`, deeds `die` and `refuse`, midway in an update.

    Leaves `WHERE/VERSION.npz`.
    """

    folder: Path
    deeds: dict[str, str]

    @classmethod
    def create(cls, config: EngineConfig) -> ToyEngine:
        engine = super().create(EngineConfig(model=None, sequence_length=config.sequence_length))
        assert isinstance(engine, cls)
        engine.deeds = dict(config.strategy_config)
        engine.folder = Path(engine.deeds.pop("folder"))
        return engine

    async def load_weights(self, weights: WeightReference, version: int) -> None:
        assert isinstance(weights, Iterable)
        found = await asyncio.to_thread(lambda: dict(self._read(weights, version)))
        self.folder.mkdir(parents=True, exist_ok=True)
        np.savez(self.folder / f"{version}.npz", **found)
        await super().load_weights({}, version)

    def _read(self, weights: Iterable[Any], version: int) -> Iterator[tuple[str, NDArray[Any]]]:
        for index, (name, array) in enumerate(weights):
            if not isinstance(array, np.ndarray):
                array = (array.float() if str(array.dtype) == "torch.bfloat16" else array).numpy()
            yield name, array.copy()
            if index == 2 and self.deeds.get(str(version)) == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if index == 2 and self.deeds.get(str(version)) == "refuse":
                raise EngineError(f"weight `{name}` is not one of the model's")


class BreakingEngine(ToyEngine):
    """Is broken while there is a file `broken` in its folder."""

    def health(self) -> EngineHealth:
        error = "out of memory" if (self.folder / "broken").exists() else ""
        return replace(super().health(), error=error)


class BlindEngine(ToyEngine):
    """Cannot open memory of other processes' devices, nor send between cards."""

    @classmethod
    def create(cls, config: EngineConfig) -> ToyEngine:
        def refuse(handle: Handle, device: str) -> Tensor:
            raise RuntimeError("invalid resource handle")

        def fail(group: WeightGroup, num_bytes: int) -> Tensor:
            raise UpdateInterrupted("unhandled system error")

        from envsdk.weights import receiver
        from envsdk.weights.group import WeightGroup

        receiver.open_handle = refuse
        WeightGroup.receive = fail  # type: ignore[method-assign]
        return super().create(config)


class BusyEngine(ToyEngine):
    """Says that it has one request and samples 100 tokens/s; files in its folder make it say otherwise."""

    def health(self) -> EngineHealth:
        tokens_per_s = 0 if self._is("stalled") else 1 if self._is("slow") else 100
        return replace(
            super().health(),
            num_running=0 if self._is("idle") else 1,
            num_queued=9 if self._is("crowded") else 0,
            num_tokens_sampled=int(time.monotonic() * tokens_per_s),
        )

    def _is(self, what: str) -> bool:
        return (self.folder / what).exists()


class SeeingEngine(ToyEngine):
    """Leaves the accelerators it sees in its folder."""

    async def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "sees").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
        await super().start()


async def start_engine(folder: Path, **deeds: str) -> Any:
    """A ToyEngine in a process of its own."""
    settings = {"folder": str(folder), **deeds}
    config = EngineConfig(model=None, sequence_length=64, strategy_config=settings)
    host = ray.remote(num_cpus=0)(EngineHost).remote(NAME, config)
    await host.start.remote()
    return host


async def update(
    group: TrainerGroup,
    engines: dict[str, Any],
    version: int,
    transport: Transport,
    *,
    mode: str = "continue",
    bucket_bytes: int = 1 << 20,
    delta: bool = False,
    dtype: str = "float32",
) -> TransferReport | None:
    from envsdk.weights.update import update_engines

    return await update_engines(
        engines,
        group.send_weights,
        version=version,
        mode=mode,
        transport=transport,
        bucket_bytes=bucket_bytes,
        delta=delta,
        dtype=dtype,
    )


def read(folder: Path, version: int) -> dict[str, NDArray[Any]]:
    with np.load(folder / f"{version}.npz") as stored:
        return dict(stored)


async def weights_of(group: TrainerGroup, folder: Path) -> dict[str, NDArray[Any]]:
    """The trainer's present weights, as an engine gets them."""
    engine = await start_engine(folder / "engine")
    try:
        await update(group, {"engine": engine}, 1, Transport.SHARED_MEMORY)
    finally:
        ray.kill(engine)
    return read(folder / "engine", 1)
