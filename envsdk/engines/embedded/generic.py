"""Any Hugging Face causal language model, by full forward passes through transformers.

No keys and values are kept: every step runs each row from its first token, padded on the right,
where a causal model cannot see the padding. Slow, and right for every architecture.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from transformers.core_model_loading import revert_weight_conversion

from envsdk.base.store.expert_choice import ExpertChoice
from envsdk.base.store.language_model import load_language_model
from envsdk.contracts.failures import EngineError
from envsdk.contracts.held import Held
from envsdk.engines.core import NO_WEIGHTS
from envsdk.engines.embedded.decoder import Decoder, Tensors, checked

GenericWeights = dict[str, Tensor]


class GenericDecoder(Decoder[GenericWeights]):
    """See the module's text."""

    caches = False

    def __init__(
        self,
        model: Any,
        *,
        num_slots: int,
        max_prefill_tokens: int,
        device: torch.device,
    ) -> None:
        self._model = model.to(device).eval().requires_grad_(False)
        self.vocab_size = int(model.config.vocab_size)
        self.num_slots = num_slots
        self.device = device
        self._max_prefill_tokens = max_prefill_tokens
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        state = model.state_dict()
        self._dtypes = {name: value.dtype for name, value in state.items()}
        first_name: dict[int, str] = {}
        self._aliases = {
            name: first
            for name, value in state.items()
            if (first := first_name.setdefault(value.data_ptr(), name)) != name
        }
        """Names of tied weights, each with the name it shares its memory with."""
        self._untied_shapes = {
            name: tuple(value.shape) for name, value in state.items() if name not in self._aliases
        }
        self._stored_in = {
            name: list(stored)
            for name in self._untied_shapes
            if name not in (stored := revert_weight_conversion(model, {name: state[name].to("meta")}))
        }
        """Names of the parts in which weights are on disk where they are fused in memory: experts."""
        self._choice = ExpertChoice(self._model)
        self._experts: list[NDArray[np.int16]] = []
        self._weights: GenericWeights = {}
        self._ids = np.empty((0, 0), np.int64)
        self._lengths = np.empty(0, np.int64)

    @property
    def routes(self) -> bool:
        return self._choice.num_routers > 0

    def build(self, tensors: Tensors) -> GenericWeights:
        return {
            name: tensor.to(self.device, self._dtypes[name], copy=True)
            for name, tensor in checked(self._fused(self._untied(tensors)), self._untied_shapes)
        }

    def _untied(self, tensors: Tensors) -> Tensors:
        """Tied weights once, under any of their names."""
        tied, seen = frozenset(self._aliases.values()), set[str]()
        for given, tensor in tensors:
            name = self._aliases.get(given, given)
            if name not in seen:
                yield name, tensor
            if name in tied:
                seen.add(name)

    def _fused(self, tensors: Tensors) -> Tensors:
        """Weights as they are in memory, also those that come as they are on disk."""
        part_of = {part: name for name, parts in self._stored_in.items() for part in parts}
        waiting: dict[str, dict[str, Tensor]] = {}
        for given, tensor in tensors:
            name = part_of.get(given)
            if name is None:
                yield given, tensor
                continue
            found = waiting.setdefault(name, {})
            found[given] = tensor.clone()
            if len(found) == len(self._stored_in[name]):
                parts = [found[part] for part in self._stored_in[name]]
                yield name, _with_all_experts(parts, self._untied_shapes[name][0])
                del waiting[name]

    def use(self, weights: GenericWeights) -> None:
        self._weights = weights

    def hold(self, held: Held) -> None:
        if held is Held.NOTHING:
            self._weights = {}
            for parameter in self._model.parameters():  # which those of `_weights` stand for in every pass
                parameter.data = parameter.data.new_empty(0)
        elif held is Held.ALL and not self._weights:
            raise EngineError(NO_WEIGHTS)

    def prefill(
        self, first_slot: int, ids: list[NDArray[np.int64]], past: list[int], *, want_logits: bool
    ) -> Tensor | None:
        return self._forward(ids) if want_logits else None

    def score(self, slot: int, ids: NDArray[np.int64]) -> Iterator[Tensor]:
        arguments: dict[str, Any] = {
            "input_ids": torch.from_numpy(ids[None, :-1]).to(self.device),
            "use_cache": False,
        }
        if len(ids) > 1:
            output = functional_call(self._model, self._weights, kwargs=arguments, tie_weights=True)
            yield output.logits[0].float()

    def begin(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self._ids = ids
        self._lengths = lengths.copy()

    def decode(self, tokens: Tensor) -> Tensor:
        logits = self._forward([self._ids[row, :length] for row, length in enumerate(self._lengths)])
        self._experts = [experts[-1:] for experts in self._experts]
        self._lengths += 1
        return logits

    def _forward(self, ids: list[NDArray[np.int64]]) -> Tensor:
        """Logits after each row's last token, `[rows, vocab_size]`, in chunks of bounded size."""
        logits: list[Tensor] = []
        self._experts = []
        start = 0
        while start < len(ids):
            end, longest = start + 1, len(ids[start])
            while end < len(ids):
                longest = max(longest, len(ids[end]))
                if longest * (end + 1 - start) > self._max_prefill_tokens:
                    break
                end += 1
            logits.append(self._forward_padded(ids[start:end]))
            start = end
        return torch.cat(logits)

    def _forward_padded(self, ids: list[NDArray[np.int64]]) -> Tensor:
        lengths = torch.tensor([len(row) for row in ids], device=self.device)
        longest = int(lengths.max())
        padded = np.zeros((len(ids), longest), np.int64)
        for row, tokens in enumerate(ids):
            padded[row, : len(tokens)] = tokens
        arguments: dict[str, Any] = {
            "input_ids": torch.from_numpy(padded).to(self.device),
            "attention_mask": (torch.arange(longest, device=self.device) < lengths[:, None]).long(),
            "use_cache": False,
        }
        kept = longest
        if self._keeps_logits:
            kept = arguments["logits_to_keep"] = longest - int(lengths.min()) + 1
        output = functional_call(self._model, self._weights, kwargs=arguments, tie_weights=True)
        if self.routes:
            made = self._choice.made()
            experts = made.view(*padded.shape, *made.shape[1:]).to("cpu", torch.int16).numpy()
            self._experts += [row[: len(tokens)] for row, tokens in zip(experts, ids, strict=True)]
        last = lengths - 1 - (longest - kept)
        chosen: Tensor = output.logits[torch.arange(len(ids), device=self.device), last]
        return chosen.float()

    def experts(self) -> list[NDArray[np.int16]]:
        return self._experts

    def move(self, source: int, target: int, length: int) -> None:
        """Nothing is kept in a slot."""

    def exchange(self, one: int, other: int, length: int) -> None:
        """Nothing is kept in a slot."""

    def clear(self, slot: int) -> None:
        """Nothing is kept in a slot."""


def _with_all_experts(parts: list[Tensor], num_experts: int) -> Tensor:
    """One kind of matrix of every expert, then the next kind; the kinds lie below each other.

    A single part is a weight that has another name on disk.
    """
    if len(parts) == 1:
        return parts[0]
    kinds = [torch.stack(parts[at : at + num_experts]) for at in range(0, len(parts), num_experts)]
    return torch.cat(kinds, 1)


def load_model(folder: Path, dtype: torch.dtype) -> Any:
    """The model in a Hugging Face folder."""
    try:
        return load_language_model(folder, dtype=dtype)
    except (OSError, ValueError, RuntimeError) as error:
        raise EngineError(f"{folder} cannot be loaded by transformers: {error}") from error
