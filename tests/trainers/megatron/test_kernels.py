"""Kernels of the Megatron trainer: which it takes, and that each kind of layer is the model of transformers.

Transformer Engine and FlashAttention do not run on a CPU. Here modules with the same parameters, names and
calls stand for them; the tests marked `gpu` run the real ones.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hf_models import write_logits, write_model
from ranks import need_gpus, run_ranks, run_ranks_on_gpus
from test_model import SEQUENCES, Layout, check_layouts
from torch import Tensor, nn

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainerRank
from envsdk.trainers.megatron.args import MegatronStrategyConfig
from tests.by_day import by_day
from tests.trainers.megatron import cpu_shim


@pytest.fixture(scope="module")
def kernels() -> Any:
    """The module under test, which imports Megatron-core."""
    from envsdk.trainers.megatron import device

    return device


def config(**changes: Any) -> Any:
    """What of Megatron's configuration decides about kernels."""
    shape = {"num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 64, "num_moe_experts": None}
    layout = {"context_parallel_size": 1, "tensor_model_parallel_size": 1, "params_dtype": torch.bfloat16}
    return SimpleNamespace(**{**shape, **layout, **changes})


@pytest.mark.parametrize(
    ("has_engine", "capability", "changes", "expected"),
    [
        (True, (9, 0), {}, "transformer_engine"),
        (True, (9, 0), {"context_parallel_size": 2}, "transformer_engine"),
        (True, (9, 0), {"num_moe_experts": 8}, "varlen"),
        (True, (9, 0), {"params_dtype": torch.float32}, "sdpa"),
        (True, (7, 5), {}, "sdpa"),
        (False, (8, 0), {}, "varlen"),
        (False, (8, 0), {"context_parallel_size": 2}, "sdpa"),
        (False, (8, 0), {"kv_channels": 12}, "sdpa"),
        (False, (8, 0), {"kv_channels": 512}, "sdpa"),
        (False, (0, 0), {}, "sdpa"),
    ],
)
def test_auto_takes_the_first_that_device_and_model_allow(
    has_engine, capability, changes, expected, kernels, monkeypatch
) -> None:
    monkeypatch.setattr(kernels.gpt_layer_specs, "HAVE_TE", has_engine)
    monkeypatch.setattr(kernels, "_compute_capability", lambda: capability)
    assert kernels.chosen_attention("auto", config(**changes)) == expected


def test_what_is_asked_for_and_cannot_be_had_is_refused_with_all_that_it_lacks(kernels) -> None:
    float32 = config(params_dtype=torch.float32, context_parallel_size=2)
    for asked, lacking in (
        ("varlen", "a GPU of .*, dtype: bfloat16, context_parallel_size: 1"),
        ("transformer_engine", "a GPU of .*, dtype: bfloat16, the package transformer-engine"),
    ):
        with pytest.raises(ConfigurationError, match=f"attn_implementation: {asked} needs {lacking}"):
            kernels.chosen_attention(asked, float32)
    assert kernels.chosen_attention("sdpa", float32) is kernels.Attention.SDPA
    with pytest.raises(ConfigurationError, match=r"transformer_engine needs .*, no lora"):
        kernels.chosen_attention("transformer_engine", config(), with_adapter=True)


def test_the_trainer_says_which_it_took(kernels) -> None:
    kernels_of, attention = kernels.kernels_of, kernels.Attention
    assert kernels_of(attention.SDPA, config()) == {"attention": "sdpa (flash)", "layers": "megatron-core"}
    assert kernels_of(attention.VARLEN, config())["attention"] == "varlen (flash)"
    assert kernels_of(attention.TRANSFORMER_ENGINE, config())["layers"] == "transformer_engine"


def test_the_settings_say_it_before_the_run() -> None:
    assert MegatronStrategyConfig().attention.startswith("the first of Transformer Engine, varlen")
    asked = MegatronStrategyConfig(attn_implementation="transformer_engine")
    assert asked.attention == "transformer_engine"
    assert "not installed here" in str(asked.attention_problem())
    assert MegatronStrategyConfig().attention_problem() is None


def sequence_by_sequence(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, key_ends: Tensor, longest: int, *rest: Any,
    window_size: tuple[int, int], scale: float | None, **grouped: bool,
) -> Tensor:  # fmt: skip
    """What `varlen_attn` is said to compute, on any device."""
    assert window_size == (-1, 0)
    assert ends is key_ends
    assert ends.dtype == torch.int32
    assert longest == rest[0] == int(ends.diff().max())
    outputs = []
    for begin, end in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        parts = (part[begin:end].transpose(0, 1) for part in (query, key, value))
        output = nn.functional.scaled_dot_product_attention(
            *parts, is_causal=True, scale=scale, enable_gqa=True
        )
        outputs.append(output.transpose(0, 1))
    return torch.cat(outputs)


def _with_stand_ins(rank: TrainerRank, attention: str, folder: Path, cases: list[Layout]) -> int:
    cpu_shim.install()
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.tensor_parallel import ColumnParallelLinear

    from envsdk.trainers.megatron import layer_spec, model

    class NormAndLinear(ColumnParallelLinear):  # type: ignore[misc]
        """Transformer Engine's: the norm's weight is one of the matrix product's."""

        def __init__(self, input_size: int, output_size: int, *, config: Any, **settings: Any) -> None:
            super().__init__(input_size, output_size, config=config, **settings)
            weight = nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))
            weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
            self.layer_norm_weight = weight
            self.epsilon = config.layernorm_epsilon

        def forward(self, hidden: Tensor, *args: Any, **settings: Any) -> Any:
            normed = nn.functional.rms_norm(hidden, hidden.shape[-1:], self.layer_norm_weight, self.epsilon)
            return super().forward(normed, *args, **settings)

    class Backend(LocalSpecProvider):  # type: ignore[misc]
        """Where Transformer Engine's modules go in a layer."""

        def fuse_layernorm_and_linear(self) -> bool:
            return True

        def column_parallel_layer_norm_linear(self) -> type:
            return NormAndLinear

        def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:
            return layer_spec.Norm

        def core_attention(self) -> type:
            return layer_spec.PackedAttention

    stand_ins: Any = gpt_layer_specs
    stand_ins.TESpecProvider, stand_ins.TENorm = Backend, layer_spec.Norm
    layer_spec.varlen_attn = sequence_by_sequence
    model.chosen_attention = lambda asked, config, **_: model.Attention(attention)
    return check_layouts(rank, folder, cases)


