"""Adapters under Megatron: the torch trainer's steps, files and names under every kind of layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_models import write_model
from plays import MEGATRON_ON_CPU, TRAINING, Played, assert_close, play, play_on, play_on_megatron
from ranks import RankError, need_gpus
from test_trainer import CP, DEVICES, EP, PP, SP, TOLERANCE, TP, VPP

from envsdk.base.store.model_files import stored_dtype
from envsdk.contracts.held import Held
from envsdk.contracts.trainer import TrainBatch, TrainerConfig, TrainSequence
from envsdk.trainers.megatron.hf_config import adapted_layers, read_config
from envsdk.weights.lora import A_SUFFIX, B_SUFFIX
from tests.by_day import by_day

Sequences = Callable[..., list[TrainSequence]]
LORA: dict[str, Any] = {"lora": {"rank": 4}}
SOME: dict[str, Any] = {"lora": {"rank": 3, "alpha": 5.0, "target_modules": ["v_proj", "up_proj", "o_proj"]}}
LAYOUTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "1 rank": (1, "qwen3 tied", LORA),
    "TP": (2, "qwen2", {**LORA, **TP}),
    "TP, some matrices": (2, "llama", {**SOME, **TP}),
    "TP with SP": (2, "qwen2 tied", {**SOME, **SP}),
    "TP with SP, recomputed": (2, "qwen3 tied", {**LORA, **SP, "recompute_granularity": "full"}),
    "PP": (2, "qwen3 tied", {**LORA, **PP}),
    "VPP": (2, "llama tied", {**LORA, **VPP}),
    "CP": (2, "qwen3", {**LORA, **CP}),
    "DP": (2, "qwen3", LORA),
    "DP, whole optimizers": (2, "llama", {**LORA, "use_distributed_optimizer": False}),
    "DP, overlapped": (2, "qwen2", {**LORA, "overlap_grad_reduce": True, "overlap_param_gather": True}),
    "EP": (2, "qwen3_moe", {**LORA, **EP}),
    "EP and TP with SP": (2, "mixtral", {**LORA, **EP, **SP, "expert_tensor_parallel_size": 1}),
    "EP and PP": (4, "glm4_moe", {**LORA, **EP, **PP}),
    "TP with SP, and DP": (4, "qwen3", {**LORA, **SP}),
}


@pytest.fixture
def config_of(tmp_path: Path) -> Callable[..., TrainerConfig]:
    def of(name: str, strategy: dict[str, Any], **changes: Any) -> TrainerConfig:
        folder = tmp_path / "model"
        if not folder.is_dir():
            write_model(folder, name)
        settings = {"model": folder, "sequence_length": 256, "seed": 3, "training_args": TRAINING}
        return TrainerConfig(**{**settings, "strategy_config": strategy, **changes})

    return of


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", by_day(["TP with SP", "EP"], LAYOUTS))
def test_steps_of_an_adapter_are_those_of_the_torch_trainer(
    layout: str,
    device: str,
    config_of: Callable[..., TrainerConfig],
    make_sequences: Sequences,
    tmp_path: Path,
) -> None:
    world_size, name, strategy = LAYOUTS[layout]
    on_gpus = device != "cpu"
    if on_gpus:
        need_gpus(world_size)
    config = config_of(name, {"lora": strategy["lora"], "device": device})
    start = tmp_path / "start"
    start.mkdir()
    batches = [TrainBatch(step=step, sequences=make_sequences(6, seed=step)) for step in range(2)]
    ids = [sequence.ids for sequence in make_sequences(4, seed=9)]
    played = [("train_step", batches[0]), ("adapter",), ("train_step", batches[1])]
    played += [("adapter",), ("weights",), ("logprobs", ids)]
    plain, _, *expected = play("torch", config, [("weights",), ("save", start), *played])
    before, _, *found = play_on_megatron(
        world_size, config, strategy, [("weights",), ("load", start), *played], gpus=on_gpus
    )
    assert_close(before, plain, tolerance=0.0)
    assert_close(found, expected, tolerance=TOLERANCE[device])
    adapter, weights = found[3], found[4]
    adapted = {name.removesuffix(A_SUFFIX) for name in adapter if name.endswith(A_SUFFIX)}
    if "target_modules" not in strategy["lora"]:
        assert adapted == set(adapted_layers(read_config(config.model)))
    moved = {name for name in plain if not np.array_equal(weights[name], plain[name])}
    assert moved == {f"{module}.weight" for module in adapted}
    assert max(np.abs(half).max() for name, half in adapter.items() if name.endswith(B_SUFFIX)) > 1e-3


def started(config: TrainerConfig, world_size: int, strategy: dict[str, Any]) -> Played:
    return play_on_megatron(world_size, config, strategy, [("adapter",), ("weights",)])


def test_an_adapter_begins_the_same_under_every_layout_and_as_nothing(
    config_of: Callable[..., TrainerConfig],
) -> None:
    config = config_of("qwen3 tied", {})
    adapter, weights = started(config, 2, {**LORA, **SP})
    assert_close([adapter, weights], started(config, 2, {**LORA, **PP}), tolerance=0.0)
    (plain,) = play_on_megatron(1, config, {}, [("weights",)])
    assert_close(weights, plain, tolerance=0.0)
    halves = [half for name, half in adapter.items() if name.endswith(A_SUFFIX)]
    assert len({half.tobytes() for half in halves}) == len(halves) == 4 * 7
    for half in halves:
        assert half.std() == pytest.approx(1 / np.sqrt(3 * half.shape[1]), rel=0.25)


@pytest.mark.parametrize(
    "strategy",
    by_day(
        [{**SP, "dtype": "bfloat16"}],
        [{**SP, "dtype": "bfloat16"}, PP, {"use_distributed_optimizer": False}, {**VPP, "dtype": "bfloat16"}],
    ),
    ids=str,
)
def test_a_run_goes_on_bit_for_bit_from_a_checkpoint_that_holds_the_adapter_and_the_value_head_alone(
    strategy: dict[str, Any],
    config_of: Callable[..., TrainerConfig],
    make_sequences: Sequences,
    tmp_path: Path,
) -> None:
    config = config_of("qwen3 tied", {**LORA, **strategy}, with_value_head=True)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    steps = [
        ("train_step", TrainBatch(step=step, sequences=make_sequences(6, seed=step))) for step in range(3)
    ]
    ends = [("adapter",), ("weights",), ("save_pretrained", tmp_path / "saved")]
    apart = "tests.trainers.megatron.cpu_trainer:MegatronApart"
    calls = [("hold", Held.NOTHING), ("adapter",), ("hold", Held.ALL), steps[0], ("save", folder)]
    expected = play_on(apart, 2, config, [*calls, *steps[1:], *ends])[len(calls) :]
    found = play_on(MEGATRON_ON_CPU, 2, config, [("load", folder), *steps[1:], *ends])[1:]
    assert_close(found, expected, tolerance=0.0)
    adapter, weights, _ = expected[2:]
    size = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    assert size < 3.7 * sum(half.nbytes for half in adapter.values())
    assert stored_dtype(tmp_path / "saved") == "float32"
    (again,) = play("torch", config_of("", {}, model=tmp_path / "saved"), [("weights",)])
    assert_close(again, weights, tolerance=0.0)


@pytest.mark.parametrize(
    ("name", "lora", "said"),
    [
        ("qwen3", {"rank": 0}, "rank"),
        (
            "qwen3",
            {"rank": 4, "target_modules": ["nobody", "lm_head", "q_proj"]},
            "nobody, lm_head; of this model down_proj",
        ),
        (
            "mixtral",
            {"rank": 4, "target_modules": ["w1"]},
            "w1; of this model k_proj, o_proj, q_proj, v_proj",
        ),
    ],
)
def test_what_cannot_be_adapted_is_refused_by_name(
    name: str, lora: dict[str, Any], said: str, config_of: Callable[..., TrainerConfig]
) -> None:
    with pytest.raises(RankError, match=f"(?sm)ConfigurationError: .*{said}"):
        play_on_megatron(1, config_of(name, {}), {"lora": lora}, [])
