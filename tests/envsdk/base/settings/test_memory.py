"""Estimates of memory against what PyTorch allocates for real models, and what `--explain` says of them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from envsdk.base.settings.memory import BFLOAT16, FLOAT32, ModelSizes
from envsdk.base.store.model_files import model_sizes
from envsdk.config.explanation import derived, explain
from envsdk.config.loading import load_config
from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.embedded.settings import EmbeddedSettings
from envsdk.engines.sglang.settings import SGLangSettings
from envsdk.engines.vllm.settings import VLLMSettings
from envsdk.trainers.megatron.args import MegatronStrategyConfig
from envsdk.trainers.training_args import FSDP2StrategyConfig, TorchStrategyConfig
from tests.by_day import by_day

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


def bytes_kept(
    model: Any, num_tokens: int, dtype: torch.dtype, recomputed: bool, *, in_float32: bool = True
) -> int:
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
    with hooks, torch.autocast("cpu", dtype, enabled=in_float32 and dtype is torch.bfloat16):
        model.model(input_ids=torch.zeros(1, num_tokens, dtype=torch.long), use_cache=False)
    return sum(storages.values())


@pytest.mark.parametrize(
    ("kind", "dtype", "intermediate_size"),
    by_day(
        [("llama", torch.float32, 2048), ("qwen2", torch.bfloat16, 256), ("qwen3", torch.bfloat16, 2048)],
        product(sorted(CONFIGS), [torch.float32, torch.bfloat16], [256, 2048]),
    ),
    ids=str,
)
def test_activations_are_what_pytorch_keeps(
    kind: str, dtype: torch.dtype, intermediate_size: int, tmp_path: Path
) -> None:
    model = make_model(kind, intermediate_size=intermediate_size)
    model.save_pretrained(tmp_path)
    sizes = model_sizes(tmp_path)
    # The difference of two lengths leaves out weights and their copies in another type.
    kept = bytes_kept(model, 384, dtype, False) - bytes_kept(model, 128, dtype, False)
    estimate = sizes.activation_bytes(256, dtype.itemsize, recomputed=False)
    assert estimate == pytest.approx(kept, rel=0.08)


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_activations_of_a_model_in_bfloat16_are_what_pytorch_keeps(kind: str, tmp_path: Path) -> None:
    model = make_model(kind, intermediate_size=2048)
    model.save_pretrained(tmp_path)
    half = model.to(torch.bfloat16)  # type: ignore[arg-type]
    long, short = (bytes_kept(half, n, torch.bfloat16, False, in_float32=False) for n in (384, 128))
    estimate = model_sizes(tmp_path).activation_bytes(256, BFLOAT16, recomputed=False, in_float32=False)
    assert estimate == pytest.approx(long - short, rel=0.08)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_eager_attention_keeps_its_matrix(dtype: torch.dtype, tmp_path: Path) -> None:
    model = make_model("qwen3")
    model.save_pretrained(tmp_path)
    fused = bytes_kept(model, 256, dtype, False)
    model.set_attn_implementation("eager")
    kept = bytes_kept(model, 256, dtype, False) - fused
    estimate = model_sizes(tmp_path).pair_bytes(256 * 256, dtype.itemsize, recomputed=False)
    assert estimate == pytest.approx(kept, rel=0.15)


def test_layers_that_are_recomputed_keep_their_inputs(tmp_path: Path) -> None:
    model = make_model("qwen3")
    model.save_pretrained(tmp_path)
    sizes = model_sizes(tmp_path)
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
    assert sizes.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    linear = [m for m in model.model.modules() if isinstance(m, torch.nn.Linear)]
    assert sizes.adapted_width == sum(m.in_features + m.out_features for m in linear)
    assert sizes.stored_bytes == FLOAT32


def test_the_state_of_a_trainer_is_what_it_allocates(model_folder: Path) -> None:
    from envsdk.contracts.trainer import TrainerConfig
    from envsdk.trainers.torch_trainer import TorchTrainer

    sizes = model_sizes(model_folder)
    trainer = TorchTrainer.create(TrainerConfig(model=model_folder, sequence_length=64, seed=0))
    weights = sum(p.numel() * p.element_size() for _, p in trainer.model.parameters())
    memory = TorchStrategyConfig().training_memory(sizes, num_ranks=1, num_tokens=64)
    assert memory["weights, gradients, optimizer"] == 4 * weights
    assert TorchStrategyConfig().frozen_memory(sizes, num_ranks=1)["weights"] == weights


def test_the_cache_of_the_embedded_engine_is_what_it_allocates(model_folder: Path) -> None:
    from envsdk.engines.embedded import EmbeddedEngine
    from envsdk.engines.engine import EngineConfig

    sizes = model_sizes(model_folder)
    engine = EmbeddedEngine.create(EngineConfig(model=model_folder, sequence_length=248, max_running=3))
    cache = engine.core.decoder._cache.layers  # type: ignore[attr-defined]
    memory = EmbeddedSettings().sampling_memory(sizes, num_replies=3, num_tokens=248)
    kept = next(value for name, value in memory.items() if name.startswith("keys and values"))
    assert kept == cache.numel() * cache.element_size()


LARGE = ModelSizes(
    model_type="qwen2",
    num_parameters=500_000_000,
    num_layer_parameters=360_000_000,
    num_layers=24,
    hidden_size=896,
    intermediate_size=4864,
    query_width=896,
    key_width=128,
    head_width=64,
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
    assert (shared["activations"] < alone["activations"]) == (tensor * context > 1)
    state = "weights, gradients, optimizer"
    assert shared[state] * tensor * pipeline * context * copies >= alone[state] * (1 - 1e-9)


def test_ranks_that_shard_take_an_equal_part() -> None:
    state = "weights, gradients, optimizer"
    one = FSDP2StrategyConfig().training_memory(LARGE, num_ranks=1, num_tokens=1)[state]
    assert one == 16 * LARGE.num_parameters
    assert FSDP2StrategyConfig().training_memory(LARGE, num_ranks=8, num_tokens=1)[state] == one / 8
    pairs = FSDP2StrategyConfig(shard_size=2)
    assert pairs.training_memory(LARGE, num_ranks=8, num_tokens=1)[state] == one / 2
    adapter = MegatronStrategyConfig.model_validate({"lora": {"rank": 8}})
    assert adapter.training_memory(LARGE, num_ranks=1, num_tokens=1)[state] == 4 * LARGE.num_parameters


def test_matrices_that_do_not_learn_take_what_they_came_in() -> None:
    embeddings = LARGE.vocab_size * LARGE.hidden_size
    expected = {
        "float32": FLOAT32 * LARGE.num_parameters,
        "bfloat16": BFLOAT16 * (LARGE.num_parameters + embeddings),
    }
    for dtype, num_bytes in expected.items():
        adapter = TorchStrategyConfig.model_validate({"lora": {"rank": 8}, "dtype": dtype})
        memory = adapter.training_memory(LARGE, num_ranks=1, num_tokens=1)
        assert memory[f"weights in {dtype}, adapter with its optimizer"] == num_bytes


def test_explain_says_what_each_role_takes(model_folder: Path) -> None:
    given = [f"pretrain={model_folder}", "sequence_length=256"]
    text = explain(load_config("agentic_async.yaml", given, to_explain=True))
    assert "memory of actor_train" in text
    assert "weights, gradients, optimizer" in text
    assert "memory of actor_infer" in text
    assert "keys and values of" in text
    assert "memory of" not in explain(load_config("agentic_async.yaml", to_explain=True))


def test_explain_adds_up_what_is_taken_of_main_memory(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(*overrides: str) -> dict[str, str]:
        given = [f"pretrain={model_folder}", "sequence_length=256", *overrides]
        return dict(derived(load_config("agentic_async.yaml", given, to_explain=True).config))

    def gib(row: str) -> float:
        return float(row.split()[1])

    found = rows("actor_infer.num_engines=3")
    assert "GiB of main memory: weights, gradients" in found["memory of actor_train"]
    assert "GiB of main memory for each engine: weights" in found["memory of actor_infer"]
    total = gib(found["memory of actor_train"]) + 3 * gib(found["memory of actor_infer"])
    assert gib(found["main memory"]) == pytest.approx(total, abs=0.2)
    assert " GiB for models, of the " in found["main memory"]
    monkeypatch.setattr("envsdk.config.explanation.total_memory", lambda: 1000)
    assert " GiB for models, more than the " in rows()["main memory"]
    assert "main memory" not in rows("ray.address=auto")
    device = "strategy_args.strategy_config.device=cuda:0"
    on_gpu = rows(f"actor_train.{device}", f"actor_infer.{device}")
    assert "GiB of each device: " in on_gpu["memory of actor_train"]
    assert "main memory" not in on_gpu


def test_a_rank_holds_what_it_gathers() -> None:
    layer = LARGE.num_layer_parameters / LARGE.num_layers
    rest = LARGE.num_parameters - LARGE.num_layer_parameters
    for reshard, layers in ((True, 2 * layer), (False, 24 * layer)):
        settings = FSDP2StrategyConfig(dtype="bfloat16", reshard_after_forward=reshard)
        memory = settings.training_memory(LARGE, num_ranks=8, num_tokens=1)
        assert memory["gathered weights"] == pytest.approx(BFLOAT16 * (layers + rest))
    whole = FSDP2StrategyConfig(dtype="float32")
    assert "gathered weights" not in whole.training_memory(LARGE, num_ranks=1, num_tokens=1)


def test_experts_share_their_moments_among_ranks_that_have_the_same_ones() -> None:
    mixture = replace(LARGE, num_layer_parameters=480_000_000, num_expert_parameters=400_000_000)
    settings = MegatronStrategyConfig(expert_model_parallel_size=8)
    memory = settings.training_memory(mixture, num_ranks=8, num_tokens=1)
    dense, experts = 100_000_000, 400_000_000 / 8
    expected = 8 * (dense + experts) + 8 * (dense / 8 + experts)
    assert memory["weights, gradients, optimizer"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "config.json").unlink(), "cannot be read"),
        (lambda folder: _set(folder, num_attention_heads=0), "num_attention_heads of at least 1"),
        (lambda folder: _set(folder, num_hidden_layers="4"), "num_hidden_layers of at least 1"),
        (lambda folder: _set(folder, hidden_size=-8), "hidden_size of at least 1"),
        (lambda folder: (folder / "model-2.safetensors").symlink_to("gone"), "a link to nothing"),
        (lambda folder: (folder / "model-2.safetensors").mkdir(), "is no file"),
        (lambda folder: (folder / "model-2.safetensors").write_bytes(b"1234"), "damaged"),
        (lambda folder: _header(folder, data_offsets=[0, 0]), "header cannot be read"),
        (lambda folder: _header(folder, shape=[-1], data_offsets=[0, 0]), "header cannot be read"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model-9.safetensors"}}'
            ),
            "lacks model-9.safetensors",
        ),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("["), "can be read"),
    ],
)
def test_a_folder_that_does_not_say_is_not_estimated(
    break_it: Callable[[Path], object], said: str, model_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    break_it(folder)
    with pytest.raises(LookupError, match=re.escape(said)):
        model_sizes(folder)
    given = [f"pretrain={folder}", "sequence_length=256"]
    text = (folder / "config.json").read_text() if (folder / "config.json").exists() else ""
    if text == "{" or '"num_hidden_layers": "4"' in text:
        with pytest.raises(ConfigurationError, match=r"cannot be read|must be a whole number, not '4'"):
            load_config("agentic_async.yaml", given, to_explain=True)
    else:
        assert "memory" in explain(load_config("agentic_async.yaml", given, to_explain=True))


def _header(folder: Path, **entry: Any) -> None:
    text = json.dumps({"a": {"dtype": "F32"} | entry}).encode()
    (folder / "model-2.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)


def _set(folder: Path, **keys: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_a_config_json_alone_has_the_sizes_of_its_model(tmp_path: Path) -> None:
    make_model("qwen3").save_pretrained(tmp_path)
    sizes = model_sizes(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert model_sizes(tmp_path) == sizes
    _set(tmp_path, hidden_act="none such")
    with pytest.raises(LookupError, match="makes no model"):
        model_sizes(tmp_path)


def test_a_quantized_engine_holds_smaller_layers_and_keys() -> None:
    plain = VLLMSettings().sampling_memory(LARGE, num_replies=4, num_tokens=1000)
    quantized = VLLMSettings.model_validate({"quantization": "fp8", "kv_cache_dtype": "fp8"})
    small = quantized.sampling_memory(LARGE, num_replies=4, num_tokens=1000)
    assert plain["weights"] - small["weights"] == LARGE.num_layer_parameters
    assert list(small.values())[1] * 2 == list(plain.values())[1]


def test_a_cache_of_stated_size_takes_that_size_whatever_runs() -> None:
    stated = VLLMSettings(kv_cache_memory_bytes=8 * 2**30, gpu_memory_utilization=0.2)
    for number in (1, 100):
        memory = stated.sampling_memory(LARGE, num_replies=number, num_tokens=1000)
        assert memory == {"weights": BFLOAT16 * LARGE.num_parameters, "keys and values": 8 * 2**30}


def test_a_tied_head_that_is_stored_counts_once(tmp_path: Path) -> None:
    model = make_model("qwen3")
    model.save_pretrained(tmp_path)
    once = model_sizes(tmp_path).num_parameters
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    assert model_sizes(tmp_path).num_parameters == once


def test_an_engine_without_a_cache_has_none(model_folder: Path) -> None:
    sizes = model_sizes(model_folder)
    generic = EmbeddedSettings(force_generic=True).sampling_memory(sizes, num_replies=3, num_tokens=10)
    other = EmbeddedSettings().sampling_memory(
        replace(sizes, model_type="gpt_oss"), num_replies=3, num_tokens=10
    )
    assert generic == other
    assert not any("keys" in name for name in generic)


def test_each_device_has_one_key_value_head_at_least() -> None:
    assert LARGE.key_value_bytes(2, num_devices=8) == LARGE.key_value_bytes(2, num_devices=2)
    assert LARGE.key_value_bytes(2) == 2 * LARGE.key_value_bytes(2, num_devices=2)


def test_a_server_elsewhere_takes_nothing_here() -> None:
    settings = SGLangSettings(base_url="http://127.0.0.1:30000")
    assert settings.sampling_memory(LARGE, num_replies=1, num_tokens=1) == {}


def test_an_engine_on_several_devices_shares_out_the_model() -> None:
    one, two = (
        VLLMSettings(tensor_parallel_size=number).sampling_memory(LARGE, num_replies=4, num_tokens=1000)
        for number in (1, 2)
    )
    assert one["weights"] == BFLOAT16 * LARGE.num_parameters == 2 * two["weights"]