TP = {"tensor_model_parallel_size": 2}
CASES: dict[str, list[Layout]] = {
    "transformer_engine": [
        {},
        TP,
        {**TP, "sequence_parallel": True},
        {"pipeline_model_parallel_size": 2},
        {"context_parallel_size": 2},
    ],
    "varlen": [{}, {**TP, "sequence_parallel": True}, {"pipeline_model_parallel_size": 2}],
}


@pytest.mark.parametrize(
    ("attention", "name"),
    by_day(
        [("transformer_engine", "qwen2 tied"), ("varlen", "qwen3")], product(CASES, ["qwen2 tied", "qwen3"])
    ),
)
def test_logits_and_weights_are_those_of_transformers_with_each_kind_of_layer(
    attention, name, tmp_path
) -> None:
    write_logits(tmp_path, write_model(tmp_path, name), SEQUENCES)
    cases = CASES[attention]
    assert run_ranks(2, _with_stand_ins, attention, tmp_path, cases) == [len(cases)] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("attention", ["transformer_engine", "varlen", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_on_a_gpu_each_kind_of_layer_is_the_model_in_bfloat16(attention, name, tmp_path) -> None:
    need_gpus()
    if attention == "transformer_engine":
        pytest.importorskip("transformer_engine")
    model = write_model(tmp_path, name, initializer_range=0.05)
    write_logits(tmp_path, model, SEQUENCES)
    cases: list[Layout] = [{"dtype": "bfloat16", "attn_implementation": attention}]
    assert run_ranks_on_gpus(1, check_layouts, tmp_path, cases, tolerance=5e-2) == [1]
