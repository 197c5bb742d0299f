"""Estimates of memory against what PyTorch allocates for real models, and what `--explain` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from envsdk.config.explanation import explain
from envsdk.config.loading import load_config
from envsdk.inference.embedded.settings import EmbeddedSettings
from envsdk.inference.vllm.settings import VLLMSettings
from envsdk.settings.memory import BFLOAT16, FLOAT32, ModelSizes
from envsdk.store.model_files import model_sizes
from envsdk.trainers.megatron.args import MegatronStrategyConfig
from envsdk.trainers.training_args import FSDP2StrategyConfig, TorchStrategyConfig

CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def make_model(kind: str, *, intermediate_size: int = 768) -> PreTrainedModel:
    torch.manual_seed(0)
    config = CONFIGS[kind](
        vocab_size=97,
        hidden_size=256,
        intermediate_size=intermediate_size,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        tie_word_embeddings=True,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model


def bytes_kept(model: Any, num_tokens: int, dtype: torch.dtype, recomputed: bool) -> int:
    """Memory that one forward pass of the layers keeps for the backward pass."""
    storages: dict[int, int] = {}
    if recomputed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()

    def seen(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    kept = []  # nothing may be freed, and its address taken anew, before it is counted
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), seen(t))[1], lambda t: t)
    with hooks, torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
        model.model(input_ids=torch.zeros(1, num_tokens, dtype=torch.long), use_cache=False)
    return sum(storages.values())


@pytest.mark.parametrize("kind", sorted(CONFIGS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("intermediate_size", [256, 2048])
def test_activations_are_what_pytorch_keeps(
    kind: str, dtype: torch.dtype, intermediate_size: int, tmp_path: Path
) -> None:
    model = make_model(kind, intermediate_size=intermediate_size)
    model.save_pretrained(tmp_path)
    sizes = model_sizes(tmp_path)
    assert sizes is not None
    # The difference of two lengths leaves out weights and their copies in another type.
    kept = bytes_kept(model, 384, dtype, False) - bytes_kept(model, 128, dtype, False)
    estimate = sizes.activation_bytes(256, dtype.itemsize, recomputed=False)
    assert estimate == pytest.approx(kept, rel=0.08)


def test_layers_that_are_recomputed_keep_their_inputs(tmp_path: Path) -> None:
    model = make_model("qwen3")
    model.save_pretrained(tmp_path)
    sizes = model_sizes(tmp_path)
    assert sizes is not None
    kept = bytes_kept(model, 384, torch.float32, True) - bytes_kept(model, 128, torch.float32, True)
    estimate = sizes.activation_bytes(256, FLOAT32, recomputed=True)
    one_layer = sizes.activation_bytes(256, FLOAT32, recomputed=False) / sizes.num_layers
    assert estimate - one_layer == pytest.approx(kept, rel=0.5)
    assert estimate < 0.5 * sizes.activation_bytes(256, FLOAT32, recomputed=False)


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_sizes_are_read_from_headers(kind: str, tmp_path: Path) -> None:
    model = make_model(kind)
    model.save_pretrained(tmp_path)
    sizes = model_sizes(tmp_path)
    assert sizes is not None
    assert sizes.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    linear = [m for m in model.model.modules() if isinstance(m, torch.nn.Linear)]
    assert sizes.adapted_width == sum(m.in_features + m.out_features for m in linear)
    assert sizes.stored_bytes == FLOAT32
    assert model_sizes(tmp_path / "nothing") is None


def test_the_state_of_a_trainer_is_what_it_allocates(model_folder: Path) -> None:
    from envsdk.trainer import TrainerConfig
    from envsdk.trainers.torch_trainer import TorchTrainer

    sizes = model_sizes(model_folder)
    assert sizes is not None
    trainer = TorchTrainer.create(TrainerConfig(model=model_folder, sequence_length=64, seed=0))
    weights = sum(p.numel() * p.element_size() for _, p in trainer.model.parameters())
    memory = TorchStrategyConfig().training_memory(sizes, num_ranks=1, num_tokens=64)
    assert memory["weights, gradients, optimizer"] == 4 * weights
    assert TorchStrategyConfig().frozen_memory(sizes, num_ranks=1)["weights"] == weights


def test_the_cache_of_the_embedded_engine_is_what_it_allocates(model_folder: Path) -> None:
    from envsdk.inference.embedded import EmbeddedEngine
    from envsdk.inference.engine import EngineConfig

    sizes = model_sizes(model_folder)
    assert sizes is not None
    engine = EmbeddedEngine.create(EngineConfig(model=model_folder, sequence_length=248, max_running=3))
    cache = engine.core.decoder._cache  # type: ignore[attr-defined]
    memory = EmbeddedSettings().sampling_memory(sizes, num_replies=3, num_tokens=248)
    kept = next(value for name, value in memory.items() if name.startswith("keys and values"))
    assert kept == cache.numel() * cache.element_size()


LARGE = ModelSizes(
    num_parameters=500_000_000,
    num_layers=24,
    hidden_size=896,
    intermediate_size=4864,
    query_width=896,
    key_width=128,
    vocab_size=151_936,
)


@given(
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2]),
    context=st.sampled_from([1, 2]),
    copies=st.integers(1, 4),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_ranks_share_out_what_one_would_have(
    tensor: int, pipeline: int, context: int, copies: int, dtype: Any
) -> None:
    def memory(num_ranks: int, **layout: int) -> dict[str, float]:
        settings = MegatronStrategyConfig(dtype=dtype, **layout)  # type: ignore[arg-type]
        return dict(settings.training_memory(LARGE, num_ranks=num_ranks, num_tokens=4096))

    alone = memory(1)
    layout = {
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
        "context_parallel_size": context,
    }
    shared = memory(tensor * pipeline * context * copies, **layout)
    assert shared.keys() == alone.keys()
    assert all(shared[name] <= alone[name] for name in alone)
    state = "weights, gradients, optimizer"
    assert shared[state] * tensor * pipeline * copies >= alone[state] * (1 - 1e-9)


def test_ranks_that_shard_take_an_equal_part() -> None:
    state = "weights, gradients, optimizer"
    one = FSDP2StrategyConfig().training_memory(LARGE, num_ranks=1, num_tokens=1)[state]
    assert one == 16 * LARGE.num_parameters
    assert FSDP2StrategyConfig().training_memory(LARGE, num_ranks=8, num_tokens=1)[state] == one / 8
    pairs = FSDP2StrategyConfig(shard_size=2)
    assert pairs.training_memory(LARGE, num_ranks=8, num_tokens=1)[state] == one / 2
    adapter = TorchStrategyConfig.model_validate({"lora": {"rank": 8}})
    assert adapter.training_memory(LARGE, num_ranks=1, num_tokens=1)[state] == 4 * LARGE.num_parameters


def test_explain_says_what_each_role_takes(model_folder: Path) -> None:
    text = explain(load_config("agentic_async.yaml", [f"pretrain={model_folder}"], to_explain=True))
    assert "memory of actor_train" in text
    assert "weights, gradients, optimizer" in text
    assert "memory of actor_infer" in text
    assert "keys and values of" in text
    assert "memory of" not in explain(load_config("agentic_async.yaml", to_explain=True))


def test_an_engine_on_several_devices_shares_out_the_model() -> None:
    one, two = (
        VLLMSettings(tensor_parallel_size=number).sampling_memory(LARGE, num_replies=4, num_tokens=1000)
        for number in (1, 2)
    )
    assert one["weights"] == BFLOAT16 * LARGE.num_parameters == 2 * two["weights"]
