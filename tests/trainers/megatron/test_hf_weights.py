"""Hugging Face folders that are read, and those that are refused; settings that fit no ranks or no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hf_models import LLAMA3_ROPE, MODELS, make_model, write_model
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from ranks import RankError, run_ranks
from safetensors.torch import load_file, save_file

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainerRank
from envsdk.trainers.megatron.args import MegatronStrategyConfig
from envsdk.trainers.megatron.hf_config import check_supported, read_config
from tests.trainers.megatron import cpu_shim

SIZES = st.sampled_from([1, 2, 3, 4])


def _refusal(rank: TrainerRank, folder: Path) -> str:
    from envsdk.trainers.megatron.hf_weights import FolderWeights, load
    from envsdk.trainers.megatron.model import build_model, initialize_parallelism

    cpu_shim.install()
    strategy = MegatronStrategyConfig()
    initialize_parallelism(strategy, rank, 0)
    try:
        load(build_model(read_config(folder), strategy), FolderWeights(folder))
    except ConfigurationError as error:
        return str(error)
    return "loaded"


def _written_and_read(rank: TrainerRank, folder: Path, strategy_config: dict[str, Any], out: Path) -> None:
    import torch.distributed as dist

    from envsdk.trainers.megatron.hf_weights import FolderWeights, export, load
    from envsdk.trainers.megatron.model import build_model, initialize_parallelism

    cpu_shim.install()
    strategy = MegatronStrategyConfig(**strategy_config)
    initialize_parallelism(strategy, rank, 0)
    config = read_config(folder)
    chunks = build_model(config, strategy)
    load(chunks, FolderWeights(folder))
    tensors = {name: tensor.cpu().contiguous() for name, tensor in export(chunks, config.vocab_size)}
    if rank.rank == 0:
        config.save_pretrained(out)
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["qwen2 tied", "qwen3_moe"])
def test_a_written_folder_is_the_same_model_to_transformers(name, tmp_path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = write_model(tmp_path / "model", name, num_hidden_layers=2)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert (tmp_path / "sharded" / "model.safetensors.index.json").is_file()
    strategy: dict[str, Any] = {"pipeline_model_parallel_size": 2}
    if name == "qwen3_moe":
        strategy = {"expert_model_parallel_size": 2}
    out = tmp_path / "out"
    out.mkdir()
    run_ranks(2, _written_and_read, tmp_path / "sharded", strategy, out)
    again = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    for parameter_name, parameter in model.named_parameters():
        assert torch.equal(parameter, again.get_parameter(parameter_name)), parameter_name


def test_a_folder_that_lacks_a_weight_or_has_another_shape_or_none_is_refused(tmp_path) -> None:
    write_model(tmp_path, "qwen3", num_hidden_layers=1)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    name = "model.layers.0.self_attn.k_proj.weight"
    save_file({key: value for key, value in whole.items() if key != name}, path)
    assert f"no weight {name}" in run_ranks(1, _refusal, tmp_path)[0]
    save_file({**whole, name: whole[name][:-4].contiguous()}, path)
    assert f"{name} [60, 32]" in run_ranks(1, _refusal, tmp_path)[0]
    path.write_bytes(path.read_bytes()[:200])
    assert "cannot read the weights" in run_ranks(1, _refusal, tmp_path)[0]
    path.unlink()
    assert "has no model.safetensors" in run_ranks(1, _refusal, tmp_path)[0]


def _start_of_three(rank: TrainerRank) -> None:
    from envsdk.trainers.megatron.model import initialize_parallelism

    initialize_parallelism(MegatronStrategyConfig(tensor_model_parallel_size=2), rank, 0)


def test_a_number_of_ranks_that_does_not_fit_is_refused_before_they_meet() -> None:
    with pytest.raises(RankError, match="ConfigurationError: strategy_config: 3 ranks cannot be shared out"):
        run_ranks(3, _start_of_three)


@pytest.mark.parametrize("name", MODELS)
def test_every_family_is_supported(name) -> None:
    check_supported(make_model(name).config, MegatronStrategyConfig())


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, "use_sliding_window is True"),
        ("llama", {"attention_bias": True}, "attention_bias is True"),
        ("llama", {"mlp_bias": True}, "mlp_bias is True"),
        ("qwen3", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers is [0]"),
        (
            "qwen3",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rope_parameters.rope_type is linear",
        ),
        (
            "llama",
            {"rope_parameters": {**LLAMA3_ROPE, "low_freq_factor": 2.0}},
            "rope_parameters.low_freq_factor is 2.0",
        ),
    ],
)
def test_models_that_would_be_computed_wrongly_are_refused_by_the_field(name, changes, said) -> None:
    config_class, _, settings = MODELS[name]
    with pytest.raises(ConfigurationError, match="megatron_train cannot train this model") as refused:
        check_supported(config_class(**{**settings, **changes}), MegatronStrategyConfig())
    assert said in str(refused.value)


def test_another_model_type_is_refused() -> None:
    from transformers import GPT2Config

    with pytest.raises(ConfigurationError, match="model_type is gpt2, not one of llama, qwen2"):
        check_supported(GPT2Config(), MegatronStrategyConfig())


@pytest.mark.parametrize(
    ("name", "strategy", "said"),
    [
        ("qwen3", {"tensor_model_parallel_size": 8}, "does not divide the model's num_key_value_heads of 4"),
        ("qwen3", {"pipeline_model_parallel_size": 3}, "does not divide the model's num_hidden_layers of 4"),
        ("qwen3", {"expert_model_parallel_size": 2}, "the model has no experts"),
        ("qwen3_moe", {"expert_model_parallel_size": 3}, "does not divide the model's num_experts of 4"),
        ("qwen3_moe", {"tensor_model_parallel_size": 2}, "needs sequence_parallel: true"),
    ],
)
def test_layouts_that_do_not_fit_the_model_are_refused(name, strategy, said) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_supported(make_model(name).config, MegatronStrategyConfig(**strategy))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"sequence_parallel": True}, "needs tensor_model_parallel_size of 2 or more"),
        ({"virtual_pipeline_model_parallel_size": 2}, "needs pipeline_model_parallel_size of 2 or more"),
        ({"overlap_param_gather": True}, "overlap_grad_reduce: true"),
        ({"tensor_model_parallel_size": 0}, "greater than or equal to 1"),
        ({"recompute_granularity": "some"}, "selective"),
        ({"tensor_parallel_size": 2}, "Extra inputs"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(strategy, said) -> None:
    with pytest.raises(ValidationError, match=said):
        MegatronStrategyConfig(**strategy)


@given(tp=SIZES, pp=SIZES, cp=SIZES, ep=SIZES, etp=st.none() | SIZES, ranks=st.integers(1, 64))
def test_a_layout_fits_the_multiples_of_its_unit_and_no_other_number_of_ranks(
    tp, pp, cp, ep, etp, ranks
) -> None:
    strategy = MegatronStrategyConfig(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
    )
    fits = ranks % (tp * pp * cp) == 0 and ranks % ((etp or tp) * ep * pp) == 0
    if fits:
        layout = strategy.layout(ranks)
        data = ranks // (tp * pp * cp)
        assert ("data" in layout) == (data > 1)
        assert ("tensor" in layout) == (tp > 1)
    else:
        with pytest.raises(ValueError, match=f"^{ranks} ranks cannot be shared out as .*; use a multiple of"):
            strategy.layout(ranks)
