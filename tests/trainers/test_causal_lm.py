"""Scores of tokens, of models of many families, against logits that are all kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_family import tiny_model
from transformers import AutoConfig

from envsdk.algorithms.logits import LogitTransform, token_logprobs_and_entropy
from envsdk.contracts.failures import ConfigurationError
from envsdk.trainers.causal_lm import CausalLM
from envsdk.trainers.packing import Row, make_row, pack
from envsdk.trainers.training_args import SHARING_MODEL_TYPES, TorchStrategyConfig


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
        ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4}, LogitTransform()),
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
    asked = {"temperature": temperature, "entropy_gradient": True}
    for micro in pack(rows_of(4), 64):
        found, hidden_NH = model.scores(micro, **asked)
        logits_NV, expected_hidden_NH = model.forward(micro)
        expected = token_logprobs_and_entropy(logits_NV, torch.from_numpy(micro.targets_N), **asked)
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


@pytest.fixture(params=[8, 256], ids=["in blocks", "at once"], scope="module")
def block(request) -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("envsdk.trainers.attention.BLOCK", request.param)
        yield request.param


def step_of(model: CausalLM, rows: list[Row], pairs_per_token: float) -> tuple[torch.Tensor, list[Any], int]:
    """Loss, gradients and number of inputs of one pass over rows; each scored token weighs differently."""
    for _, weight in model.parameters():
        weight.grad = None
    loss, num_saved = torch.zeros(()), 0
    for micro in pack(rows, 512, pairs_per_token=pairs_per_token):
        scores, hidden_NH = model.scores(micro, entropy_gradient=True)
        factors_N = torch.cat([torch.arange(len(rows[index].scored)) + index % 3 for index in micro.rows])
        terms_N = factors_N * (scores.logprobs_N + 0.1 * scores.entropy_N + model.predict_values(hidden_NH))
        part = terms_N.sum() / 1000
        part.backward()
        loss, num_saved = loss + part.detach(), num_saved + micro.num_saved_tokens
    return loss, [weight.grad for _, weight in model.parameters()], num_saved


def assert_sharing_changes_nothing(model: CausalLM, rows: list[Row]) -> int:
    """Inputs that were saved."""
    plain, plain_gradients, num_saved = step_of(model, rows, 0.0)
    assert num_saved == 0
    shared, shared_gradients, num_saved = step_of(model, rows, 1e9)
    torch.testing.assert_close(shared, plain, rtol=1e-5, atol=1e-5)
    for one, other in zip(shared_gradients, plain_gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    return num_saved


def with_values(model: Any, **settings: Any) -> CausalLM:
    made = CausalLM(model, with_value_head=True, settings=TorchStrategyConfig(**settings))
    torch.nn.init.normal_(made.value_head.weight)
    return made


@pytest.mark.parametrize("model_type", sorted(SHARING_MODEL_TYPES))
def test_a_family_computes_the_same_for_a_tree_of_rows_as_for_rows_apart(model_type, block) -> None:
    known = AutoConfig.for_model(model_type).to_dict()
    changes = {"sliding_window": 5, "use_sliding_window": True, "n_embd": 32, "n_layer": 2, "n_head": 4}
    model = tiny_model(model_type, **{name: value for name, value in changes.items() if name in known})
    trained = with_values(model)
    assert trained.pairs_per_token > 0
    assert assert_sharing_changes_nothing(trained, rows_of(6, shared=15)) == 5 * 15


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 2), min_size=2, max_size=30), min_size=1, max_size=10),
    st.sampled_from(["qwen3", "mistral", "gemma3_text"]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_any_tree_of_prefixes_has_the_loss_and_the_gradients_of_its_rows(
    block, sequences, model_type, recomputed, random
) -> None:
    window = {} if model_type == "qwen3" else {"sliding_window": 6}
    model = with_values(tiny_model(model_type, **window), gradient_checkpointing=recomputed)
    masks = [[random.random() < 0.6 for _ in ids] for ids in sequences]
    rows = [
        make_row(np.array(ids, np.int32), np.array(mask, np.int8))
        for ids, mask in zip(sequences, masks, strict=True)
    ]
    found = [row for row in rows if row is not None]
    if found:
        assert_sharing_changes_nothing(model, found)


def test_sharing_is_refused_by_name_where_it_is_not_exact_and_off_where_it_is_not_wanted(tmp_path) -> None:
    recurrent = tmp_path / "mamba"
    tiny_model("mamba").save_pretrained(recurrent)

    def load(folder: Path, **settings: Any) -> CausalLM:
        return CausalLM.load(folder, with_value_head=False, settings=TorchStrategyConfig(**settings))

    assert load(recurrent).pairs_per_token == 0
    with pytest.raises(ConfigurationError, match=r"share_prefixes: not .* exact for model type mamba"):
        load(recurrent, share_prefixes=True)
    plain = tmp_path / "llama"
    tiny_model("llama").save_pretrained(plain)
    assert load(plain).pairs_per_token == load(plain, share_prefixes=True).pairs_per_token > 0
    assert load(plain, share_prefixes=False).pairs_per_token == 0
    kernel = TorchStrategyConfig(attn_implementation="flash_attention_2", dtype="bfloat16")
    assert "takes no mask of pairs" in str(kernel.sharing_problem("llama"))


def test_a_block_of_queries_meets_no_key_of_a_branch_that_none_of_them_is_in(monkeypatch) -> None:
    monkeypatch.setattr("envsdk.trainers.attention.BLOCK", 4)
    (micro,) = pack(rows_of(2, shared=8), 512, pairs_per_token=1e9)
    model = CausalLM(tiny_model("llama"), with_value_head=False, settings=TorchStrategyConfig())
    mask = model._masks_and_positions(micro.tree)["attention_mask"]
    (ends,) = micro.tree.ends_BT
    for queries, keys, part in mask.envsdk_blocks:
        first, last = queries.start, min(queries.stop, len(ends)) - 1
        assert all(key <= last and ends[key] > first for key in keys.tolist())
        torch.testing.assert_close(part, mask[:, :, first : last + 1, keys])
    assert sum(part.numel() for _, _, part in mask.envsdk_blocks) < 0.6 * mask.numel()
