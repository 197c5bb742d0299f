"""Where the engines' weights come from: the run's own trainer, or weights that somebody gives. And where a
trainer's weights go when other programs are to have them.

    source = GivenWeights(model)                  # holds those of `model`
    source.hold(source.checked(my_model.state_dict()))   # or a folder: checked against the model's shapes
    await source.send_weights(transfer)           # whenever an engine needs them

What is held stays until the next: an engine that is started later gets the same weights as the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import ray

from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.weights.delta import WeightBase
from envsdk.weights.folders import copies, finite, optional_head, tensors_in
from envsdk.weights.shapes import Shape, checked, shapes_in
from envsdk.weights.update import TransferReport, WeightSender, WeightTransfer

if TYPE_CHECKING:
    from torch import Tensor

Weights: TypeAlias = "Path | dict[str, Tensor]"
"""A Hugging Face folder, or tensors in main memory."""

_WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
"""What wrappers of models write before the names of weights."""


class WeightSource(Protocol):
    """What sends weights to engines. `TrainerGroup` is one."""

    async def send_weights(self, transfer: WeightTransfer) -> TransferReport:
        """Send the weights as they are now."""
        ...

    async def node_id(self) -> str:
        """The node of the cluster that they are sent from."""
        ...

    async def card(self) -> str:
        """UUID of the card that they are sent from; "" for main memory."""
        ...

    async def has_adapter(self) -> bool:
        """Whether a LoRA adapter is all that changes."""
        ...


class WeightOutlet(Protocol):
    """Travels to the process of the trainer's first rank and takes the weights there."""

    def take(self, weights: Iterable[tuple[str, Any]]) -> Mapping[str, Any]:
        """Go through all of them; returns where they are now. StorageError for what may work later."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutletReport:
    """What became of the weights."""

    location: Mapping[str, Any] | None
    """As `take` returned it; None when it failed."""
    problem: str = ""
    """Why it failed, for the user."""


class GivenWeights:
    """A `WeightSource` in the user's own process."""

    def __init__(self, model: Path) -> None:
        """Holds the weights in the Hugging Face folder `model`, whose shapes all later ones have."""
        self._shapes = shapes_in(model)
        self._optional = optional_head(model, self._shapes)
        self._held: Weights = model
        self._base = WeightBase()

    def checked(self, weights: Mapping[str, Any] | str | Path) -> Weights:
        """A copy of these weights in main memory, or their folder.

        Args:
            weights: Tensors or arrays under Hugging Face names, on any device; or a Hugging Face folder or
                checkpoint, whose files must stay as long as they are held.

        Raises:
            ConfigurationError: No such folder, names or shapes that are not the model's, NaN or infinity.
        """
        if isinstance(weights, Mapping):
            self._check((name, Shape(_shape_of(name, value))) for name, value in weights.items())
            try:
                return {name: finite(name, tensor) for name, tensor in copies(weights.items())}
            except EngineError as error:
                raise ConfigurationError(str(error)) from error
        if not isinstance(weights, str | Path):
            raise ConfigurationError(
                f"weights cannot be published from a {type(weights).__name__}: give model.state_dict() or "
                "the folder of a model"
            )
        folder = _model_folder(Path(weights))
        self._check((name, Shape(shape)) for name, shape in shapes_in(folder).items())
        return folder

    def hold(self, weights: Weights) -> Weights:
        """Send these from now on, as `checked` gave them; returns those that were held."""
        former, self._held = self._held, weights
        return former

    async def send_weights(self, transfer: WeightTransfer) -> TransferReport:
        """Send what is held."""
        return await asyncio.to_thread(WeightSender(transfer, self._base).send, self._weights())

    async def node_id(self) -> str:
        """That of this process."""
        return str(ray.get_runtime_context().get_node_id())

    async def card(self) -> str:
        """They are held in main memory."""
        return ""

    async def has_adapter(self) -> bool:
        """Weights are given whole."""
        return False

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        held = self._held
        named = held.items() if isinstance(held, dict) else tensors_in(held)
        return checked(named, self._shapes, optional=self._optional)

    def _check(self, shapes: Iterable[tuple[str, Shape]]) -> None:
        given = list(shapes)
        try:
            for _ in checked(given, self._shapes, optional=self._optional):
                pass
        except EngineError as error:
            hint = next(
                (
                    f": names begin with `{prefix}`, so give the state_dict() of the model inside the wrapper"
                    for prefix in _WRAPPERS
                    if given and given[0][0].startswith(prefix)
                ),
                "",
            )
            raise ConfigurationError(f"these weights cannot be published: {error}{hint}") from error


def _shape_of(name: str, value: Any) -> tuple[int, ...]:
    try:
        return tuple(value.shape)
    except AttributeError:
        raise ConfigurationError(
            f"weight `{name}` is a {type(value).__name__}: give a tensor or an array"
        ) from None


def _model_folder(path: Path) -> Path:
    """The folder with the weights: this one, or `model` in it as in a checkpoint."""
    path = path.expanduser()
    for candidate in (path, path / "model"):
        if any(candidate.glob("*.safetensors")):
            return candidate
    raise ConfigurationError(
        f"there are no weights in {path}: name a Hugging Face folder with safetensors files, or a checkpoint"
    )
