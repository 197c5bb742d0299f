"""The device of a rank of the Megatron trainer, and what it holds of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import torch
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.transformer import TransformerConfig

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.held import Held
from envsdk.trainers.attention import sdpa_kernel
from envsdk.trainers.megatron.optimizer import ParallelOptimizer
from envsdk.trainers.offload import DeviceMemory, MovedStorages


def device() -> torch.device:
    """This rank's GPU; the CPU where there is none, for tests that let Megatron run there."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def require_gpu() -> None:
    """ConfigurationError where this process sees no GPU."""
    if not torch.cuda.is_available():
        raise ConfigurationError(
            "strategy_name: megatron_train needs a CUDA GPU for each rank, and this process sees none; "
            "on CPUs train with fsdp2_train or torch"
        )


class RankMemory:
    """Everything on the device -> hold, holding -> ...; every rank makes every call."""

    def __init__(self, optimizer: ParallelOptimizer) -> None:
        self._optimizer = optimizer
        self.held = Held.ALL
        memory = DeviceMemory(device())
        self.weights, self.rest = MovedStorages(memory), MovedStorages(memory)
        """They are where the rank does not hold them."""

    def hold(self, held: Held) -> None:
        """Move what is not held to main memory, and what is, back."""
        if self.held:
            self._optimizer.finish_param_gather()
        weights, rest, gradients = self._optimizer.tensors()
        if held is not Held.ALL:
            self.rest.leave(rest, zeros=gradients, but=weights)
        if held is Held.NOTHING:
            self.weights.leave(weights)
        for away in (self.weights, self.rest)[:held]:
            away.come_back()
        self.held = held

    @contextmanager
    def holding(self, held: Held) -> Iterator[None]:
        """Inside, so much is held at least: ranks exchange weights and moments on their devices."""
        before = self.held
        if before < held:
            self.hold(held)
        try:
            yield
        finally:
            if before < held:
                self.hold(before)


class Attention(StrEnum):
    """In the order of preference."""

    TRANSFORMER_ENGINE = "transformer_engine"
    """Norms and matrix products are Transformer Engine's too."""
    VARLEN = "varlen"
    """PyTorch's FlashAttention over packed sequences, one call for all."""
    SDPA = "sdpa"
    """PyTorch's scaled dot-product attention, one call for each length."""


def chosen_attention(asked: str, config: TransformerConfig, *, with_adapter: bool = False) -> Attention:
    """`asked`, or for `auto` the first that can be had. ConfigurationError names what `asked` lacks."""
    if asked == "auto":
        return next(each for each in Attention if not list(_lacking(each, config, with_adapter)))
    if lacking := list(_lacking(Attention(asked), config, with_adapter)):
        raise ConfigurationError(f"attn_implementation: {asked} needs {', '.join(lacking)}")
    return Attention(asked)


def kernels_of(attention: Attention, config: TransformerConfig) -> dict[str, str]:
    """What the trainer says of them."""
    if attention is Attention.TRANSFORMER_ENGINE:
        return {"attention": "transformer_engine", "layers": "transformer_engine"}
    if attention is Attention.VARLEN:
        return {"attention": "varlen (flash)", "layers": "megatron-core"}
    tp = config.tensor_model_parallel_size
    kernel = sdpa_kernel(
        num_heads=config.num_attention_heads // tp,
        num_key_value_heads=config.num_query_groups // tp,
        head_width=config.kv_channels,
        dtype=config.params_dtype,
        device=device(),
        has_mask=config.context_parallel_size > 1,
    )
    return {"attention": f"sdpa ({kernel})", "layers": "megatron-core"}


def _lacking(attention: Attention, config: TransformerConfig, with_adapter: bool) -> Iterator[str]:
    if attention is Attention.SDPA:
        return
    if _compute_capability() < (8, 0):
        yield "a GPU of compute capability 8.0 or later"
    if config.params_dtype is torch.float32:
        yield "dtype: bfloat16"
    if attention is Attention.TRANSFORMER_ENGINE:
        if not gpt_layer_specs.HAVE_TE:
            yield "the package transformer-engine"
        if config.num_moe_experts:
            yield "a model without experts"
        if with_adapter:
            yield "no lora"
        return
    if config.kv_channels % 8 or config.kv_channels > 256:
        yield "heads of at most 256 channels, a multiple of 8"
    if config.context_parallel_size > 1:
        yield "context_parallel_size: 1"


def _compute_capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
