"""Estimates of the memory that a model takes: to train it, and to sample from it. Pure.

They count what grows with the model and with the work: weights, gradients, optimizer, activations, logits,
keys and values. What CUDA takes for itself is `CUDA_CONTEXT` and `CUDA_WORK`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

FLOAT32 = 4
BFLOAT16 = 2

CUDA_CONTEXT = 1 << 29
"""Bytes that a process takes of a GPU as soon as it uses it, and does not give back."""
CUDA_WORK = 1 << 30
"""Bytes that it takes besides while it computes: workspaces of its kernels and of NCCL, fragmentation."""

LOGITS_AT_ONCE = 1 << 24
"""Logits that a trainer computes at once, where it does not have to keep them."""

Memory = Mapping[str, float]
"""Bytes on each device by what they are for, in the order to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Sizes of a decoder, as its folder has them."""

    model_type: str
    num_parameters: int
    num_layer_parameters: int
    """Those of them in the layers; the rest are embeddings, the last norm and the head."""
    num_expert_parameters: int = 0
    """Those of them in experts of a mixture."""
    adapted_width: int = 0
    """Inputs and outputs of all linear layers, which an adapter has one row or column for, times its rank."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    """Width of the feed-forward layers that one token passes, together."""
    query_width: int
    """Query heads times their size."""
    key_width: int
    """Key-value heads times their size."""
    head_width: int
    """Size of one head."""
    vocab_size: int
    norms_queries: bool = False
    """Whether queries and keys of each head are normalized, as in Qwen3."""
    stored_dtype: str = "bfloat16"
    """The type that the folder says the model is for."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of an element in it."""
        return FLOAT32 if self.stored_dtype == "float32" else BFLOAT16

    def element_bytes(self, dtype: str | None) -> int:
        """Bytes of an element of this type; None and `auto` are the model's own."""
        if dtype in (None, "auto"):
            return self.stored_bytes
        return FLOAT32 if dtype in ("float32", "float") else BFLOAT16

    def frozen_bytes(self, dtype: str) -> int:
        """Weights without gradient whose matrices are held in this type, and whose embeddings in float32."""
        element_bytes = self.element_bytes(dtype)
        embeddings = self.vocab_size * self.hidden_size
        return element_bytes * self.num_parameters + (FLOAT32 - element_bytes) * embeddings

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of an adapter of this rank on every linear layer."""
        return rank * self.adapted_width

    def key_value_bytes(self, element_bytes: int, *, num_devices: int = 1) -> int:
        """Bytes of one token on each of the devices that share the heads, which have at least one."""
        width = max(-(-self.key_width // num_devices), self.head_width)
        return 2 * self.num_layers * width * element_bytes

    def activation_bytes(
        self,
        num_tokens: int,
        element_bytes: int,
        *,
        recomputed: bool,
        feed_forward_recomputed: bool = False,
        num_devices: int = 1,
        shares_norms: bool = False,
        in_float32: bool = True,
    ) -> int:
        """Kept for the backward pass; where layers or their feed-forward parts are recomputed, only inputs of
        these, and all of one.

        Devices share what lies between the matrices, and the norms where `shares_norms`. Attention is a fused
        kernel's, which keeps no matrix of all pairs of tokens.

        Counted on transformers' Llama, Qwen2 and Qwen3: norms compute in float32. Where the stream that they
        read is `in_float32` and the rest is not, it gets them in copies.
        """
        heads = self.query_width + self.key_width
        between = (3 * heads + 4 * self.intermediate_size) * element_bytes
        between += 2 * heads * FLOAT32 if self.norms_queries else 0
        norms = 5 * self.hidden_size * FLOAT32
        if element_bytes < FLOAT32:
            norms = self.hidden_size * (5 * FLOAT32 + 2 * element_bytes if in_float32 else 14)
        ranks = num_devices if shares_norms else 1
        layer = between // num_devices + norms // ranks
        if recomputed:
            return num_tokens * (self.num_layers * self.hidden_size * FLOAT32 // ranks + layer)
        feed_forward = 4 * self.intermediate_size * element_bytes // num_devices
        again = feed_forward if feed_forward_recomputed else 0
        return num_tokens * (self.num_layers * (layer - again) + again)

    def pair_bytes(self, num_pairs: int, element_bytes: int, *, recomputed: bool) -> int:
        """Attention as a matrix, which `eager` keeps: in float32, and in the other type where that is one."""
        layers = 1 if recomputed else self.num_layers
        heads = self.query_width // self.head_width
        return layers * heads * num_pairs * (FLOAT32 + (element_bytes if element_bytes < FLOAT32 else 0))

    def score_bytes(self, num_tokens: int, *, trains_head: bool = True) -> int:
        """Logits of a few tokens at a time, with gradient; and the gradient of head and embeddings, or the
        head as it is multiplied."""
        at_once = min(num_tokens * self.vocab_size, LOGITS_AT_ONCE)
        return (
            3 * FLOAT32 * at_once
            + (3 * FLOAT32 if trains_head else BFLOAT16) * self.vocab_size * self.hidden_size
        )

    def logit_bytes(self, num_tokens: int) -> int:
        """Logits, their log-probabilities and their gradient, in float32."""
        return 3 * num_tokens * self.vocab_size * FLOAT32


@runtime_checkable
class EstimatesTraining(Protocol):
    """Strategy settings of a trainer that knows what memory it takes."""

    def training_memory(
        self, model: ModelSizes, *, num_ranks: int, num_tokens: int, sequence_length: int = 0
    ) -> Memory:
        """Memory of one rank, with `num_tokens` in a micro-batch of sequences of at most this length."""
        ...

    def frozen_memory(self, model: ModelSizes, *, num_ranks: int) -> Memory:
        """Memory of one rank of the reference policy."""
        ...


@runtime_checkable
class EstimatesSampling(Protocol):
    """Settings of an engine that knows what memory it takes."""

    def sampling_memory(self, model: ModelSizes, *, num_replies: int, num_tokens: int) -> Memory:
        """Memory of one device, with `num_replies` sequences of `num_tokens` at once."""
        ...


@runtime_checkable
class TakesShare(Protocol):
    """Settings of an engine that takes a share of its device, however much it needs."""

    @property
    def device_share(self) -> tuple[str, float] | None:
        """The setting and its value; None where something else decides."""
        ...
