"""LoRA adapters as weights: low-rank additions to some of a model's matrices.

    M.lora_A.weight `[r, in]`, M.lora_B.weight `[out, r]`  ->  M.weight + B @ A

(Hu et al., "LoRA", 2021, section 4.1; the scaling alpha / r is in B, put there by the sender.) Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envsdk.contracts.failures import EngineError
from envsdk.weights.shapes import Shapes

if TYPE_CHECKING:
    from torch import Tensor

A_SUFFIX = ".lora_A.weight"
B_SUFFIX = ".lora_B.weight"


def told_apart(weights: Iterable[tuple[str, Any]]) -> tuple[bool, Iterator[tuple[str, Any]]]:
    """Whether they are an adapter, by the first one's name, and all of them."""
    remaining = iter(weights)
    first = list(itertools.islice(remaining, 1))
    is_adapter = bool(first) and first[0][0].endswith((A_SUFFIX, B_SUFFIX))
    return is_adapter, itertools.chain(first, remaining)


@dataclass(frozen=True, slots=True)
class Adapter:
    """One for a model: `(A, B)` by the module's name."""

    pairs: Mapping[str, tuple[Tensor, Tensor]]

    @classmethod
    def read(cls, weights: Iterable[tuple[str, Tensor]], expected: Shapes) -> Adapter:
        """EngineError for a weight that fits no matrix of the model, comes twice, or lacks its other half.

        `expected` are the model's; where it is empty, nothing is known of them.
        """
        halves: dict[str, Tensor] = {}
        for name, weight in weights:
            if not name.endswith((A_SUFFIX, B_SUFFIX)):
                raise EngineError(
                    f"weight `{name}` is no part of an adapter, but others that came with it are"
                )
            if name in halves:
                raise EngineError(f"weight `{name}` came twice")
            halves[name] = weight
        modules = dict.fromkeys(name.removesuffix(A_SUFFIX).removesuffix(B_SUFFIX) for name in halves)
        pairs = {}
        for module in modules:
            for name in (module + A_SUFFIX, module + B_SUFFIX):
                if name not in halves:
                    raise EngineError(f"weight `{name}` is missing: the adapter has the other half alone")
            pairs[module] = (halves[module + A_SUFFIX], halves[module + B_SUFFIX])
            _check(module, *pairs[module], expected)
        return cls(pairs)

    @property
    def rank(self) -> int:
        """The largest one."""
        return max(len(half_a) for half_a, _ in self.pairs.values())

    def merged(self, base: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The model's weights with the adapter added, in float32: bfloat16 would round most of it away.

        EngineError when they lack one of its modules.
        """
        left = {f"{module}.weight": pair for module, pair in self.pairs.items()}
        for name, weight in base:
            pair = left.pop(name, None)
            if pair is not None:
                half_a, half_b = (half.to(weight.device).float() for half in pair)
                weight = weight.float() + half_b @ half_a
            yield name, weight
        for name in left:
            raise EngineError(f"the adapter is for `{name}`, which is not one of the model's weights")


def _check(module: str, half_a: Tensor, half_b: Tensor, expected: Shapes) -> None:
    shapes = tuple(half_a.shape), tuple(half_b.shape)
    if len(shapes[0]) != 2 or len(shapes[1]) != 2 or shapes[0][0] != shapes[1][1]:
        raise EngineError(
            f"the adapter of `{module}` has A {list(shapes[0])} and B {list(shapes[1])}; they must be "
            "[r, in] and [out, r]"
        )
    if not expected:
        return
    name, fits = f"{module}.weight", (shapes[1][0], shapes[0][1])
    if name not in expected:
        raise EngineError(f"the adapter is for `{name}`, which is not one of the model's weights")
    if expected[name] != fits:
        raise EngineError(
            f"the adapter of `{module}` is for a weight of {list(fits)}, but it is {list(expected[name])}"
        )
