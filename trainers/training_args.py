"""Settings of the trainers, typed. Imports no torch, so that the configuration layer can check them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictBool, field_validator, model_validator

from envsdk.base.processes.cards import has_gpus
from envsdk.base.settings.memory import FLOAT32, Memory, ModelSizes
from envsdk.base.settings.precision import Device, DType, Precision, precision
from envsdk.base.settings.problems import Problem
from envsdk.base.settings.strict import StrictSettings
from envsdk.base.store import language_model
from envsdk.base.store.model_files import stored_model_type


class TrainingArgs(StrictSettings):
    """The section `actor_train.training_args`, the same for every trainer of the SDK."""

    learning_rate: float = Field(default=1e-4, ge=0.0)
    """Peak learning rate of AdamW."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled decay of weight matrices; norms, biases and embeddings are never decayed."""
    adam_beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Share that the mean of the gradients keeps in each step."""
    adam_beta2: float = Field(default=0.999, ge=0.0, lt=1.0)
    """Share that the mean of their squares keeps."""
    adam_epsilon: float = Field(default=1e-8, gt=0.0)
    """Smallest divisor of a step."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: `constant`, or a decay to `min_lr_ratio` that ends at `max_steps`."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate rises linearly to its peak."""
    max_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps at which `linear` and `cosine` reach their end."""
    min_lr_ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    """Learning rate at the end of the decay, as a share of the peak."""
    max_grad_norm: float | None = Field(default=1.0, gt=0.0)
    """Gradients with a larger global norm are scaled down to it; null is off."""
    ema_decay: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Above 0, evaluations and saved models use a moving average of the weights: after optimizer step n, from
    1, it keeps the share min(ema_decay, n / (9 + n)) of itself. `megatron_train` refuses it."""
    max_tokens_per_microbatch: int = Field(default=4096, ge=1)
    """Tokens, padding included, in one forward and backward. Gradients accumulate over micro-batches,
    so this bounds memory and changes no result. On a CPU 1024 to 4096 is
    fastest: less padding, warm caches."""

    @model_validator(mode="after")
    def _decay_needs_an_end(self) -> TrainingArgs:
        if self.lr_scheduler_type != "constant" and self.max_steps is None:
            raise ValueError(
                f"lr_scheduler_type: {self.lr_scheduler_type} needs max_steps, the step it decays to"
            )
        return self


class LoRAArgs(StrictSettings):
    """`lora` of a trainer: train a low-rank adapter instead of the model's own weights."""

    path: ClassVar[tuple[str, ...]] = ("strategy_config", "lora")
    """Where it stands in `strategy_args`."""

    rank: int = Field(ge=1, le=4096)
    """Rank of the two matrices of each adapted one."""
    alpha: float = Field(default=0.0, ge=0.0)
    """The adapter's output is multiplied by alpha / rank; 0 stands for twice the rank."""
    target_modules: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = "all-linear"
    """Ends of the names of linear layers, such as `q_proj`; `all-linear`: all but the output layer."""

    @property
    def scaled_alpha(self) -> float:
        """`alpha`, or what stands for it."""
        return self.alpha or 2.0 * self.rank

    def target_problems(self, names: Collection[str], adapted: Iterable[str]) -> Iterator[Problem]:
        """Which of `target_modules` is the end of none of these names, with its key in `strategy_args`.

        `adapted`: the names that `all-linear` takes.
        """
        if not (ends := sorted({name.rpartition(".")[2] for name in adapted})):
            yield Problem(self.path, "this model has no linear layers for an adapter: train without lora")
            return
        named = () if self.target_modules == "all-linear" else self.target_modules
        if unknown := [end for end in named if not any(f".{name}".endswith(f".{end}") for name in names)]:
            told = f"no layer that is adapted is called {', '.join(unknown)}"
            yield Problem((*self.path, "target_modules"), f"{told}; of this model {', '.join(ends)} are")


SHARING_MODEL_TYPES = frozenset({
    "apertus", "arcee", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "exaone4", "gemma", "gemma2",
    "gemma3_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_neox", "gpt_oss", "granite", "granitemoe",
    "hunyuan_v1_dense", "llama", "ministral", "ministral3", "mistral", "mixtral", "nemotron", "olmo",
    "olmo2", "olmo3", "olmoe", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss",
    "smollm3", "stablelm", "starcoder2",
})  # fmt: skip
"""Models that compute the same for a tree of rows as for rows apart, given a mask and positions."""


