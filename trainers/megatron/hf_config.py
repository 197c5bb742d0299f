"""Which Hugging Face models Megatron runs here, and as what.

What is not known to give the same logits is refused: a wrong model would train without an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsdk.base.settings.problems import Problem
from envsdk.base.store.model_files import hf_config, require_model_folder
from envsdk.contracts.failures import ConfigurationError

if TYPE_CHECKING:
    from envsdk.trainers.megatron.args import MegatronStrategyConfig

_EXPERTS = {"qwen3_moe": "num_experts", "mixtral": "num_local_experts", "glm4_moe": "n_routed_experts"}
"""Fields with the number of experts of a mixture."""
MODEL_TYPES = ("llama", "qwen2", "qwen3", *_EXPERTS)
_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Constants of Megatron's `rope_scaling`; its factor is free."""


def read_config(folder: Path) -> Any:
    """The configuration in a Hugging Face folder. ConfigurationError when there is none."""
    require_model_folder(folder)
    try:
        return hf_config(folder)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"pretrain: cannot read {folder / 'config.json'}: {error}") from error


def check_supported(hf: Any, strategy: MegatronStrategyConfig) -> None:
    """ConfigurationError names each field of the model that stands against it, or against the settings."""
    if problems := "; ".join(map(str, problems_of(hf, strategy))):
        raise ConfigurationError(problems)


def problems_of(hf: Any, strategy: MegatronStrategyConfig) -> Iterator[Problem]:
    """The same with the key of each, in a role's `strategy_args`."""
    fields = list(_model_problems(hf))
    if fields:
        told = f"megatron_train cannot train this model: {'; '.join(fields)}"
        yield Problem(("strategy_name",), told)
    else:
        yield from _layout_problems(hf, strategy)
        if strategy.lora is not None:
            names = list(adapted_layers(hf))
            yield from strategy.lora.target_problems(names, names)


def num_experts(hf: Any) -> int | None:
    """Experts of each layer; None for a dense model."""
    field = _EXPERTS.get(hf.model_type)
    return int(getattr(hf, field)) if field else None


def expert_width(hf: Any) -> str:
    """The field with the width of an expert."""
    return "intermediate_size" if hf.model_type == "mixtral" else "moe_intermediate_size"


def num_dense_layers(hf: Any) -> int:
    """Layers without experts that a mixture begins with."""
    return int(getattr(hf, "first_k_dense_replace", 0))


def head_width(hf: Any) -> int:
    """Channels of one attention head."""
    return int(getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads)


def adapted_layers(hf: Any) -> Iterator[str]:
    """Names of the model's linear layers but experts, routers and the output layer."""
    feed_forward = ("gate_proj", "up_proj", "down_proj")
    for number in range(hf.num_hidden_layers):
        layer = f"model.layers.{number}."
        yield from (f"{layer}self_attn.{letter}_proj" for letter in "qkvo")
        if num_experts(hf) is None or number < num_dense_layers(hf):
            yield from (f"{layer}mlp.{name}" for name in feed_forward)
        elif hasattr(hf, "n_shared_experts"):
            yield from (f"{layer}mlp.shared_experts.{name}" for name in feed_forward)


def _model_problems(hf: Any) -> Iterator[str]:
    """In the model's config.json."""
    if hf.model_type not in MODEL_TYPES:
        yield f"model_type is {hf.model_type}, not one of {', '.join(MODEL_TYPES)}"
        return
    is_glm = hf.model_type == "glm4_moe"
    wanted: dict[str, Any] = {
        **({"n_group": 1, "norm_topk_prob": True} if is_glm else {"attention_bias": False}),
        **({"sliding_window": None} if hf.model_type == "mixtral" else {}),
        "hidden_act": "silu",
        "mlp_bias": False,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "quantization_config": None,
        "use_sliding_window": False,
    }
    for name, value in wanted.items():
        found = getattr(hf, name, value)
        if found != value and not (value == [] and found is None):
            yield f"{name} is {found!r}, and only {value!r} is supported"
    sliding = {kind for kind in getattr(hf, "layer_types", None) or () if kind != "full_attention"}
    if sliding:
        yield f"layer_types has {', '.join(sorted(sliding))}, and only full_attention is supported"
    if is_glm and hf.num_experts_per_tok == 1:
        yield "num_experts_per_tok is 1, and only 2 or more are supported"
    yield from _rope_problems(hf.rope_parameters, is_partial=is_glm)


def _rope_problems(rope: dict[str, Any], *, is_partial: bool) -> Iterator[str]:
    kind = rope.get("rope_type", "default")
    if kind not in ("default", "llama3"):
        yield f"rope_parameters.rope_type is {kind}, and only default and llama3 are supported"
    if rope.get("partial_rotary_factor", 1.0) != 1.0 and not is_partial:
        yield f"rope_parameters.partial_rotary_factor is {rope['partial_rotary_factor']}, not 1.0"
    for name, value in _LLAMA3_ROPE.items() if kind == "llama3" else ():
        if rope.get(name) != value:
            yield f"rope_parameters.{name} is {rope.get(name)}, and for llama3 only {value} is supported"


def _layout_problems(hf: Any, strategy: MegatronStrategyConfig) -> Iterator[Problem]:
    """Between the model and the parallel sizes."""

    def problem(key: str, message: str) -> Problem:
        return Problem(("strategy_config", key), message)

    tp = strategy.tensor_model_parallel_size
    pieces = strategy.pipeline_model_parallel_size * (strategy.virtual_pipeline_model_parallel_size or 1)
    experts = num_experts(hf)
    divisors = [
        ("num_attention_heads", "tensor_model_parallel_size", tp),
        ("num_key_value_heads", "tensor_model_parallel_size", tp),
        ("num_hidden_layers", "pipeline_model_parallel_size", pieces),
    ]
    if experts is None or num_dense_layers(hf):
        divisors.append(("intermediate_size", "tensor_model_parallel_size", tp))
    if experts is None:
        for name in ("expert_model_parallel_size", "expert_tensor_parallel_size"):
            if (getattr(strategy, name) or 1) > 1:
                yield problem(name, f"{getattr(strategy, name)}, but the model has no experts")
    else:
        divisors += [
            (_EXPERTS[hf.model_type], "expert_model_parallel_size", strategy.expert_model_parallel_size),
            (expert_width(hf), "expert_tensor_parallel_size", strategy.expert_tensor_size),
        ]
        if hasattr(hf, "n_shared_experts"):
            divisors.append((expert_width(hf), "tensor_model_parallel_size", tp))
        if tp > 1 and not strategy.sequence_parallel:
            yield problem("tensor_model_parallel_size", f"{tp} needs sequence_parallel: true with experts")
    for key, size in dict.fromkeys((key, size) for _, key, size in divisors):
        of = [field for field, other, _ in divisors if other == key and getattr(hf, field) % size]
        if fields := " and ".join(f"{field} of {getattr(hf, field)}" for field in dict.fromkeys(of)):
            times = " (with virtual_pipeline_model_parallel_size)" if size != getattr(strategy, key) else ""
            yield problem(key, f"{size}{times} does not divide the model's {fields}")
