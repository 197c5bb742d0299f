"""`fsdp2_train` on 1, 2 and 4 ranks against the torch trainer; checkpoints under other numbers of ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plays import Call, Played, assert_close, play, play_on
from ranks import RankError, need_gpus, run_ranks
from tiny_family import tiny_model

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainBatch, TrainerConfig, TrainerRank, TrainSequence
from envsdk.trainers.fsdp2_trainer import Fsdp2Trainer, mesh_shape
from envsdk.trainers.sft_trainer import SftTrainer
from envsdk.trainers.training_args import FSDP2StrategyConfig
from tests.by_day import by_day

LAYOUTS = {
    "2 ranks": (2, {}),
    "4 ranks": (4, {}),
    "2 copies on 2 ranks each": (4, {"shard_size": 2}),
    "2 copies on 1 rank each": (2, {"shard_size": 1}),
    "2 ranks, saving traffic and memory": (
        2,
        {"reshard_after_forward": False, "gradient_checkpointing": True},
    ),
}

MINI_BATCHES = {"ppo_epochs": 2, "ppo_mini_batch_size": 2}


class Fsdp2SftTrainer(SftTrainer, Fsdp2Trainer):
    """Takes supervised steps on several ranks."""


def play_on_fsdp2(world_size: int, config: TrainerConfig, calls: list[Call]) -> Played:
    return play_on("fsdp2_train", world_size, config, calls)


def ids_of(sequences: list[TrainSequence]) -> list[np.ndarray]:
    return [sequence.ids for sequence in sequences]


@pytest.fixture
def make_batches(make_sequences) -> Callable[..., list[TrainBatch]]:
    """Of every fourth sequence nothing is learned."""

    def make(count: int, *, first: int = 0, size: int = 12) -> list[TrainBatch]:
        return [
            TrainBatch(
                step=step,
                sequences=[
                    dataclasses.replace(each, advantages=each.advantages * np.float32(index % 4 != 3))
                    for index, each in enumerate(make_sequences(size, seed=step))
                ],
            )
            for step in range(first, first + count)
        ]

    return make


@pytest.mark.parametrize("layout", by_day(["2 ranks"], LAYOUTS))
def test_three_steps_are_those_of_the_torch_trainer(
    layout, make_config, make_batches, make_sequences
) -> None:
    world_size, strategy = LAYOUTS[layout]
    ids = ids_of(make_sequences(9))
    calls: list[Call] = [("logprobs", ids)]
    for batch in make_batches(3):
        calls += [("train_step", batch), ("logprobs", ids), ("weights",)]
    # Adam divides a gradient by its own size, which makes a step of what is only rounding; this epsilon
    # is above the rounding of these gradients. The default one is in the test below, more loosely.
    training = {
        "learning_rate": 1e-3,
        "adam_epsilon": 1e-5,
        "max_grad_norm": 0.5,
        "max_tokens_per_microbatch": 100,
    }
    expected = play("torch", make_config(training_args=training), calls)
    found = play_on_fsdp2(world_size, make_config(training_args=training, strategy_config=strategy), calls)
    assert_close(found, expected, tolerance=1e-6)
    assert found[1]["actor/measured_share"] < 1
    weights_moved = max(np.abs(found[-1][name] - found[3][name]).max() for name in found[-1])
    assert weights_moved > 1e-3


def test_ranks_share_prefixes_and_hold_no_logits_of_a_model_that_caps_them(
    make_config, make_sequences, tmp_path
) -> None:
    tiny_model("gemma2", final_logit_softcapping=3.0, sliding_window=8).save_pretrained(tmp_path)
    prompt = np.arange(1, 51, dtype=np.int32) % 7
    sequences = [
        dataclasses.replace(each, ids=np.concatenate([prompt, each.ids])[: len(each.ids)] % 60)
        for each in make_sequences(10)
    ]
    calls: list[Call] = [
        ("train_step", TrainBatch(step=0, sequences=sequences)),
        ("logprobs", ids_of(sequences)),
        ("weights",),
    ]
    training = {"adam_epsilon": 1e-5, "max_tokens_per_microbatch": 100}
    algorithm = {"entropy_loss_coef": 0.1, "temperature": 0.7}
    played = [
        play_(
            make_config(model=tmp_path, algorithm=algorithm, training_args=training, strategy_config=each),
            calls,
        )
        for play_, each in (
            (partial(play, "torch"), {"share_prefixes": False}),
            (partial(play_on_fsdp2, 2), {"share_prefixes": True}),
        )
    ]
    assert_close(*played, tolerance=2e-6)
    assert played[1][0]["actor/num_saved_tokens"] > 0


@pytest.mark.parametrize(
    "layout", by_day(["2 copies on 2 ranks each"], ["4 ranks", "2 copies on 2 ranks each"])
)
def test_the_whole_loss_with_epochs_and_a_value_head_is_that_of_the_torch_trainer(
    layout, make_config, make_batches, make_sequences
) -> None:
    world_size, strategy = LAYOUTS[layout]
    ids = ids_of(make_sequences(5))
    calls: list[Call] = [("values", ids)]
    warmup, *batches = make_batches(3)
    for batch in (dataclasses.replace(warmup, critic_only=True), *batches):
        calls += [("train_step", batch), ("values", ids), ("logprobs", ids)]
    settings: dict[str, Any] = {
        "with_value_head": True,
        "algorithm": {
            "ppo_epochs": 2,
            "ppo_mini_batch_size": 5,
            "entropy_loss_coef": 0.01,
            "kl_loss_coef": 0.1,
            "loss_agg_mode": "seq-mean-token-mean",
        },
        "training_args": {
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "warmup_steps": 3,
            "max_tokens_per_microbatch": 100,
        },
    }
    expected = play("torch", make_config(**settings), calls)
    found = play_on_fsdp2(world_size, make_config(**settings, strategy_config=strategy), calls)
    assert found[1]["actor/num_optimizer_steps"] == 6
    assert_close(found, expected, tolerance=3e-5)


def test_a_warming_critic_learns_as_in_the_torch_trainer_and_the_policy_stays(
    make_config, make_batches, make_sequences
) -> None:
    config = make_config(with_value_head=True, training_args={"learning_rate": 1e-2, "weight_decay": 0.1})
    warm, after = make_batches(2)
    ids = ids_of(make_sequences(5))
    calls: list[Call] = [
        ("weights",),
        ("train_step", dataclasses.replace(warm, critic_only=True)),
        ("weights",),
        ("values", ids),
        ("train_step", after),
        ("values", ids),
    ]
    found = play_on_fsdp2(2, config, calls)
    assert_close(found[0], found[2], tolerance=0.0)
    assert_close(play("torch", config, calls), found, tolerance=1e-4)


def test_the_average_is_that_of_the_torch_trainer_and_in_its_checkpoints(
    make_config, make_batches, tmp_path
) -> None:
    config = make_config(training_args={"ema_decay": 0.5, "adam_epsilon": 1e-5})
    first, second = make_batches(2)
    shown: list[Call] = [("use_average", True), ("weights",), ("use_average", False), ("weights",)]
    calls: list[Call] = [("train_step", first), ("save", tmp_path), ("train_step", second), *shown]
    found = play_on_fsdp2(2, config, calls)
    continued = play("torch", config, [("load", tmp_path), ("train_step", second), *shown])
    assert_close(continued[1:], found[2:], tolerance=1e-6)
    average, weights = found[-3], found[-1]
    assert max(np.abs(average[name] - weights[name]).max() for name in weights) > 1e-5


def test_every_rank_gathers_the_same_weights_on_its_device(make_config) -> None:
    in_main_memory, on_device = play_on_fsdp2(2, make_config(), [("weights",), ("device_weights",)])
    assert_close(on_device, in_main_memory, tolerance=0.0)


def test_one_rank_alone_is_the_torch_trainer_bit_for_bit(make_config, make_batches, make_sequences) -> None:
    calls: list[Call] = [("train_step", batch) for batch in make_batches(2)]
    calls += [("weights",), ("logprobs", ids_of(make_sequences(4)))]
    config = make_config(training_args={"max_tokens_per_microbatch": 100})
    assert_close(play_on_fsdp2(1, config, calls), play("torch", config, calls), tolerance=0.0)


def test_ranks_without_a_row_of_their_own_go_along(make_config, make_sequences, untied_model_folder) -> None:
    """Fewer rows than ranks, one long row among short ones, no row at all; and an untied model."""
    nothing = [
        dataclasses.replace(sequence, response_mask=np.zeros_like(sequence.response_mask))
        for sequence in make_sequences(2)
    ]
    by_length = sorted(make_sequences(20, seed=4), key=lambda sequence: len(sequence.ids))
    batches = [make_sequences(1), [*by_length[:6], by_length[-1]], nothing, make_sequences(3, seed=1)]
    calls: list[Call] = [
        ("train_step", TrainBatch(step=step, sequences=sequences)) for step, sequences in enumerate(batches)
    ]
    one, none = np.array([5], np.int32), np.zeros(0, np.int32)
    calls += [("logprobs", []), ("logprobs", [one, none]), ("logprobs", [by_length[0].ids, one])]
    cloned = [(sequence.ids, sequence.response_mask) for sequence in make_sequences(3)]
    calls += [("sft_step", cloned), ("weights",)]
    config = make_config(model=untied_model_folder, training_args={"max_tokens_per_microbatch": 30})
    found = play_on("tests.trainers.test_fsdp2_trainer:Fsdp2SftTrainer", 4, config, calls)
    assert_close(found, play("envsdk.trainers.sft_trainer:SftTrainer", config, calls), tolerance=3e-6)


def test_bfloat16_stays_close_to_float32_and_keeps_float32_weights(make_config, make_batches) -> None:
    calls: list[Call] = [*(("train_step", batch) for batch in make_batches(2)), ("weights",)]
    plain = play("torch", make_config(with_value_head=True), calls)
    half = play_on_fsdp2(2, make_config(with_value_head=True, strategy_config={"dtype": "bfloat16"}), calls)
    for before, after in zip(plain[:2], half[:2], strict=True):
        assert after["actor/grad_norm"] == pytest.approx(before["actor/grad_norm"], rel=0.05)
        assert after["actor/loss"] == pytest.approx(before["actor/loss"], abs=0.02)
    assert half[0]["actor/loss"] != plain[0]["actor/loss"]
    for name, weight in half[2].items():
        assert weight.dtype == np.float32
        np.testing.assert_allclose(weight, plain[2][name], rtol=0, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("algorithm", by_day([MINI_BATCHES], [{}, MINI_BATCHES]))
def test_a_step_that_is_not_finite_fails_on_all_ranks_and_leaves_the_weights_untouched(
    algorithm, make_config, make_sequences
) -> None:
    def damaged(factor: float) -> TrainBatch:
        sequences = make_sequences(5, seed=2)
        advantages = sequences[1].advantages * np.float32(factor)
        sequences[1] = dataclasses.replace(sequences[1], advantages=advantages)
        return TrainBatch(step=1, sequences=sequences)

    good = [TrainBatch(step=step, sequences=make_sequences(5, seed=step)) for step in range(2)]
    start: list[Call] = [("train_step", good[0]), ("weights",)]
    end: list[Call] = [("weights",), ("train_step", good[1])]
    bad: list[Call] = [("train_step", damaged(np.nan)), ("train_step", damaged(1e37))]
    config = make_config(algorithm=algorithm)
    _, before, nan, inf, after, step = play_on_fsdp2(2, config, [*start, *bad, *end])
    assert nan.startswith("TrainerError: step 1: the loss is nan")
    assert inf.startswith("TrainerError: step 1: the gradient norm is inf")
    assert_close(before, after, tolerance=0.0)
    assert_close(step, play_on_fsdp2(2, config, [*start, *end])[3], tolerance=0.0)


@pytest.mark.parametrize("layout", by_day(["2 ranks"], ["2 ranks", "2 copies on 2 ranks each"]))
def test_a_resumed_trainer_repeats_the_original_bit_for_bit(
    layout, make_config, make_batches, tmp_path
) -> None:
    world_size, strategy = LAYOUTS[layout]
    config = make_config(
        algorithm={"ppo_epochs": 2, "ppo_mini_batch_size": 5},
        training_args={"warmup_steps": 3, "lr_scheduler_type": "cosine", "max_steps": 40},
        with_value_head=True,
        strategy_config=strategy,
    )
    steps = [("train_step", batch) for batch in make_batches(4)]
    rest: list[Call] = [*steps[2:], ("weights",)]
    original = play_on_fsdp2(world_size, config, [*steps[:2], ("save", tmp_path), *rest])
    assert original[2] is None
    # Whatever the second trainer did before, load replaces.
    resumed = play_on_fsdp2(world_size, config, [steps[3], ("load", tmp_path), *rest])
    assert_close(original[3:], resumed[2:], tolerance=0.0)


def test_checkpoints_load_under_any_number_of_ranks_and_in_the_torch_trainer(
    make_config, make_batches, tmp_path
) -> None:
    """torch -> 2 ranks -> 4 ranks -> 1 rank -> torch, one step on each."""
    config = make_config(with_value_head=True, training_args={"learning_rate": 1e-3})
    steps = [("train_step", batch) for batch in make_batches(5)]
    straight = play("torch", config, [*steps, ("weights",)])

    saved: Any = None
    for index, world_size in enumerate([0, 2, 4, 1, 0]):
        folder = tmp_path / str(index)
        folder.mkdir()
        loading: list[Call] = [("load", tmp_path / str(index - 1)), ("weights",)] if index else []
        calls = [*loading, steps[index], ("weights",), ("save", folder)]
        played = play_on_fsdp2(world_size, config, calls) if world_size else play("torch", config, calls)
        if index:
            assert_close(played[1], saved, tolerance=0.0)
        *_, metrics, saved, done = played
        assert done is None
        assert_close(metrics, straight[index], tolerance=1e-5)
    assert_close(saved, straight[-1], tolerance=1e-5)
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == [
        "optimizer-1-of-2.safetensors",
        "optimizer-2-of-2.safetensors",
        "trainer.json",
        "weights-1-of-2.safetensors",
        "weights-2-of-2.safetensors",
    ]


def test_a_damaged_checkpoint_file_is_named_on_all_ranks(
    make_config, make_batches, untied_model_folder, tmp_path
) -> None:
    folders = {
        name: tmp_path / name for name in ("weights-2-of-2.safetensors", "optimizer-1-of-2.safetensors")
    }
    folders |= {"trainer.json": tmp_path / "state", "nothing": tmp_path / "nothing"}
    for folder in folders.values():
        folder.mkdir()
    saving: list[Call] = [("train_step", make_batches(1)[0])]
    saving += [("save", folder) for name, folder in folders.items() if name != "nothing"]
    play_on_fsdp2(2, make_config(), saving)

    flipped = folders["weights-2-of-2.safetensors"] / "weights-2-of-2.safetensors"
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 0xFF
    flipped.write_bytes(content)
    (folders["optimizer-1-of-2.safetensors"] / "optimizer-1-of-2.safetensors").unlink()
    (folders["trainer.json"] / "trainer.json").write_text('{"format": 99}')
    loading: list[Call] = [call for folder in folders.values() for call in (("load", folder), ("weights",))]
    played = play_on_fsdp2(2, make_config(), [("weights",), *loading])
    for name, error in zip(folders, played[1::2], strict=True):
        assert error.startswith("StorageError"), error
        assert (name if name != "nothing" else "trainer.json") in error
    for weights in played[2::2]:
        assert_close(weights, played[0], tolerance=0.0)

    good = tmp_path / "good"
    good.mkdir()
    play_on_fsdp2(2, make_config(), [("save", good)])
    (error,) = play_on_fsdp2(2, make_config(model=untied_model_folder), [("load", good)])
    assert "is of another model: model." in error


def test_a_rank_that_cannot_write_fails_the_others_too(make_config, tmp_path) -> None:
    (tmp_path / "weights-2-of-2.safetensors").mkdir()
    (error,) = play_on_fsdp2(2, make_config(), [("save", tmp_path)])
    assert error.startswith("StorageError: cannot write")
    assert "weights-2-of-2.safetensors" in error
    assert not (tmp_path / "trainer.json").exists()


@pytest.mark.parametrize("folder", by_day(["model_folder"], ["model_folder", "untied_model_folder"]))
def test_the_hugging_face_folder_is_that_of_the_torch_trainer(folder, make_config, tmp_path, request) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    config = make_config(model=request.getfixturevalue(folder), with_value_head=True)
    assert play_on_fsdp2(2, config, [("save_pretrained", ours)]) == [None]
    play("torch", config, [("save_pretrained", theirs)])
    assert sorted(path.name for path in ours.iterdir()) == sorted(path.name for path in theirs.iterdir())
    for path in theirs.iterdir():
        assert (ours / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_number_of_ranks_that_cannot_be_shared_out_is_refused() -> None:
    assert mesh_shape(FSDP2StrategyConfig(), TrainerRank(world_size=4)) == (4,)
    assert mesh_shape(FSDP2StrategyConfig(shard_size=2), TrainerRank(world_size=4)) == (2, 2)
    with pytest.raises(ConfigurationError, match="strategy_config: 4 ranks hold no whole number of copies"):
        mesh_shape(FSDP2StrategyConfig(shard_size=3), TrainerRank(world_size=4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": Path("/nowhere")}, "no Hugging Face model folder"),
        ({"strategy_config": {"shard_sise": 2}}, "did you mean `shard_size`"),
        ({"strategy_config": {"device": "cpu"}}, "device"),
    ],
)
def test_wrong_settings_are_refused_before_the_ranks_meet(changes, message, make_config) -> None:
    rank = TrainerRank(rank=1, world_size=2, master_port=1)
    with pytest.raises(ConfigurationError, match=message):
        Fsdp2Trainer.create(make_config(rank=rank, **changes))


def test_all_ranks_say_which_attention_and_products_they_took(make_config) -> None:
    config = make_config(strategy_config={"dtype": "bfloat16"})
    assert play_on_fsdp2(2, config, [("kernels",)]) == [
        {"attention": "sdpa (flash)", "products": "bfloat16: as the settings say"}
    ]
    config = make_config(strategy_config={"attn_implementation": "eager"})
    assert play_on_fsdp2(2, config, [("kernels",)])[0]["attention"] == "eager"


def fail_on_one(rank: TrainerRank, config: TrainerConfig, sequences: list[np.ndarray]) -> None:
    trainer = Fsdp2Trainer.create(dataclasses.replace(config, rank=rank))
    if rank.rank == 1:
        raise OSError("the machine is on fire")
    trainer.logprobs(sequences)


def test_the_error_of_the_first_rank_to_fail_is_the_one_that_is_seen(make_config, make_sequences) -> None:
    with pytest.raises(RankError, match=r"rank 1 of 2:\n(.|\n)*the machine is on fire"):
        run_ranks(2, fail_on_one, make_config(), ids_of(make_sequences(2)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_gpus_three_steps_are_those_of_the_torch_trainer_on_one(
    dtype, make_config, make_batches, make_sequences
) -> None:
    num_ranks = need_gpus()
    ids = ids_of(make_sequences(5))
    calls: list[Call] = [*(("train_step", batch) for batch in make_batches(3)), ("logprobs", ids)]
    calls += [("weights",)]
    expected = play("torch", make_config(strategy_config={"device": "cuda:0", "dtype": dtype}), calls)
    found = play_on("fsdp2_train", num_ranks, make_config(strategy_config={"dtype": dtype}), calls, gpus=True)
    assert_close(found, expected, tolerance=1e-4 if dtype == "float32" else 0.1)