class TransformersArgs(StrictSettings):
    """How a `transformers` model is run, on one rank or several."""

    replays_routing: ClassVar[bool] = True
    """Routers of a mixture can be made to choose what the engine's chose."""
    takes_support: ClassVar[bool] = True
    """Log-probabilities are normalized over the tokens that could be drawn, where they are told."""
    scores_several: ClassVar[bool] = True
    """The loss may depend on more tokens in a place than the sampled one."""
    stays_in_float32: ClassVar[bool] = True
    """In bfloat16, only products are: what runs between layers is float32, and weights that learn get copies.
    Matrices that do not learn are held in bfloat16 where they came in it."""

    dtype: DType = "auto"
    """Precision of the forward pass: `float32`, `bfloat16`, or `auto`, the checkpoint's own where the
    processor multiplies it, else float32. Weights, optimizer and log-probabilities stay float32."""
    num_threads: int = Field(default=1, ge=1)
    """CPU threads of one operator; more than one rarely pays below some ten million parameters."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    attn_implementation: str = "auto"
    """Attention of the model, by transformers' names: `sdpa`, `flash_attention_2`, `flash_attention_3`,
    `eager`, or a kernel of the hub such as `kernels-community/flash-attn3`. `auto` is `sdpa`, for which
    PyTorch takes the fastest of its kernels that fits device, precision and head width, and `eager` for
    models that lack it."""
    share_prefixes: StrictBool | Literal["auto"] = "auto"
    """Compute what several rows of a micro-batch begin with (the prompt of a group, the common turns of
    segments) once, where that saves time. `auto`: where model and attention give the same result; true
    refuses all others; false computes each row alone."""
    lora: LoRAArgs | None = None
    """Train an adapter alone: `rank`, and if need be `alpha` (twice the rank when absent) and
    `target_modules` (`all-linear`, or a list of name ends such as `q_proj`). Engines that take adapters get
    nothing else; checkpoints hold it, and models that are saved have it merged in."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Modules of optional packages that a run with these settings needs."""
        return () if self.lora is None else ("peft",)

    def training_memory(
        self, model: ModelSizes, *, num_ranks: int, num_tokens: int, sequence_length: int = 0
    ) -> Memory:
        """Memory of one rank, in bytes; see `EstimatesTraining`."""
        ranks = self.ranks_per_model_copy(num_ranks)
        element_bytes = model.element_bytes(self.precision(model.stored_dtype).dtype)
        other = {} if self.stays_in_float32 else self.gathered_memory(model, ranks)
        if self.lora is None:
            # In float32: weights, gradient, two moments.
            state, state_bytes = "weights, gradients, optimizer", 16 * model.num_parameters
            if self.stays_in_float32 and element_bytes < FLOAT32:
                other = {"weights in bfloat16": element_bytes * model.num_parameters}
        else:
            held = self.frozen_type(model.stored_dtype)
            state = f"weights in {held}, adapter with its optimizer"
            state_bytes = model.frozen_bytes(held) + 16 * model.adapter_parameters(self.lora.rank)
        memory = {
            state: state_bytes / ranks,
            **other,
            "activations": model.activation_bytes(
                num_tokens,
                element_bytes,
                recomputed=self.gradient_checkpointing,
                in_float32=self.stays_in_float32,
            ),
        }
        if self.attn_implementation == "eager":
            pairs = num_tokens * sequence_length
            memory["attention of all pairs"] = model.pair_bytes(
                pairs, element_bytes, recomputed=self.gradient_checkpointing
            )
        trains_head = self.lora is None
        score = "logits, and gradient of the embeddings" if trains_head else "logits, and the head"
        return {**memory, score: model.score_bytes(num_tokens, trains_head=trains_head)}

    def frozen_type(self, stored: str) -> str:
        """The type that matrices without gradient are held in, of a model whose folder names this type."""
        is_half = self.stays_in_float32 and stored == "bfloat16" == self.precision(stored).dtype
        return "bfloat16" if is_half else "float32"

    def frozen_memory(self, model: ModelSizes, *, num_ranks: int) -> Memory:
        """Memory of one rank, in bytes; see `EstimatesTraining`."""
        ranks = self.ranks_per_model_copy(num_ranks)
        held = self.frozen_type(model.stored_dtype) if self.lora else "float32"
        return {"weights": model.frozen_bytes(held) / ranks, **self.gathered_memory(model, ranks)}

    def precision(self, stored: str) -> Precision:
        """Precision of the forward pass of a model whose folder names the type `stored`."""
        own = "cuda" if has_gpus() else "cpu"  # where each rank has a device of its own
        return precision(self.dtype, stored=stored, device=getattr(self, "device", own))

    def ranks_per_model_copy(self, num_ranks: int) -> int:
        """Ranks that share one copy of the weights."""
        return 1

    def gathered_memory(self, model: ModelSizes, ranks: int) -> Memory:
        """Weights that a rank gathers from the others while it computes."""
        return {}

    @property
    def is_auto_attention(self) -> bool:
        """transformers chooses."""
        return self.attn_implementation == "auto"

    @property
    def attention(self) -> str:
        """How attention will be computed, in words; the trainer knows the kernel when it runs."""
        if self.is_auto_attention or self.attn_implementation == "sdpa":
            lacking = "; eager where the model has none" if self.is_auto_attention else ""
            return f"sdpa: the fastest kernel of PyTorch that fits the device{lacking}"
        return self.attn_implementation

    def sharing_problem(self, model_type: str) -> str | None:
        """Why rows of this model must not share what they begin with."""
        if self.attn_implementation not in ("auto", "sdpa", "eager"):
            return f"{self.attn_implementation} takes no mask of pairs, sdpa and eager do"
        if model_type not in SHARING_MODEL_TYPES:
            return f"not known to be exact for model type {model_type}"
        return None

    def model_problems(self, folder: Path) -> Iterator[Problem]:
        """Why the model in a folder is not trained, with the keys. Known families need no look."""
        kind = stored_model_type(folder)
        if self.share_prefixes is True and (why := self.sharing_problem(kind)):
            yield Problem(("strategy_config", "share_prefixes"), f"{why}; leave it at auto")
        if (kind in SHARING_MODEL_TYPES and self.lora is None) or find_spec("transformers") is None:
            return
        try:
            _, config = language_model.language_config(folder)
        except (ImportError, OSError, ValueError) as error:
            yield Problem(("pretrain",), f"cannot load the model in {folder}: {error}")
            return
        if self.lora is not None and not any(find_spec(each) is None for each in self.needs):
            from envsdk.trainers.lora import problems_of

            yield from problems_of(config, self.lora)

    def shares_prefixes(self, model_type: str) -> bool:
        """Whether rows that begin alike may share a line."""
        return bool(self.share_prefixes) and self.sharing_problem(model_type) is None

    def sharing(self, model_type: str) -> str:
        """Whether rows share what they begin with, in words."""
        problem = self.sharing_problem(model_type) if self.share_prefixes else "share_prefixes is false"
        if problem is None:
            return "what several rows begin with is computed once, where that saves time"
        return f"{'refused' if self.share_prefixes is True else 'each row alone'}: {problem}"

    def attention_problem(self) -> str | None:
        """What is missing on this machine for `attn_implementation`."""
        name = self.attn_implementation
        packages = _PACKAGES.get(name, ["kernels"] if "/" in name else [])
        if not packages or any(map(find_spec, packages)):
            return None
        return f"{name} needs {' or '.join(packages)}, which is not installed here; `auto` takes what is here"

    @field_validator("attn_implementation")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if "/" not in name and name not in _IMPLEMENTATIONS:
            raise ValueError(f"must be {', '.join(_IMPLEMENTATIONS)} or a kernel of the hub as OWNER/NAME")
        return name

    @model_validator(mode="after")
    def _flash_takes_half(self) -> TransformersArgs:
        if "flash" in self.attn_implementation and self.dtype != "bfloat16":
            raise ValueError(f"attn_implementation: {self.attn_implementation} needs dtype: bfloat16")
        return self


