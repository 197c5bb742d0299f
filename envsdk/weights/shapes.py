"""Check names and shapes of weights against the model's, for arrays and tensors. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from envsdk.base.store.language_model import language_model_names
from envsdk.contracts.failures import EngineError

Shapes = Mapping[str, tuple[int, ...]]


class HasShape(Protocol):
    """An array, a tensor or a `Shape`."""

    @property
    def shape(self) -> Any: ...


WeightT = TypeVar("WeightT", bound=HasShape)


@dataclass(frozen=True, slots=True)
class Shape:
    """A weight of which only this is known."""

    shape: tuple[int, ...]


def checked(
    weights: Iterable[tuple[str, WeightT]], expected: Shapes, *, optional: frozenset[str] = frozenset()
) -> Iterator[tuple[str, WeightT]]:
    """The `expected` ones among `weights`, each once. `optional` names may be there and are passed over.

    Raises EngineError for the first that is unknown, repeated or of another shape, or at the end is missing.
    """
    missing = {name: shape for name, shape in expected.items() if name not in optional}
    num_given = 0
    for name, weight in weights:
        num_given += 1
        if name in optional or name.endswith("rotary_emb.inv_freq"):
            continue
        shape = missing.pop(name, None)
        if shape is None:
            what = "came twice" if name in expected else "is not one of the model's"
            raise EngineError(f"weight `{name}` {what}")
        if tuple(weight.shape) != shape:
            raise EngineError(
                f"weight `{name}` has shape {list(weight.shape)}; the model needs {list(shape)}"
            )
        yield name, weight
    for name in missing:
        raise EngineError(f"weight `{name}` is missing; {num_given} weights were given")


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights in a Hugging Face folder's safetensors files; empty when it holds none.

    Those of the language model: what is beside it, such as towers for images, is not trained.
    Reads the files' headers alone. EngineError for a file that cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as tensors:
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise EngineError(f"{file} cannot be read: {error}") from error
    kept = language_model_names(folder, shapes)
    return {name: shape for name, shape in shapes.items() if name in kept}
