"""A trainer learns from a teacher's scores, and from those alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from plays import TRAINING, assert_close, play, play_on, play_on_megatron

from envsdk.contracts.support import Support
from envsdk.contracts.trainer import TeacherScores, TrainBatch
from envsdk.runs.teacher_engine import TeacherEngine
from envsdk.trainers.torch_trainer import TorchTrainer
from tests.by_day import by_day


def scores_of(teacher_folder, make_config, sequences, num_top):
    """By the embedded engine, in place of a trainer."""
    engine = TeacherEngine.create(
        make_config(
            model=teacher_folder, strategy_config={"engine": "embedded", "settings": {}, "max_running": 4}
        )
    )
    try:
        return engine.score([sequence.ids for sequence in sequences], num_top)
    finally:
        engine.close()


def test_an_engine_scores_as_a_trainer_does(model_folder, make_config, make_sequences) -> None:
    sequences = make_sequences(5)
    found = scores_of(model_folder, make_config, sequences, 3)
    expected = TorchTrainer.create(make_config()).logprobs([sequence.ids for sequence in sequences])
    for scores, logprobs in zip(found, expected, strict=True):
        np.testing.assert_allclose(scores.logprobs, logprobs, atol=1e-5)
        assert scores.top_ids.shape == scores.top_logprobs.shape == (len(logprobs), 3)
        assert (scores.top_logprobs[1:, 0] >= logprobs[1:] - 1e-5).all()


@pytest.mark.parametrize("num_top", [0, 8])
def test_a_loss_moves_the_policy_towards_its_teacher(
    num_top, model_folder, untied_model_folder, make_config, make_sequences
) -> None:
    """Sequences without a teacher beside them; no reward anywhere."""
    sequences = [replace(each, advantages=np.zeros(len(each.ids), np.float32)) for each in make_sequences(6)]
    scores = scores_of(untied_model_folder, make_config, sequences, num_top)
    taught = [
        replace(sequence, teacher=replace(each, coef=0.5)) if number % 3 else sequence
        for number, (sequence, each) in enumerate(zip(sequences, scores, strict=True))
    ]
    trainer = TorchTrainer.create(
        make_config(
            algorithm={"distill_as": "loss", "distill_top_k": num_top}, training_args={"learning_rate": 3e-3}
        )
    )
    losses = [
        trainer.train_step(TrainBatch(step=step, sequences=taught))["actor/distill_loss"] for step in range(8)
    ]
    assert losses[-1] < 0.7 * losses[0]
    still = TorchTrainer.create(make_config(algorithm={"distill_as": "loss", "distill_top_k": num_top}))
    before = {name: weight.copy() for name, weight in still.weights()}
    still.train_step(TrainBatch(step=0, sequences=sequences))
    assert all(np.array_equal(weight, before[name]) for name, weight in still.weights())


def test_the_loss_of_the_sampled_token_has_the_gradient_of_its_divergence(
    model_folder, make_config, make_sequences
) -> None:
    """c (log pi - log T) grad log pi, summed over the tokens with their weights: by autograd beside it."""
    [sequence] = make_sequences(1)
    teacher = TeacherScores(logprobs=np.full(len(sequence.ids), -2.0, np.float32), coef=0.7)
    sequence = replace(sequence, advantages=np.zeros(len(sequence.ids), np.float32), teacher=teacher)
    trainer = TorchTrainer.create(
        make_config(algorithm={"distill_as": "loss"}, training_args={"max_grad_norm": None})
    )
    trainer.train_step(TrainBatch(step=0, sequences=[sequence]))
    moments = {
        name: tensor / 0.1 for name, tensor in trainer._optimizer.state().items() if "exp_avg/" in name
    }
    model = TorchTrainer.create(make_config()).model.model
    ids = torch.tensor(sequence.ids.astype(np.int64))[None]
    logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1)
    own = logprobs.gather(1, ids[0, 1:, None])[:, 0][torch.tensor(sequence.response_mask[1:] == 1)]
    (0.7 * (own.detach() + 2.0) * own).mean().backward()
    compared = 0
    for name, parameter in model.named_parameters():
        for key, moment in moments.items():
            if key.endswith(f"/{name}") and parameter.grad is not None:
                torch.testing.assert_close(moment, parameter.grad, atol=2e-6, rtol=1e-3)
                compared += 1
    assert compared > 3


def taught_batch(make_sequences, *, num_top: int) -> TrainBatch:
    """Sequences of truncated sampling, every third without a teacher and every fourth of whole sampling."""
    drawn = np.random.default_rng(0)
    found = []
    for number, sequence in enumerate(make_sequences(9)):
        sets = [
            sorted({int(token), *drawn.integers(0, 40, 6).tolist()}) if mask else []
            for token, mask in zip(sequence.ids, sequence.response_mask, strict=True)
        ]
        length = len(sequence.ids)
        top = {
            "top_ids": np.tile(np.arange(num_top, dtype=np.int32), (length, 1)),
            "top_logprobs": np.full((length, num_top), -3.0, np.float32),
        }
        teacher = TeacherScores(
            logprobs=drawn.normal(-2, 1, length).astype(np.float32), coef=0.3, **(top if num_top else {})
        )
        found.append(
            replace(
                sequence,
                support=Support.of(sets) if number % 4 else None,
                teacher=teacher if number % 3 else None,
            )
        )
    return TrainBatch(step=0, sequences=found)


@pytest.mark.parametrize(
    ("strategy", "num_top"),
    by_day([("fsdp2_train", 4), ("megatron", 0)], [("fsdp2_train", 4), ("fsdp2_train", 0), ("megatron", 0)]),
)
def test_several_ranks_learn_the_same_from_teachers_and_supports(
    strategy, num_top, make_config, make_sequences
) -> None:
    batch = taught_batch(make_sequences, num_top=num_top)
    ids, supports = [each.ids for each in batch.sequences], [each.support for each in batch.sequences]
    calls = [
        ("logprobs", ids, (), supports),
        ("train_step", batch),
        ("logprobs", ids, (), supports),
        ("weights",),
    ]
    config = make_config(
        algorithm={"distill_as": "loss", "distill_top_k": num_top, "ppo_epochs": 2, "ppo_mini_batch_size": 5},
        training_args=TRAINING,
    )
    expected = play("torch", config, calls)
    if strategy == "megatron":
        found = play_on_megatron(2, config, {"tensor_model_parallel_size": 2}, calls)
    else:
        found = play_on(strategy, 2, config, calls)
    assert_close(found, expected, tolerance=1e-5)