_IMPLEMENTATIONS = ("auto", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "eager")
_PACKAGES = {
    "flash_attention_2": ["flash_attn", "kernels"],
    "flash_attention_3": ["flash_attn_interface", "kernels"],
    "flash_attention_4": ["flash_attn", "kernels"],
}
"""Modules of which one brings an implementation; `kernels` fetches it from the hub."""


class TorchStrategyConfig(TransformersArgs):
    """The section `actor_train.strategy_args.strategy_config` for `strategy_name: torch`."""

    device: Device = "cpu"
    """A torch device such as `cpu` or `cuda:0`."""


class FSDP2StrategyConfig(TransformersArgs):
    """The section `actor_train.strategy_args.strategy_config` for `strategy_name: fsdp2_train`.

    A rank's device is its own: the GPU of its number on its machine, or the CPU where there is none.
    """

    stays_in_float32: ClassVar[bool] = False

    shard_size: int | None = Field(default=None, ge=1)
    """Ranks that shard one copy of weights and optimizer; it divides the number of ranks. Null is all
    of them: least memory. The number of ranks on a machine keeps most traffic within it (HSDP)."""
    reshard_after_forward: bool = True
    """Free a layer's full weights after its forward pass and gather them again for the backward pass;
    false keeps them: less traffic, more memory."""

    def ranks_per_model_copy(self, num_ranks: int) -> int:
        return self.shard_size or num_ranks

    def gathered_memory(self, model: ModelSizes, ranks: int) -> Memory:
        element_bytes = model.element_bytes(self.precision(model.stored_dtype).dtype)
        if ranks == 1 and element_bytes == FLOAT32:
            return {}
        # One layer computes while the next one is gathered; what is in no layer stays.
        layers = 2 * model.num_layer_parameters / model.num_layers
        if not self.reshard_after_forward:
            layers = model.num_layer_parameters
        rest = model.num_parameters - model.num_layer_parameters
        return {"gathered weights": (layers + rest) * element_bytes}

    def layout(self, num_ranks: int) -> str:
        """What the ranks are for, in words; ValueError when `shard_size` does not divide them."""
        shard_size = self.shard_size or num_ranks
        if num_ranks % shard_size:
            raise ValueError(
                f"{num_ranks} ranks hold no whole number of copies shared out by shard_size={shard_size}; "
                "use a multiple, or leave shard_size out to share them out over all ranks"
            )
        return f"data {num_ranks}, weights shared out over {shard_size}"
