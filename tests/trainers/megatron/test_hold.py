"""`megatron_train` that gives its device away between all calls computes bit for bit what it would have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hf_models import write_model
from plays import MEGATRON_ON_CPU, TRAINING, Call, assert_close, play_on

from envsdk.contracts.held import Held
from envsdk.contracts.trainer import TrainBatch, TrainerConfig, TrainSequence
from tests.by_day import by_day

APART = "tests.trainers.megatron.cpu_trainer:MegatronApart"
TP, PP, EP = ({f"{kind}_model_parallel_size": 2} for kind in ("tensor", "pipeline", "expert"))
HALF = {"dtype": "bfloat16"}
WHOLE = {"use_distributed_optimizer": False}
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "DP": ("qwen3 tied", {}),
    "DP in bfloat16": ("qwen3 tied", HALF),
    "DP, overlapped": ("qwen3 tied", {"overlap_grad_reduce": True, "overlap_param_gather": True}),
    "DP, whole optimizers": ("qwen3 tied", WHOLE),
    "DP, whole optimizers in bfloat16": ("qwen3", {**HALF, **WHOLE}),
    "TP": ("qwen3 tied", TP),
    "TP with SP in bfloat16": ("qwen3 tied", {**TP, **HALF, "sequence_parallel": True}),
    "PP": ("qwen3 tied", PP),
    "PP, whole optimizers in bfloat16": ("qwen3 tied", {**PP, **HALF, **WHOLE}),
    "EP": ("qwen3_moe", EP),
    "EP in bfloat16": ("glm4_moe", {**EP, **HALF}),
    "LoRA, PP": ("qwen3 tied", {**PP, "lora": {"rank": 4}}),
}


@pytest.mark.parametrize("layout", by_day(["DP in bfloat16"], LAYOUTS))
def test_what_goes_away_comes_back_bit_for_bit(
    layout: str, tmp_path: Path, make_sequences: Callable[..., list[TrainSequence]]
) -> None:
    name, strategy = LAYOUTS[layout]
    write_model(tmp_path / "model", name)
    config = TrainerConfig(
        model=tmp_path / "model",
        sequence_length=256,
        seed=3,
        training_args=TRAINING,
        strategy_config=strategy,
    )
    ids = [sequence.ids for sequence in make_sequences(4, seed=9)]
    calls: list[Call] = [("logprobs", ids)]
    for step in range(2):
        calls += [("train_step", TrainBatch(step=step, sequences=make_sequences(6, seed=step))), ("weights",)]
    in_turns = [
        each
        for call in calls
        for each in (("hold", Held.NOTHING), ("weights",), ("hold", Held.WEIGHTS), ("hold", Held.ALL), call)
    ]
    folders = tmp_path / "plain", tmp_path / "apart"
    for folder in folders:
        folder.mkdir()
    ends = [[("hold", Held.NOTHING), ("save", folders[1])], [("save", folders[0])]]
    found = play_on(APART, 2, config, in_turns + ends[0])
    expected = play_on(MEGATRON_ON_CPU, 2, config, calls + ends[1])
    assert_close(found[4 : len(in_turns) : 5], expected[: len(calls)], tolerance=0.0)
    plain, apart = (sorted(folder.glob("*.safetensors")) for folder in folders)
    assert [file.name for file in plain] == [file.name for file in apart]
    assert plain
    assert [file.read_bytes() for file in plain] == [file.read_bytes() for file in apart]
