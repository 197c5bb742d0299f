"""A rank's part of the model: process groups, Megatron's configuration, and the pieces themselves."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils
from torch import nn

from envsdk.base.processes.attention_kernels import leave_out_cudnn
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainerRank
from envsdk.trainers.megatron.args import MegatronStrategyConfig
from envsdk.trainers.megatron.device import Attention, chosen_attention, device
from envsdk.trainers.megatron.hf_config import (
    check_supported,
    expert_width,
    head_width,
    num_dense_layers,
    num_experts,
)
from envsdk.trainers.megatron.layer_spec import block_spec
from envsdk.trainers.process_group import join_process_group


def initialize_parallelism(strategy: MegatronStrategyConfig, rank: TrainerRank, seed: int) -> None:
    """Meet the other ranks and assign the roles; returns when all have come.

    ConfigurationError when the layout does not fit so many ranks.
    """
    try:
        strategy.layout(rank.world_size)
    except ValueError as error:
        raise ConfigurationError(f"strategy_config: {error}") from error
    torch.set_num_threads(strategy.num_threads)
    join_process_group(rank)
    share_out_ranks(strategy, seed)


def share_out_ranks(strategy: MegatronStrategyConfig, seed: int) -> None:
    """Make the groups of the ranks that have met, and this rank's random state."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=strategy.tensor_model_parallel_size,
        pipeline_model_parallel_size=strategy.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=strategy.virtual_pipeline_model_parallel_size,
        context_parallel_size=strategy.context_parallel_size,
        expert_model_parallel_size=strategy.expert_model_parallel_size,
        expert_tensor_parallel_size=strategy.expert_tensor_parallel_size,
    )
    model_parallel_cuda_manual_seed(seed)


def build_model(hf_config: Any, strategy: MegatronStrategyConfig) -> list[nn.Module]:
    """This rank's pieces of the model, in the order of its virtual stages; one without them.

    Each has Megatron's `config`. Weights are random until loaded. ConfigurationError when Megatron would
    compute another model, or the layout does not fit it.
    """
    check_supported(hf_config, strategy)
    leave_out_cudnn()
    config = transformer_config(hf_config, strategy)
    attention = chosen_attention(strategy.attn_implementation, config, with_adapter=strategy.lora is not None)
    virtual_size = strategy.virtual_pipeline_model_parallel_size
    stages = [None] if virtual_size is None else list(range(virtual_size))
    chunks: list[nn.Module] = [_chunk(hf_config, config, stage, attention) for stage in stages]
    if config.bf16:
        chunks = [Float16Module(config, chunk) for chunk in chunks]
    for chunk in chunks:
        _fix_expert_biases(chunk)
    return [chunk.to(device()) for chunk in chunks]


def transformer_config(hf: Any, strategy: MegatronStrategyConfig) -> TransformerConfig:
    """The model and its layout in Megatron's terms."""
    dtype = torch.bfloat16 if strategy.dtype == "bfloat16" else torch.float32
    is_interleaved = strategy.virtual_pipeline_model_parallel_size is not None
    settings: dict[str, Any] = {
        "num_layers": hf.num_hidden_layers,
        "hidden_size": hf.hidden_size,
        "ffn_hidden_size": hf.intermediate_size,
        "num_attention_heads": hf.num_attention_heads,
        "num_query_groups": hf.num_key_value_heads,
        "kv_channels": head_width(hf),
        "normalization": "RMSNorm",
        "layernorm_epsilon": hf.rms_norm_eps,
        "gated_linear_unit": True,
        "activation_func": nn.functional.silu,
        "add_bias_linear": False,
        "add_qkv_bias": hf.model_type == "qwen2" or getattr(hf, "attention_bias", False),
        "qk_layernorm": hf.model_type in ("qwen3", "qwen3_moe") or getattr(hf, "use_qk_norm", False),
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        # Need Apex, or a build of Megatron's extensions, or have not been compared with what they replace.
        "apply_rope_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "persist_layer_norm": False,
        # Also of dense models: micro-batches of different lengths are allowed with this one only.
        "moe_token_dispatcher_type": "alltoall",
        "tensor_model_parallel_size": strategy.tensor_model_parallel_size,
        "pipeline_model_parallel_size": strategy.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": strategy.virtual_pipeline_model_parallel_size,
        "context_parallel_size": strategy.context_parallel_size,
        "expert_model_parallel_size": strategy.expert_model_parallel_size,
        "expert_tensor_parallel_size": strategy.expert_tensor_size,
        "sequence_parallel": strategy.sequence_parallel,
        "recompute_granularity": strategy.recompute_granularity,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        # Interleaved stages send both ways between two ranks at once: neither its length
        # nor its place in a batch of transfers identifies a tensor.
        "variable_seq_lengths": not is_interleaved,
        "batch_p2p_comm": not is_interleaved,
        "overlap_p2p_comm": is_interleaved,
        # gloo still reads a sent tensor when Megatron would free it: gradients would be wrong in silence.
        "deallocate_pipeline_outputs": torch.cuda.is_available(),
        "calculate_per_token_loss": True,
    }
    if strategy.recompute_granularity == "full":
        settings |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    else:
        settings["recompute_modules"] = list(strategy.recompute_modules)
    if (experts := num_experts(hf)) is not None:
        # Without Transformer Engine the router of 0.16 asks for this name all the same, and finds none.
        vars(moe_utils).setdefault("te_general_gemm", None)
        settings |= {
            "num_moe_experts": experts,
            "moe_ffn_hidden_size": getattr(hf, expert_width(hf)),
            "moe_router_topk": hf.num_experts_per_tok,
            "moe_layer_freq": [int(layer >= num_dense_layers(hf)) for layer in range(hf.num_hidden_layers)],
            # A softmax over the chosen experts is one over all of them, normalized again.
            "moe_router_pre_softmax": not getattr(hf, "norm_topk_prob", True),
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_router_dtype": "fp32",
        }
    if hf.model_type == "glm4_moe":
        settings |= {
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_router_bias_update_rate": 0.0,
            "moe_router_topk_scaling_factor": hf.routed_scaling_factor,
            "moe_shared_expert_intermediate_size": hf.moe_intermediate_size * hf.n_shared_experts,
        }
    return TransformerConfig(**settings)


def _chunk(hf: Any, config: TransformerConfig, vp_stage: int | None, attention: Attention) -> nn.Module:
    tp = config.tensor_model_parallel_size
    rope = hf.rope_parameters
    model: Any = GPTModel(
        config,
        block_spec(config, vp_stage, attention),
        # Each rank has as many columns; the last ones may belong to no token.
        vocab_size=-(-hf.vocab_size // tp) * tp,
        max_sequence_length=hf.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        share_embeddings_and_output_weights=hf.tie_word_embeddings,
        position_embedding_type="rope",
        rotary_percent=rope.get("partial_rotary_factor", 1.0),
        rotary_base=rope["rope_theta"],
        rope_scaling=rope.get("rope_type") == "llama3",
        rope_scaling_factor=rope.get("factor", 1.0),
        vp_stage=vp_stage,
    )
    model.hf_model_type = hf.model_type
    return model  # type: ignore[no-any-return]


def _fix_expert_biases(chunk: nn.Module) -> None:
    """Make biases of routers, which are chosen by and not trained, float32 weights like others."""
    for module in list(chunk.modules()):
        bias = getattr(module, "expert_bias", None)
        if bias is not None:
            del module.expert_bias
            module.expert_bias = nn.Parameter(bias.float(), requires_grad=False)
