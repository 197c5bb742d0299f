"""Scores of tokens, of models of many families, against logits that are all kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from envsdk.algorithms.logits import LogitTransform, token_logprobs_and_entropy
from envsdk.trainers.causal_lm import CausalLM
from envsdk.trainers.packing import Row, make_row, pack
from envsdk.trainers.training_args import TorchStrategyConfig
from tests.envsdk.engines.tiny_models import shake

_SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def tiny_model(model_type: str, **changes: Any) -> Any:
    """A random model of this family, norms and biases included."""
    known = AutoConfig.for_model(model_type).to_dict()
    shape = {name: value for name, value in _SHAPE.items() if name in known}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **shape | changes)).eval()
    shake(model, 0.1, 0)
    return model


def rows_of(count: int, *, shared: int = 0, seed: int = 0) -> list[Row]:
    """Rows of 10 to 25 tokens more than the `shared` ones at their beginning; some are scored."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(1, 64, shared)
    rows = []
    for _ in range(count):
        ids = np.concatenate([prompt, rng.integers(1, 64, rng.integers(10, 26))]).astype(np.int32)
        rows.append(make_row(ids, (rng.random(len(ids)) < 0.5).astype(np.int8)))
    return [row for row in rows if row is not None]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    ("model_type", "changes", "transform"),
    [
        ("llama", {}, LogitTransform()),
        ("gpt2", {}, LogitTransform()),
        ("mixtral", {}, LogitTransform()),
        ("gemma2", {"final_logit_softcapping": 2.0}, LogitTransform(softcap=2.0)),
        ("gemma3_text", {"final_logit_softcapping": 5.0}, LogitTransform(softcap=5.0)),
        ("cohere", {"logit_scale": 0.25}, LogitTransform(scale=0.25)),
        ("granite", {"logits_scaling": 8.0}, LogitTransform(scale=0.125)),
        ("phi", {}, None),  # its head has a bias
    ],
)
def test_scores_of_a_family_are_those_of_its_logits_and_so_are_their_gradients(
    model_type, changes, transform, temperature, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.algorithms.logits.LOGITS_AT_ONCE", 64 * 3)  # three tokens
    model = CausalLM(tiny_model(model_type, **changes), with_value_head=False, settings=TorchStrategyConfig())
    assert model.transform == transform
    settings = {"temperature": temperature, "entropy_gradient": True}
    for micro in pack(rows_of(4), 64):
        found, hidden_NH = model.scores(micro, **settings)
        logits_NV, expected_hidden_NH = model.forward(micro)
        expected = token_logprobs_and_entropy(logits_NV, torch.from_numpy(micro.targets_N), **settings)
        torch.testing.assert_close(hidden_NH, expected_hidden_NH)
        rounding = {"rtol": 1e-6, "atol": 1e-6 * max(1.0, logits_NV.abs().max().item())}
        torch.testing.assert_close(tuple(found[:2]), expected, **rounding)
        tops_N = torch.log_softmax(logits_NV.detach() / temperature, -1).amax(-1)
        torch.testing.assert_close(found.top_logprobs_N, tops_N, **rounding)
        weights = [weight for _, weight in model.parameters()]
        gradients = [
            torch.autograd.grad(
                (scores[0] * scores[0].detach() + scores[1]).sum(), weights, allow_unused=True
            )
            for scores in (found, expected)
        ]
        for one, other in zip(*gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
