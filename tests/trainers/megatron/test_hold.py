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
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "DP": (2, {}),
    "DP in bfloat16": (2, {"dtype": "bfloat16"}),
    "DP, overlapped": (2, {"overlap_grad_reduce": True, "overlap_param_gather": True}),
    "DP, whole optimizers": (2, {"use_distributed_optimizer": False}),
    "TP": (2, {"tensor_model_parallel_size": 2}),
    "PP": (2, {"pipeline_model_parallel_size": 2}),
}


@pytest.mark.parametrize("layout", by_day(["DP in bfloat16"], LAYOUTS))
def test_what_goes_away_comes_back_bit_for_bit(
    layout: str, tmp_path: Path, make_sequences: Callable[..., list[TrainSequence]]
) -> None:
    world_size, strategy = LAYOUTS[layout]
    write_model(tmp_path / "model", "qwen3 tied")
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
    found = play_on(APART, world_size, config, in_turns + ends[0])
    expected = play_on(MEGATRON_ON_CPU, world_size, config, calls + ends[1])
    assert_close(found[4 : len(in_turns) : 5], expected[: len(calls)], tolerance=0.0)
    plain, apart = (sorted(folder.glob("*.safetensors")) for folder in folders)
    assert [file.name for file in plain] == [file.name for file in apart]
    assert plain
    assert [file.read_bytes() for file in plain] == [file.read_bytes() for file in apart]
