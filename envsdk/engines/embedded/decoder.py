"""What the batching core asks of a model: prefill rows, decode rows, move a slot, take weights."""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from envsdk.contracts.failures import EngineError
from envsdk.contracts.held import Held
from envsdk.weights.folders import as_tensors as as_tensors
from envsdk.weights.shapes import checked as checked

Tensors = Iterable[tuple[str, Tensor]]
"""Weights by Hugging Face name, in any order."""

WeightsT = TypeVar("WeightsT")


class Decoder(ABC, Generic[WeightsT]):
    """A model and its slots. Slot i holds the keys and values of one sequence.

    Everything except `build` is called from the compute thread, under `torch.inference_mode`.
    Logits are float32.
    """

    vocab_size: int
    num_slots: int
    device: torch.device
    caches: bool
    """Whether slots really hold keys and values, so that a prefix can be reused."""

    @property
    def routes(self) -> bool:
        """Whether the model is a mixture of experts, whose choices `experts` tells."""
        return False

    @abstractmethod
    def build(self, tensors: Tensors) -> WeightsT:
        """`tensors` in the form this decoder computes with, sharing no memory with them.

        Takes them as they come and lets go of each as soon as it can. Safe while `decode` runs.
        Raises EngineError naming a missing, unknown, repeated or wrongly shaped weight.
        """

    @abstractmethod
    def use(self, weights: WeightsT) -> None:
        """Compute with `weights` from the next call on. Cached keys and values are the caller's business."""

    @abstractmethod
    def hold(self, held: Held) -> None:
        """Drop weights, keys and values, or make room for keys and values again; see `Engine.hold`."""

    @abstractmethod
    def prefill(
        self, first_slot: int, ids: list[NDArray[np.int64]], past: list[int], *, want_logits: bool
    ) -> Tensor | None:
        """Run slots `first_slot + i` over all their tokens `ids[i]`, of which `past[i]` are cached.

        Returns the logits after each last token, `[len(ids), vocab_size]`.
        """

    @abstractmethod
    def score(self, slot: int, ids: NDArray[np.int64]) -> Iterator[Tensor]:
        """Run a slot over all its tokens `ids`, at least one, and cache their keys and values.

        Yields the logits after each of them but the last, `[num_positions, vocab_size]`, of some at a time.
        """

    @abstractmethod
    def begin(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """The rows that `decode` works on are slots `[0, len(lengths))`; call again when they change.

        `ids` is `[num_slots, sequence_length]` and stays the caller's, who writes to it later.
        A row's last known token, at `lengths - 1`, is the one without keys and values yet.
        """

    @abstractmethod
    def decode(self, tokens: Tensor) -> Tensor:
        """One step: `tokens` `[rows]` are the rows' last tokens; logits `[rows, vocab_size]` follow them."""

    def experts(self) -> list[NDArray[np.int16]]:
        """Choices of the routers in the last `decode`, or `prefill` with logits, by row: for the tokens that
        have become known since, `[num_tokens, num_routers, num_chosen]`. Empty unless it `routes`."""
        return []

    @abstractmethod
    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` over slot `target`."""

    @abstractmethod
    def exchange(self, one: int, other: int, length: int) -> None:
        """Exchange the first `length` positions of two slots."""

    @abstractmethod
    def clear(self, slot: int) -> None:
        """Forget what is not a number: fill the slot with zeros."""


def read_folder(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the safetensors files in a Hugging Face folder."""
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder} holds no *.safetensors file; save the model with save_pretrained")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors.update(load_file(file))
    return tensors


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that cost no memory until they are written to, where the device is a CPU."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # The operating system zeroes pages as they are touched: small ones, or a few tokens would take megabytes.
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def padded(rows: Tensor, spare: int) -> Tensor:
    """With so many rows of zeros below."""
    return F.pad(rows, (0, 0, 0, spare)) if spare else rows
