"""Settings of the strategy `megatron_train`, typed. Imports neither torch nor Megatron, so that the
configuration layer can check them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from envsdk.base.settings.memory import BFLOAT16, FLOAT32, Memory, ModelSizes
from envsdk.base.settings.problems import Problem
from envsdk.base.settings.strict import StrictSettings
from envsdk.trainers.training_args import LoRAArgs

RecomputedModule = Literal["core_attn", "mlp", "moe", "shared_experts"]


class MegatronStrategyConfig(StrictSettings):
    """The section `actor_train.strategy_args.strategy_config` for `strategy_name: megatron_train`.

    `actor_train.device_mapping` gives the number of ranks; divided by the sizes below it is the number of
    data-parallel copies. Each rank needs a GPU: the one of the rank's number on its machine.
    """

    needs: ClassVar[tuple[str, ...]] = ("megatron",)
    """Modules of optional packages that a run with this trainer needs."""
    needs_gpu: ClassVar[bool] = True
    replays_routing: ClassVar[bool] = True
    takes_support: ClassVar[bool] = True
    """Both as `TransformersArgs`."""

    tensor_model_parallel_size: int = Field(default=1, ge=1)
    """Ranks that shard each matrix. It divides the model's attention heads, its key-value heads and the
    width of its feed-forward layers; a vocabulary it does not divide is padded."""
    pipeline_model_parallel_size: int = Field(default=1, ge=1)
    """Ranks that hold successive layers. It divides the number of layers."""
    virtual_pipeline_model_parallel_size: int | None = Field(default=None, ge=2)
    """Pieces of the model on each pipeline rank, taken in turns (interleaved schedule): shorter waits, more
    traffic."""
    context_parallel_size: int = Field(default=1, ge=1)
    """Ranks that shard each sequence, for long ones."""
    expert_model_parallel_size: int = Field(default=1, ge=1)
    """Ranks that shard the experts of a mixture; it divides their number. Taken from the ranks of data,
    context and tensor parallelism, not on top of them."""
    expert_tensor_parallel_size: int | None = Field(default=None, ge=1)
    """Ranks that shard each expert's matrices; null is `tensor_model_parallel_size`."""
    sequence_parallel: bool = False
    """Tensor-parallel ranks also shard the activations between the matrices, along the sequence: less memory,
    the same traffic. A mixture of experts under tensor parallelism needs it."""
    use_distributed_optimizer: bool = True
    """Data-parallel ranks shard the optimizer's moments and main weights instead of copying them."""
    recompute_granularity: Literal["selective", "full"] | None = None
    """Recompute in the backward pass: `recompute_modules` (`selective`), or full layers (`full`): least
    memory, about a third more time."""
    recompute_modules: Sequence[RecomputedModule] = ("core_attn",)
    """Parts of each layer that `selective` recomputes, by Megatron's names: attention, the feed-forward part
    of a dense layer (`mlp`) or of one with experts (`moe`), or shared experts alone."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and activations. With `bfloat16` the optimizer keeps float32 main weights;
    gradients are added up, and log-probabilities computed, in float32 either way."""
    attn_implementation: Literal["auto", "transformer_engine", "varlen", "sdpa"] = "auto"
    """Kernels of attention. `transformer_engine`: that package's layers, with its attention, norms and matrix
    products; for models without experts. `varlen`: PyTorch's FlashAttention, one call for all packed
    sequences; without context parallelism. `sdpa`: one call for each length. The first two need a GPU and
    `dtype: bfloat16`. `auto` is the first of the three that can be had."""
    overlap_grad_reduce: bool = False
    """Add up gradients over data-parallel ranks while the backward pass still runs."""
    overlap_param_gather: bool = False
    """Gather weights that data-parallel ranks have updated while the next forward pass runs. Needs
    `use_distributed_optimizer` and `overlap_grad_reduce`."""
    lora: LoRAArgs | None = None
    """Train an adapter alone, as `torch` does: `rank`, and if need be `alpha` and `target_modules`. Experts
    get none, and Transformer Engine's layers take none."""
    num_threads: int = Field(default=1, ge=1)
    """CPU threads of one operator on each rank."""

    @property
    def attention(self) -> str:
        """How attention will be computed, in words; the trainer knows the kernel when it runs."""
        if self.attn_implementation == "auto":
            return "the first of Transformer Engine, varlen and sdpa that fits device and model"
        return self.attn_implementation

    def attention_problem(self) -> str | None:
        """What is missing on this machine for `attn_implementation`."""
        if self.attn_implementation == "transformer_engine" and find_spec("transformer_engine") is None:
            return "Transformer Engine is not installed here; `auto` takes what is here"
        return None

    def model_problems(self, folder: Path) -> Iterator[Problem]:
        """Why the model in a folder is not trained, as far as that is known without transformers."""
        if find_spec("transformers") is None:
            return
        from envsdk.base.store.model_files import hf_config
        from envsdk.trainers.megatron.hf_config import problems_of

        try:
            config = hf_config(folder)
        except (OSError, ValueError) as error:
            yield Problem(("pretrain",), f"cannot load the model in {folder}: {error}")
        else:
            yield from problems_of(config, self)

    @property
    def ranks_per_copy(self) -> int:
        """Ranks that hold one copy of the model and one sequence: tensor x pipeline x context."""
        return (
            self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size
        )

    @property
    def expert_tensor_size(self) -> int:
        """Ranks that shard one expert."""
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size

    @property
    def world_size_unit(self) -> int:
        """The layout fits every number of ranks that is a multiple of it."""
        experts = (
            self.expert_tensor_size * self.expert_model_parallel_size * self.pipeline_model_parallel_size
        )
        return math.lcm(self.ranks_per_copy, experts)

    def layout(self, num_ranks: int) -> str:
        """What the ranks are for, in words; ValueError when so many cannot be shared out."""
        unit = self.world_size_unit
        sizes = {
            "tensor": self.tensor_model_parallel_size,
            "pipeline": self.pipeline_model_parallel_size,
            "context": self.context_parallel_size,
        }
        if num_ranks % unit:
            if unit > self.ranks_per_copy:
                sizes |= {"expert": self.expert_model_parallel_size, "expert tensor": self.expert_tensor_size}
            asked = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
            raise ValueError(f"{num_ranks} ranks cannot be shared out as {asked}; use a multiple of {unit}")
        sizes["data"] = num_ranks // self.ranks_per_copy
        layout = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "one copy"
        experts = self.expert_model_parallel_size
        return layout + (f", experts over {experts}" if experts > 1 else "")

    def training_memory(
        self, model: ModelSizes, *, num_ranks: int, num_tokens: int, sequence_length: int = 0
    ) -> Memory:
        """Memory of one rank, in bytes; see `EstimatesTraining`."""
        weights, moments = (FLOAT32, 8) if self.dtype == "float32" else (BFLOAT16, 12)
        frozen, (dense, experts) = 0.0, self._parameters(model)
        if self.lora is not None:
            frozen, experts = dense + experts, 0.0
            dense = model.adapter_parameters(self.lora.rank) / self.pipeline_model_parallel_size
        # Ranks that have the same parameters share the moments, and the main weights of bfloat16.
        if self.use_distributed_optimizer:
            stage = num_ranks // self.pipeline_model_parallel_size
            of_dense = dense / (stage // self.tensor_model_parallel_size)
            of_experts = experts / (stage // (self.expert_tensor_size * self.expert_model_parallel_size))
        else:
            of_dense, of_experts = dense, experts
        tokens = math.ceil(num_tokens / self.context_parallel_size)
        return {
            # Gradients are added up in float32.
            "weights, gradients, optimizer": frozen * weights
            + (dense + experts) * (weights + FLOAT32)
            + (of_dense + of_experts) * moments,
            # A pipeline keeps as many micro-batches as it has stages, each with the layers of a stage.
            "activations": model.activation_bytes(
                tokens,
                FLOAT32 if self.dtype == "float32" else BFLOAT16,
                recomputed=self.recompute_granularity == "full",
                feed_forward_recomputed=self.recomputes("moe" if model.num_expert_parameters else "mlp"),
                num_devices=self.tensor_model_parallel_size,
                shares_norms=self.sequence_parallel,
            ),
            "logits, if every token is scored": model.logit_bytes(tokens) / self.tensor_model_parallel_size,
        }

    def recomputes(self, module: str) -> bool:
        """Whether the backward pass computes this part of each layer again."""
        is_selected = self.recompute_granularity == "selective" and module in self.recompute_modules
        return is_selected or self.recompute_granularity == "full"

    def frozen_memory(self, model: ModelSizes, *, num_ranks: int) -> Memory:
        """Memory of one rank, in bytes; see `EstimatesTraining`."""
        return {"weights": sum(self._parameters(model)) * (FLOAT32 if self.dtype == "float32" else BFLOAT16)}

    def _parameters(self, model: ModelSizes) -> tuple[float, float]:
        """Parameters of the rank with most of them: those outside of experts, and in them."""
        stages = self.pipeline_model_parallel_size
        experts = model.num_expert_parameters / (self.expert_tensor_size * self.expert_model_parallel_size)
        layers = (model.num_layer_parameters - model.num_expert_parameters) / stages
        # The first stage has the embeddings, the last one the head.
        rest = model.num_parameters - model.num_layer_parameters
        rest = rest if stages == 1 else min(rest, model.vocab_size * model.hidden_size + model.hidden_size)
        return (layers + rest) / self.tensor_model_parallel_size, experts / stages

    @model_validator(mode="after")
    def _sizes_agree(self) -> MegatronStrategyConfig:
        if self.sequence_parallel and self.tensor_model_parallel_size == 1:
            raise ValueError("sequence_parallel: true needs tensor_model_parallel_size of 2 or more")
        if self.virtual_pipeline_model_parallel_size and self.pipeline_model_parallel_size == 1:
            raise ValueError(
                "virtual_pipeline_model_parallel_size needs pipeline_model_parallel_size of 2 or more"
            )
        if self.overlap_param_gather and not (self.use_distributed_optimizer and self.overlap_grad_reduce):
            raise ValueError(
                "overlap_param_gather: true needs use_distributed_optimizer: true and "
                "overlap_grad_reduce: true"
            )
        if "recompute_modules" in self.model_fields_set and self.recompute_granularity != "selective":
            raise ValueError("recompute_modules needs recompute_granularity: selective")
        return self
