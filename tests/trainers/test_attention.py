"""Attention of the torch trainers by other implementations of transformers, and what they say of it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainBatch
from envsdk.trainers.attention import sdpa_kernel
from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.trainers.training_args import FSDP2StrategyConfig, TorchStrategyConfig

MASKS: list[Any] = []


def without_mask(module: Any, query: Any, key: Any, value: Any, mask: Any, **settings: Any) -> Any:
    """Attention as the hub's kernels are called: causal, and no mask is made for it."""
    MASKS.append(mask)
    output = scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=settings["scaling"], enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("name", ["auto", "eager", "without_mask"])
def test_padded_rows_are_right_under_every_attention(
    name, make_config, make_sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    AttentionInterface.register("without_mask", without_mask)
    known = ("auto", "sdpa", "eager", "without_mask")
    monkeypatch.setattr("envsdk.trainers.training_args._IMPLEMENTATIONS", known)
    sequences = make_sequences(9)
    assert len({len(sequence.ids) for sequence in sequences}) > 3

    torch.backends.cuda.enable_cudnn_sdp(True)

    def trained(attention: str) -> tuple[TorchTrainer, dict[str, float]]:
        trainer = TorchTrainer.create(
            make_config(
                strategy_config={"attn_implementation": attention},
                training_args={"max_tokens_per_microbatch": 10_000},
            )
        )
        return trainer, trainer.train_step(TrainBatch(step=0, sequences=sequences))

    (one, metrics), (other, expected) = trained(name), trained("sdpa")
    assert metrics["actor/padding_fraction"] > 0.05
    assert metrics["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=1e-4)
    ids = [sequence.ids for sequence in sequences]
    for ours, theirs in zip(one.logprobs(ids), other.logprobs(ids), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert all(mask is None for mask in MASKS)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_trainer_says_which_attention_it_took(make_config) -> None:
    def said(**settings: Any) -> str:
        return TorchTrainer.create(make_config(strategy_config=settings)).kernels()["attention"]

    assert said() == said(attn_implementation="sdpa") == said(dtype="bfloat16") == "sdpa (flash)"
    assert said(attn_implementation="eager") == "eager"


def test_the_kernel_is_the_one_that_pytorch_would_take() -> None:
    def kernel(**changes: Any) -> str:
        shape: Any = {"num_heads": 4, "num_key_value_heads": 2, "head_width": 32}
        cpu: Any = {"dtype": torch.float32, "device": torch.device("cpu")}
        return sdpa_kernel(**{**shape, **cpu, **changes})

    assert kernel() == "flash"
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        assert kernel().startswith("math")


def test_an_attention_that_cannot_be_had_is_refused_with_what_to_do(make_config) -> None:
    for name, package in (("flash_attention_2", "flash_attn"), ("kernels-community/flash-attn3", "kernels")):
        if find_spec("kernels") or find_spec(package):
            continue
        settings = {"attn_implementation": name, "dtype": "bfloat16"}
        with pytest.raises(ConfigurationError, match=f"{name} needs {package}.*`auto` takes"):
            TorchTrainer.create(make_config(strategy_config=settings))
    with pytest.raises(ConfigurationError, match="nonsense"):
        TorchTrainer.create(make_config(strategy_config={"attn_implementation": "nonsense"}))
    for model in (TorchStrategyConfig, FSDP2StrategyConfig):
        with pytest.raises(ValidationError, match="flash_attention_2 needs dtype: bfloat16"):
            model(attn_implementation="flash_attention_2")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sdpa", "flash_attention_2", "flash_attention_3"])
def test_on_a_gpu_log_probabilities_are_those_of_eager_attention(name, make_config, make_sequences) -> None:
    settings = {"device": "cuda:0", "dtype": "bfloat16"}
    if problem := TorchStrategyConfig(**settings, attn_implementation=name).attention_problem():
        pytest.skip(problem)
    ids = [sequence.ids for sequence in make_sequences(9)]
    found, expected = (
        TorchTrainer.create(make_config(strategy_config={**settings, "attn_implementation": each}))
        for each in (name, "eager")
    )
    assert found.kernels()["attention"].startswith(name)
    for ours, theirs in zip(found.logprobs(ids), expected.logprobs(ids), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=4e-2)
