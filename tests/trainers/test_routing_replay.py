"""Routing replay: the trainer's routers choose what the engine's chose."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from engine_replies import routed_replies
from plays import assert_close, play, play_on, play_on_megatron
from ranks import RankError

from envsdk.base.store.trajectories import read_trajectories, write_trajectories
from envsdk.contracts.failures import ConfigurationError, TrainerError
from envsdk.contracts.trainer import TrainBatch
from envsdk.contracts.trajectory import TokenLog, Trajectory, VersionSpan
from envsdk.trainers.torch_trainer import TorchTrainer
from tests.by_day import by_day
from tests.trainers.families import MIXTURES, save_family
from tests.trajectories import trajectory_with

REPLAY = {"train_infer_correction": {"routing_replay": True}}
EXACT = 1e-5
"""Nats, as for dense models in float32."""


def whole(experts: np.ndarray) -> np.ndarray:
    """With a row for the last token, which was no input."""
    return np.concatenate([experts, np.full_like(experts[:1], -1)])


@pytest.mark.parametrize("name", by_day(["qwen3_5_moe", "gpt_oss", "glm4_moe_lite", "gemma4_moe"], MIXTURES))
async def test_the_experts_of_every_input_are_told_and_replayed(name, make_config, make_sequences, tmp_path):
    folder = save_family(name, tmp_path / "engine")
    prompts = [sequence.ids for sequence in make_sequences(5)]
    results = await routed_replies(folder, prompts)
    ids = [np.concatenate([p, r.token_ids]) for p, r in zip(prompts, results, strict=True)]
    experts = [whole(result.experts) for result in results]
    assert [len(each) for each in experts] == [len(each) for each in ids]

    def gap(trainer, *given):
        found = trainer.logprobs(ids, *given)
        pairs = zip(prompts, results, found, strict=True)
        return max(np.abs(f[len(p) :] - r.logprobs).max() for p, r, f in pairs)

    same = TorchTrainer.create(make_config(model=folder, algorithm=REPLAY))
    assert gap(same, experts) < EXACT
    assert gap(same) < EXACT
    # Another choice of experts is another policy: replayed choices are the ones that count.
    others = [np.where(each < 0, each, (each + 1) % 4).astype(np.int16) for each in experts]
    assert gap(same, others) > 100 * EXACT


async def test_in_bfloat16_replay_takes_most_far_mismatches_away(make_config, make_sequences, tmp_path):
    folder = save_family("gpt_oss", tmp_path / "engine")
    prompts = [sequence.ids for sequence in make_sequences(12)]
    results = await routed_replies(folder, prompts, dtype="bfloat16")
    ids = [np.concatenate([p, r.token_ids]) for p, r in zip(prompts, results, strict=True)]
    trainer = TorchTrainer.create(
        make_config(model=folder, algorithm=REPLAY, strategy_config={"dtype": "float32"})
    )

    def far(*given):
        pairs = zip(prompts, results, trainer.logprobs(ids, *given), strict=True)
        gaps = np.concatenate([np.abs(f[len(p) :] - r.logprobs) for p, r, f in pairs])
        return np.quantile(gaps, 0.99)

    assert far([whole(result.experts) for result in results]) < 0.5 * far()


async def test_later_turns_tell_only_what_is_not_known_yet(make_sequences, tmp_path):
    folder = save_family("mixtral", tmp_path)
    prompt = make_sequences(1)[0].ids
    (first,) = await routed_replies(folder, [prompt])
    log = TokenLog()
    log.append_prompt(prompt.tolist())
    log.append_sampled(first.token_ids.tolist(), first.logprobs.tolist(), first.version_spans, first.experts)
    assert log.num_routed == len(log) - 1
    log.append_prompt([3, 1, 4])
    (second,) = await routed_replies(folder, [np.array(log.ids, np.int32)], experts_from=log.num_routed)
    log.append_sampled(
        second.token_ids.tolist(), second.logprobs.tolist(), second.version_spans, second.experts
    )
    (again,) = await routed_replies(folder, [np.array(log.ids, np.int32)])
    np.testing.assert_array_equal(log.arrays().experts[:-1], again.experts[: len(log) - 1])
    assert (log.arrays().experts[-1] == -1).all()


@pytest.fixture
async def recorded(make_sequences, tmp_path):
    """A folder, and sequences with experts that its engine may have chosen."""
    folder = save_family("qwen3_moe", tmp_path)
    sequences = make_sequences(6)
    results = await routed_replies(folder, [sequence.ids for sequence in sequences])
    return folder, [
        replace(sequence, experts=result.experts[: len(sequence.ids)])
        for sequence, result in zip(sequences, results, strict=True)
    ]


def others(sequences):
    return [replace(each, experts=((each.experts + 1) % 8).astype(np.int16)) for each in sequences]


@pytest.mark.parametrize(
    "strategy", by_day([{"gradient_checkpointing": True}], [{}, {"gradient_checkpointing": True}])
)
async def test_the_loss_is_that_of_the_replayed_experts_on_one_and_two_ranks(recorded, strategy, make_config):
    folder, sequences = recorded
    training = {"learning_rate": 1e-3, "adam_epsilon": 1e-5, "max_tokens_per_microbatch": 100}
    config = make_config(
        model=folder, training_args=training, strategy_config=strategy, algorithm=REPLAY, sequence_length=128
    )
    # Choices that no router would make on its own are those that are learned from.
    calls = [("train_step", TrainBatch(step=0, sequences=others(sequences))), ("weights",)]
    one = play("torch", config, calls)
    assert_close(play_on("fsdp2_train", 2, config, calls), one, tolerance=2e-5)
    own = play("torch", replace(config, algorithm={}), calls)
    assert abs(own[0]["actor/loss"] - one[0]["actor/loss"]) > 1e-3
    checkpointed = play("torch", replace(config, strategy_config={}), calls)
    assert_close(checkpointed, one, tolerance=2e-5)


async def test_experts_that_the_routers_choose_anyway_change_nothing(recorded, make_config):
    folder, sequences = recorded
    calls = [("train_step", TrainBatch(step=0, sequences=sequences)), ("weights",)]
    plain = play("torch", make_config(model=folder), calls)
    assert_close(play("torch", make_config(model=folder, algorithm=REPLAY), calls), plain, tolerance=1e-6)


async def test_a_sequence_without_recorded_experts_is_told_by_name(recorded, make_config):
    folder, sequences = recorded
    sequences[3] = replace(sequences[3], experts=None, trajectory_id="train-7")
    trainer = TorchTrainer.create(make_config(model=folder, algorithm=REPLAY))
    with pytest.raises(TrainerError, match="sequence 3 of trajectory train-7 has no recorded experts"):
        trainer.train_step(TrainBatch(step=0, sequences=sequences))


def test_a_dense_model_is_refused(model_folder, make_config):
    config = make_config(model=model_folder, algorithm=REPLAY)
    with pytest.raises(ConfigurationError, match="routing_replay: a qwen3 model has no router"):
        TorchTrainer.create(config)
    with pytest.raises(RankError, match="routing_replay: a qwen3 model has no router"):
        play_on_megatron(1, config, {}, [])


def played_with(experts) -> Trajectory:
    log = TokenLog()
    for start in range(0, 12, 4):
        log.append_prompt(range(start, start + 2))
        end = len(log) + 2
        span = [VersionSpan(version=0, start=0, end=2)]
        given = None if experts is None else experts[log.num_routed : end - 1]
        log.append_sampled([start + 2, start + 3], [-1.0, -2.0], span, given)
    return trajectory_with(tokens=log.arrays())


def test_recorded_experts_survive_files_processes_and_segments(tmp_path):
    experts = np.arange(12 * 6, dtype=np.int16).reshape(12, 3, 2)
    told, untold = played_with(experts), played_with(None)
    write_trajectories(tmp_path / "file.parquet", [told, untold])
    stored = read_trajectories(tmp_path / "file.parquet")
    for first, second in (stored, pickle.loads(pickle.dumps((told, untold)))):
        np.testing.assert_array_equal(first.tokens.experts[:-1], experts[:-1])
        assert second.tokens.experts is None
    copy = TokenLog()
    copy.append_prompt([9, 9])
    line = TokenLog()
    line.append_prompt([1, 2])
    line.append_sampled([3], [-1.0], [VersionSpan(version=0, start=0, end=1)], experts[:2])
    copy.extend(line, 1)
    assert copy.arrays().experts[:, 0, 0].tolist() == [-1, -1, 6, -1]
