"""Megatron's checkpoints: resumed bit for bit, read under other layouts and by other trainers, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_models import write_model
from plays import TRAINING, assert_close, play, play_on_megatron

from envsdk.base.store.model_files import stored_dtype
from envsdk.contracts.trainer import TrainBatch, TrainerConfig
from tests.by_day import by_day

TP, PP, EP = ({f"{kind}_model_parallel_size": 2} for kind in ("tensor", "pipeline", "expert"))


@pytest.fixture
def config_of(tmp_path: Path) -> Callable[..., TrainerConfig]:
    def of(name: str, **changes: Any) -> TrainerConfig:
        folder = tmp_path / "model"
        if not folder.is_dir():
            write_model(folder, name)
            (folder / "tokenizer.json").write_text("{}")
        settings = {"model": folder, "sequence_length": 256, "seed": 3, "training_args": TRAINING}
        return TrainerConfig(**{**settings, **changes})

    return of


@pytest.fixture
def batches(make_sequences) -> list[TrainBatch]:
    return [TrainBatch(step=step, sequences=make_sequences(6, seed=step)) for step in range(4)]


LAYOUTS = {
    "TP to PP": ("qwen3 tied", (2, TP), (2, PP)),
    "PP to DP": ("qwen2", (2, PP), (2, {})),
    "DP to one rank": ("qwen3 tied", (2, {}), (1, {})),
    "whole optimizers to distributed": ("llama", (2, {"use_distributed_optimizer": False}), (2, {})),
    "EP to one rank": ("qwen3_moe", (2, EP), (1, {})),
    "DP to EP": ("qwen3_moe tied", (2, {}), (2, EP)),
    "PP to EP": ("glm4_moe", (2, PP), (2, EP)),
    "TP of 2 to TP and PP": ("qwen3", (2, TP), (4, {**TP, **PP})),
}


@pytest.mark.parametrize("layout", by_day(["DP to EP"], LAYOUTS))
def test_another_layout_goes_on_as_the_saver_would_have(layout, config_of, batches, tmp_path) -> None:
    name, (world_size, strategy), (other_size, other) = LAYOUTS[layout]
    config = config_of(name, with_value_head=True)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    steps = [("train_step", batch) for batch in batches]
    calls = [*steps[:2], ("save", folder), *steps[2:], ("weights",)]
    expected = play_on_megatron(world_size, config, strategy, calls)
    calls = [("load", folder), *steps[2:], ("weights",)]
    assert_close(play_on_megatron(other_size, config, other, calls)[1:], expected[3:], tolerance=3e-5)


@pytest.mark.parametrize(
    "strategy",
    by_day(
        [{"dtype": "bfloat16"}],
        [{**TP, "sequence_parallel": True}, {"dtype": "bfloat16"}, {"use_distributed_optimizer": False}],
    ),
    ids=str,
)
def test_the_same_layout_goes_on_bit_for_bit_also_after_steps_of_the_value_head_alone(
    strategy, config_of, batches, tmp_path
) -> None:
    config = config_of("qwen3 tied", with_value_head=True)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    warm_up = dataclasses.replace(batches[0], critic_only=True)
    steps = [("train_step", batch) for batch in (warm_up, *batches[1:])]
    calls = [*steps[:2], ("save", folder), *steps[2:], ("weights",)]
    expected = play_on_megatron(2, config, strategy, calls)
    calls = [("load", folder), *steps[2:], ("weights",)]
    assert_close(play_on_megatron(2, config, strategy, calls)[1:], expected[3:], tolerance=0.0)


def test_the_torch_trainer_reads_what_megatron_wrote_and_the_other_way_round(
    config_of, batches, tmp_path
) -> None:
    config = config_of("qwen3 tied", with_value_head=True)
    warm_up = dataclasses.replace(batches[0], critic_only=True)
    steps = [("train_step", batch) for batch in (warm_up, *batches[1:])]
    for writer, reader in ((megatron, torch), (torch, megatron)):
        folder = tmp_path / writer.__name__
        folder.mkdir()
        expected = writer(config, [*steps[:2], ("save", folder), *steps[2:], ("weights",)])
        found = reader(config, [("load", folder), *steps[2:], ("weights",)])
        assert_close(found[1:], expected[3:], tolerance=3e-5)


@pytest.mark.parametrize("is_distributed", by_day([True], [True, False]))
def test_updates_below_a_step_of_bfloat16_are_taken_by_a_share_of_the_weights_and_saved_models_name_it(
    is_distributed, config_of, batches, tmp_path
) -> None:
    rate = 1e-5
    config = config_of(
        "qwen3 tied",
        training_args={**TRAINING, "learning_rate": rate, "weight_decay": 0.0, "adam_epsilon": 1e-30},
    )
    strategy = {"dtype": "bfloat16", "use_distributed_optimizer": is_distributed}
    calls = [("weights",), ("train_step", batches[0]), ("weights",), ("save_pretrained", tmp_path / "saved")]
    before, _, after, _ = play_on_megatron(2, config, strategy, calls)
    names = [name for name in before if name.endswith("proj.weight")]
    weights, moved = (
        np.concatenate([np.abs(of(name)).reshape(-1) for name in names])
        for of in (before.__getitem__, lambda name: after[name] - before[name])
    )
    coarse = weights > 2.0**-7  # half a step there is 3 times the rate or more
    assert coarse.sum() > 1000
    assert 0 < (moved[coarse] > 0).mean() < 0.5
    assert moved[coarse].mean() == pytest.approx(rate, rel=0.2)
    assert stored_dtype(tmp_path / "saved") == "bfloat16"


def megatron(config: TrainerConfig, calls: list[Any]) -> list[Any]:
    return play_on_megatron(2, config, TP, calls)


def torch(config: TrainerConfig, calls: list[Any]) -> list[Any]:
    return play("torch", config, calls)


def test_steps_of_the_value_head_alone_are_those_of_the_torch_trainer(config_of, batches) -> None:
    config = config_of("qwen3 tied", with_value_head=True)
    ids = [sequence.ids for sequence in batches[3].sequences]
    calls = [
        ("weights",),
        *(("train_step", dataclasses.replace(batch, critic_only=True)) for batch in batches[:2]),
        ("weights",),
        ("values", ids),
    ]
    found = play_on_megatron(2, config, PP, calls)
    assert_close(found, torch(config, calls), tolerance=3e-5)
    assert_close(found[0], found[-2], tolerance=0.0)
    assert max(np.abs(found[-1][0])) > 1e-4


def test_a_damaged_missing_or_foreign_checkpoint_is_refused_by_name_and_changes_nothing(
    config_of, batches, tmp_path
) -> None:
    config = config_of("qwen3 tied")
    folders = [tmp_path / name for name in ("damaged", "missing", "foreign")]
    for folder in folders:
        folder.mkdir()
    play_on_megatron(2, config, TP, [("train_step", batches[0]), *(("save", f) for f in folders[:2])])
    other = config_of("qwen3 tied", model=tmp_path / "other")
    write_model(other.model, "qwen3 tied", intermediate_size=64)
    play_on_megatron(2, other, TP, [("save", folders[2])])
    damaged = folders[0] / "optimizer-2-of-2.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-3] ^= 1
    damaged.write_bytes(content)
    missing = folders[1] / "weights-1-of-2.safetensors"
    missing.unlink()

    loads = [("load", folder) for folder in folders]
    before, *answers, after = play_on_megatron(2, config, TP, [("weights",), *loads, ("weights",)])
    assert answers[0].startswith("StorageError")
    assert str(damaged) in answers[0]
    assert answers[1].startswith("StorageError")
    assert str(missing) in answers[1]
    assert answers[2].startswith("StorageError")
    assert "another model" in answers[2]
    assert_close(before, after, tolerance=0.0)


@pytest.mark.parametrize(
    ("name", "strategy"),
    by_day(
        [("mixtral", EP)],
        [
            ("qwen3 tied", {**TP, "sequence_parallel": True}),
            ("qwen2", PP),
            ("qwen3_moe", EP),
            ("mixtral", EP),
            ("glm4_moe", PP),
        ],
    ),
)
def test_the_torch_trainer_loads_the_hugging_face_folder_and_finds_the_weights(
    name, strategy, config_of, batches, tmp_path
) -> None:
    folder = tmp_path / "pretrained"
    calls = [("train_step", batches[0]), ("save_pretrained", folder), ("weights",)]
    *_, weights = play_on_megatron(2, config_of(name), strategy, calls)
    (found,) = torch(config_of(name, model=folder), [("weights",)])
    assert found.keys() == weights.keys()
    assert_close(found, weights, tolerance=0.0)
    assert (folder / "tokenizer.json").read_text() == "{}"


def test_a_step_that_is_not_finite_is_refused_on_all_ranks_and_changes_nothing(config_of, batches) -> None:
    sequences = list(batches[1].sequences)
    poisoned = np.where(sequences[0].response_mask == 1, np.float32(np.inf), np.float32(0))
    sequences[0] = dataclasses.replace(sequences[0], advantages=poisoned)
    bad = TrainBatch(step=1, sequences=sequences)
    steps = [("train_step", batches[0]), ("weights",), ("train_step", bad), ("weights",)]
    good = [("train_step", batches[2]), ("weights",)]
    for algorithm in ({}, {"ppo_mini_batch_size": 2}):
        config = config_of("qwen3 tied", algorithm=algorithm)
        *_, before, error, after, _, end = play_on_megatron(2, config, {}, [*steps, *good])
        assert error.startswith("TrainerError: step 1")
        assert_close(before, after, tolerance=0.0)
        *_, expected = play_on_megatron(2, config, {}, [*steps[:1], *good])
        assert_close(end, expected, tolerance=0.0)
