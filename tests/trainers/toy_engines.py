"""An engine that writes down the weights it gets, and does as it is told when they come."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from envsdk.failures import EngineError
from envsdk.inference.engine import EngineConfig, WeightReference
from envsdk.inference.engine_host import EngineHost
from envsdk.inference.mock import MockEngine
from envsdk.pipeline.trainer_group import TrainerGroup
from envsdk.weights.transports import Transport
from envsdk.weights.update import TransferReport, update_engines

NAME = "tests.trainers.toy_engines:ToyEngine"


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
            if isinstance(array, torch.Tensor):
                array = (array.float() if array.dtype is torch.bfloat16 else array).numpy()
            yield name, array.copy()
            if index == 2 and self.deeds.get(str(version)) == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if index == 2 and self.deeds.get(str(version)) == "refuse":
                raise EngineError(f"weight `{name}` is not one of the model's")


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
