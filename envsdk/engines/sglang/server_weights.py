"""Shell: which weights a server samples with: full weights from a folder, or an adapter to the model's own.

in_folder (a thread) -> announce (replies are sampled) -> swap (the server samples nothing) -> `lora_name`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envsdk.contracts.failures import EngineError
from envsdk.contracts.held import Held
from envsdk.engines.core import NO_WEIGHTS
from envsdk.engines.engine import WeightReference
from envsdk.engines.engine_support.failures import ReplyRefused, Unavailable
from envsdk.engines.sglang.connection import Connection
from envsdk.engines.sglang.settings import SGLangSettings
from envsdk.weights.folders import copies, optional_head, write_adapter, write_folder
from envsdk.weights.lora import Adapter, told_apart
from envsdk.weights.shapes import Shape, checked, shapes_in

_TAGS = ("weights", "kv_cache")
"""The server's names for the memory that each step of `Held` adds."""
_DROPPED = -1
"""Version of weights that are gone."""


@dataclass(frozen=True, slots=True)
class NewWeights:
    """What the server is to sample with."""

    full: Path | None
    """A folder of full weights; None keeps the server's."""
    adapter: Path | None = None
    """A folder in PEFT's format."""


class ServerWeights:
    """Owner: the engine, on its event loop. `swap` is called while the server samples nothing."""

    def __init__(self, connection: Connection, model: Path | None, settings: SGLangSettings) -> None:
        self._connection = connection
        self._model = model
        self._settings = settings
        self.version = 0
        self.lora_name: str | None = None
        """What requests name to be sampled with the newest adapter; None while there is none."""
        self._announced: str | None = None
        self._has_other_weights = False
        """Full weights replaced those in the model's folder."""
        self._held = Held.ALL

    def in_folder(self, weights: WeightReference, temporary: Path, *, takes_adapters: bool) -> NewWeights:
        """Where the server finds them. EngineError when they are not the model's, or no adapter of it."""
        model = self._model
        expected = shapes_in(model) if model is not None else {}
        if model is None or not expected:
            raise EngineError(
                f"new weights cannot be checked: {model} holds no *.safetensors file; save the model with "
                "save_pretrained"
            )
        optional = optional_head(model, expected)
        if isinstance(weights, Path):
            shapes = ((name, Shape(shape)) for name, shape in shapes_in(weights).items())
            for _ in checked(shapes, expected, optional=optional):
                pass
            return NewWeights(weights.resolve())
        pairs = weights.items() if isinstance(weights, Mapping) else weights
        is_adapter, pairs = told_apart(pairs)
        if is_adapter and takes_adapters:
            return self._adapter_in_folder(Adapter.read(copies(pairs), expected), temporary)
        write_folder(pairs, temporary, expected, optional=optional)
        return NewWeights(temporary)

    def _adapter_in_folder(self, adapter: Adapter, folder: Path) -> NewWeights:
        assert self._model is not None
        ranks = sorted({len(half_a) for half_a, _ in adapter.pairs.values()})
        if len(ranks) > 1:
            raise EngineError(f"the adapter has ranks {ranks}; SGLang takes adapters of one rank")
        write_adapter(adapter, folder)
        return NewWeights(self._model.resolve() if self._has_other_weights else None, folder)

    async def announce(self, new: NewWeights) -> None:
        """Load an adapter into the server, next to the one in use. EngineError when it is not taken."""
        self._announced = None
        if new.adapter is None:
            return
        name = self._connection.new_name()
        body = {"lora_name": name, "lora_path": str(new.adapter)}
        try:
            await self._connection.post("/load_lora_adapter", body, timeout_s=self._settings.update_timeout_s)
        except (Unavailable, ReplyRefused) as error:
            raise EngineError(f"SGLang's server does not take the adapter: {error}") from error
        self._announced = name

    async def swap(self, new: NewWeights, version: int) -> None:
        """Raises Unavailable or ReplyRefused: the server's weights are then unknown."""
        stamp = self._connection.stamp(version)
        if new.full is not None:
            await self._read_full(new.full, stamp)
            self._has_other_weights = self._model is None or new.full != self._model.resolve()
        else:
            await self._connection.post(
                "/update_weight_version", {"new_version": stamp, "abort_all_requests": False}
            )
        former, self.lora_name = self.lora_name, self._announced
        if former is not None:
            await self._connection.post("/unload_lora_adapter", {"lora_name": former})
        self.version = version

    async def hold(self, held: Held) -> None:
        """What the server holds of its devices; it has no request. Raises Unavailable or ReplyRefused.

        EngineError when more is asked for than weights, and none came since they were dropped.
        """
        if held is Held.NOTHING and self._held:
            await self._empty_cache()
            await self._occupy("release", *_TAGS)
            self.version, self._has_other_weights = _DROPPED, True
        elif held is Held.ALL and self.version == _DROPPED:
            raise EngineError(NO_WEIGHTS)
        for tag in _TAGS[self._held : held]:
            await self._occupy("resume", tag)
        self._held = held if held is Held.NOTHING else max(self._held, held)

    async def _occupy(self, verb: str, *tags: str) -> None:
        path, seconds = f"/{verb}_memory_occupation", self._settings.update_timeout_s
        await self._connection.post(path, {"tags": list(tags)}, timeout_s=seconds)

    async def _empty_cache(self) -> None:
        # Right after a request's end the scheduler may still be at its last step, and an update that finds it
        # there cannot empty the cache, which ends the server. This waits, and fails instead.
        silence_s = self._settings.silence_timeout_s
        await self._connection.post(f"/flush_cache?timeout={silence_s:g}", timeout_s=2 * silence_s)

    async def _read_full(self, folder: Path, stamp: str) -> None:
        await self._empty_cache()
        await self._connection.post(
            "/update_weights_from_disk",
            {
                "model_path": str(folder),
                "load_format": "auto",
                "flush_cache": True,
                "abort_all_requests": False,
                "weight_version": stamp,
            },
            timeout_s=self._settings.update_timeout_s,
        )
