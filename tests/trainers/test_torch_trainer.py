"""The torch trainer against transformers, against itself packed differently, and against damage."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from plays import OWN_TO_A_LAYOUT
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from envsdk.algorithms.aggregation import sequence_weights
from envsdk.algorithms.args import LossAggregation
from envsdk.base.store.model_files import stored_dtype
from envsdk.contracts.failures import ConfigurationError, StorageError, TrainerError
from envsdk.contracts.trainer import TrainBatch, TrainSequence
from envsdk.trainers.packing import make_row
from envsdk.trainers.sft_trainer import SftTrainer
from envsdk.trainers.torch_optimizer import learning_rate_at
from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.trainers.training_args import TrainingArgs

TIMES = {"actor/step_time_s", "sft/step_time_s"}


def snapshot(trainer: TorchTrainer) -> dict[str, np.ndarray]:
    return {name: parameter.detach().clone().numpy() for name, parameter in trainer.model.parameters()}


def assert_same_weights(one: TorchTrainer, other: TorchTrainer, tolerance: float = 0.0) -> None:
    ours, theirs = snapshot(one), snapshot(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=tolerance, err_msg=name)


def without_times(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in TIMES}


def reference_logprobs(folder: Path, ids: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tensor = torch.tensor(ids[None], dtype=torch.int64)
    with torch.no_grad():
        table = torch.log_softmax(model(tensor).logits[0] / temperature, -1)
    return table[:-1].gather(1, tensor[0, 1:, None])[:, 0].numpy()


@pytest.mark.parametrize("folder", ["model_folder", "untied_model_folder"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_transformers_however_they_are_packed(
    folder, temperature, make_config, make_sequences, request
) -> None:
    path = request.getfixturevalue(folder)
    sequences = [sequence.ids for sequence in make_sequences(9)]
    for budget in (1, 100, 10_000):
        trainer = TorchTrainer.create(
            make_config(
                model=path,
                algorithm={"temperature": temperature},
                training_args={"max_tokens_per_microbatch": budget},
            )
        )
        for ids, logprobs in zip(sequences, trainer.logprobs(sequences), strict=True):
            assert logprobs[0] == 0
            expected = reference_logprobs(path, ids, temperature)
            np.testing.assert_allclose(logprobs[1:], expected, atol=1e-5)


def test_logprobs_of_empty_and_one_token_sequences_are_zeros(make_config) -> None:
    trainer = TorchTrainer.create(make_config())
    results = trainer.logprobs([np.zeros(0, np.int32), np.array([5], np.int32)])
    assert [values.tolist() for values in results] == [[], [0.0]]


@pytest.mark.parametrize(
    "mode",
    [
        "token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-sum-norm",
        "seq-mean-token-mean",
        "trajectory-mean-token-mean",
    ],
)
def test_micro_batches_of_any_size_make_the_same_step(mode, make_config, make_sequences) -> None:
    sequences = [
        dataclasses.replace(sequence, trajectory_id=f"trajectory {index % 5}")
        for index, sequence in enumerate(make_sequences(12))
    ]
    batch = TrainBatch(step=0, sequences=sequences)
    algorithm = {"loss_agg_mode": mode, "entropy_loss_coef": 0.01, "kl_loss_coef": 0.1}
    if mode.endswith("norm"):
        algorithm["loss_agg_length"] = 60
    trainers, metrics = [], []
    for budget in (1, 90, 10_000):
        trainer = TorchTrainer.create(
            make_config(algorithm=algorithm, training_args={"max_tokens_per_microbatch": budget})
        )
        gradients = _gradients_of_one_step(trainer, batch, metrics)
        trainers.append(gradients)
    for gradients in trainers[1:]:
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, trainers[0][name], rtol=0, atol=1e-6, err_msg=name)
    for other in metrics[1:]:
        for name, value in metrics[0].items():
            if name not in TIMES and name not in OWN_TO_A_LAYOUT:
                assert other[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def _gradients_of_one_step(trainer, batch, metrics) -> dict[str, np.ndarray]:
    """AdamW's first moment after one step is the clipped gradient times 1 - beta1."""
    metrics.append(trainer.train_step(batch))
    return {
        name.removeprefix("exp_avg/"): tensor.numpy() / 0.1
        for name, tensor in trainer._optimizer.state().items()
        if name.startswith("exp_avg/")
    }


@pytest.mark.parametrize(
    "terms",
    [{}, {"temperature": 0.7}, {"entropy_loss_coef": 0.3}, {"kl_loss_coef": 0.3, "kl_loss_type": "k2"}],
)
def test_the_step_is_the_one_autograd_makes_one_sequence_at_a_time(
    terms, make_config, make_sequences, model_folder
) -> None:
    """An independent route: full logits, no packing, one loss written out, torch's own AdamW."""
    sequences = make_sequences(6)
    trainer = TorchTrainer.create(
        make_config(
            algorithm=terms,
            training_args={"learning_rate": 1e-3, "max_grad_norm": 0.5, "weight_decay": 0.1},
        )
    )
    metrics = trainer.train_step(TrainBatch(step=0, sequences=sequences))

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    embedding = model.get_input_embeddings().weight
    decayed = [p for p in model.parameters() if p.ndim > 1 and p is not embedding]
    plain = [p for p in model.parameters() if p.ndim < 2 or p is embedding]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=1e-3)
    total, count = torch.zeros(()), 0
    for sequence in sequences:
        ids = torch.tensor(sequence.ids[None], dtype=torch.int64)
        table = torch.log_softmax(model(ids).logits[0, :-1] / terms.get("temperature", 1.0), -1)
        logprobs = table.gather(1, ids[0, 1:, None])[:, 0]
        mask = torch.tensor(sequence.response_mask[1:] == 1)
        advantages = torch.tensor(sequence.advantages[1:])
        weight = (logprobs.detach() - torch.tensor(sequence.behavior_logprobs[1:])).exp().clamp(max=2.0)
        loss = -weight * advantages * logprobs
        loss = loss + terms.get("entropy_loss_coef", 0.0) * (table.exp() * table).sum(-1)
        drift = logprobs - torch.tensor(sequence.reference_logprobs[1:])
        loss = loss + terms.get("kl_loss_coef", 0.0) * drift**2 / 2
        total = total + loss[mask].sum()
        count += int(mask.sum())
    (total / count).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    adam.step()

    assert metrics["actor/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert metrics["actor/num_tokens"] == count
    ours = dict(trainer.weights())
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(ours[name], parameter.detach().numpy(), rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    "strategy",
    [{}, {"attn_implementation": "eager"}, {"gradient_checkpointing": True}, {"lora": {"rank": 2}}],
)
@pytest.mark.parametrize("folder", ["model_folder", "untied_model_folder"])
def test_sequences_that_share_a_line_make_the_step_they_make_apart(
    folder, strategy, make_config, make_sequences, request
) -> None:
    sequences = [
        dataclasses.replace(
            sequence,
            ids=np.concatenate([3 + np.arange(12 * (index % 2)), [9, 8, 7], sequence.ids])[
                : len(sequence.ids)
            ].astype(np.int32),
        )
        for index, sequence in enumerate(make_sequences(9))
    ]
    batch, gradients, metrics = TrainBatch(step=0, sequences=sequences), [], []
    for shares in (False, True):
        trainer = TorchTrainer.create(
            make_config(
                model=request.getfixturevalue(folder),
                algorithm={"entropy_loss_coef": 0.1},
                training_args={"max_grad_norm": None},
                strategy_config=strategy | {"share_prefixes": shares},
            )
        )
        assert (trainer.model.pairs_per_token > 0) == shares
        trainer.model.pairs_per_token *= 1e6  # as if attention cost nothing
        packed = trainer._pack([row for each in sequences if (row := make_row(each.ids, each.response_mask))])
        assert any(micro.tree is not None for micro in packed) == shares
        gradients.append(_gradients_of_one_step(trainer, batch, metrics))
    for name, gradient in gradients[1].items():
        np.testing.assert_allclose(gradient, gradients[0][name], rtol=0, atol=1e-5, err_msg=name)
    for name in ("actor/entropy", "actor/loss", "actor/logprob_gap_max"):
        assert metrics[1][name] == pytest.approx(metrics[0][name], rel=1e-4, abs=1e-6)
    assert metrics[0]["actor/num_saved_tokens"] == 0 < metrics[1]["actor/num_saved_tokens"]


def test_reinforcement_raises_the_probability_of_the_rewarded_arm(make_config) -> None:
    """A bandit: from prompt [1], arm 7 earns 1 and every other arm 0; sampled from the policy itself."""
    trainer = SftTrainer.create(make_config(training_args={"learning_rate": 3e-3}))
    rng = np.random.default_rng(0)

    def arm_probability() -> float:
        return float(np.exp(trainer.logprobs([np.array([1, 7], np.int32)])[0][1]))

    before = arm_probability()
    arms = np.arange(61)
    for step in range(30):
        pulls = [np.array([1, arm], np.int32) for arm in arms]
        logprobs = np.array([values[1] for values in trainer.logprobs(pulls)])
        chosen = rng.choice(arms, 64, p=np.exp(logprobs) / np.exp(logprobs).sum())
        rewards = (chosen == 7).astype(np.float32)
        trainer.train_step(
            TrainBatch(
                step=step,
                sequences=[
                    TrainSequence(
                        ids=np.array([1, arm], np.int32),
                        response_mask=np.array([0, 1], np.int8),
                        behavior_logprobs=np.array([0, logprobs[arm]], np.float32),
                        advantages=np.array([0, reward - rewards.mean()], np.float32),
                    )
                    for arm, reward in zip(chosen, rewards, strict=True)
                ],
            )
        )
    assert before < 0.1
    assert arm_probability() > 0.9


def test_on_fresh_samples_the_ratio_is_one_and_the_logprob_gap_is_zero(make_config, make_sequences) -> None:
    trainer = TorchTrainer.create(make_config())
    drawn = make_sequences(5)
    fresh = [
        dataclasses.replace(sequence, behavior_logprobs=logprobs * sequence.response_mask)
        for sequence, logprobs in zip(drawn, trainer.logprobs([s.ids for s in drawn]), strict=True)
    ]
    metrics = trainer.train_step(TrainBatch(step=0, sequences=fresh))
    assert metrics["actor/ratio_max"] == 1.0
    assert metrics["actor/clip_fraction"] == 0.0
    assert metrics["actor/logprob_gap_max"] < 1e-5
    assert metrics["actor/off_policy_fraction"] == 0.0
    assert metrics["actor/is_weight_mean"] == pytest.approx(1.0, abs=1e-5)
    stale = trainer.train_step(TrainBatch(step=1, sequences=drawn))
    assert stale["actor/logprob_gap_mean"] > 0.1
    assert stale["actor/off_policy_fraction"] > 0.5


def test_epochs_and_mini_batches_make_one_optimizer_step_each_around_one_proximal_policy(
    make_config, make_sequences
) -> None:
    trainer = TorchTrainer.create(
        make_config(
            algorithm={"ppo_epochs": 2, "ppo_mini_batch_size": 3}, training_args={"learning_rate": 1e-3}
        )
    )
    sequences = make_sequences(8)
    proximal = trainer.logprobs([sequence.ids for sequence in sequences])
    metrics = trainer.train_step(TrainBatch(step=0, sequences=sequences))
    assert metrics["actor/num_optimizer_steps"] == trainer.num_optimizer_steps == 6
    assert metrics["actor/ratio_max"] > 1.001

    given = TorchTrainer.create(
        make_config(
            algorithm={"ppo_epochs": 2, "ppo_mini_batch_size": 3}, training_args={"learning_rate": 1e-3}
        )
    )
    with_proximal = [
        dataclasses.replace(sequence, proximal_logprobs=logprobs)
        for sequence, logprobs in zip(sequences, proximal, strict=True)
    ]
    given.train_step(TrainBatch(step=0, sequences=with_proximal))
    assert_same_weights(trainer, given, tolerance=1e-5)


def test_leaving_out_sequences_without_advantage_changes_no_weight(make_config, make_sequences) -> None:
    some = make_sequences(4)
    idle = without_advantages(make_sequences(3, seed=1))
    lean = TorchTrainer.create(make_config())
    metrics = lean.train_step(TrainBatch(step=0, sequences=[*some, *idle]))
    assert metrics["actor/num_sequences_without_gradient"] == 3
    # An entropy bonus too small to matter makes the trainer compute every sequence.
    full = TorchTrainer.create(make_config(algorithm={"entropy_loss_coef": 1e-30}))
    assert (
        full.train_step(TrainBatch(step=0, sequences=[*some, *idle]))["actor/num_sequences_without_gradient"]
        == 0
    )
    assert_same_weights(lean, full, tolerance=1e-6)


EVERY_TERM = {"entropy_loss_coef": 0.02, "kl_loss_coef": 0.1}


@pytest.mark.parametrize("mode", get_args(LossAggregation))
@pytest.mark.parametrize(("extra", "with_values"), [({}, False), (EVERY_TERM, False), (EVERY_TERM, True)])
def test_the_loss_is_the_sum_of_its_terms_each_aggregated_as_the_loss_is(
    mode, extra, with_values, make_config, make_sequences
) -> None:
    sequences = [
        dataclasses.replace(sequence, trajectory_id=f"trajectory {index // 2}")
        for index, sequence in enumerate([*make_sequences(6), *without_advantages(make_sequences(3, seed=1))])
    ]
    algorithm = {"loss_agg_mode": mode, "loss_agg_length": 60, **extra}
    config = make_config(
        algorithm=algorithm,
        with_value_head=with_values,
        training_args={"max_tokens_per_microbatch": 90},
    )
    trainer = TorchTrainer.create(config)
    scored = trainer.logprobs([sequence.ids for sequence in sequences])
    metrics = trainer.train_step(TrainBatch(step=0, sequences=sequences))

    terms = {"pg_loss"}
    terms |= {"entropy_loss", "kl_loss"} if extra else set()
    terms |= {"value_loss"} if with_values else set()
    known = ("pg_loss", "entropy_loss", "kl_loss", "value_loss")
    assert {name for name in known if f"actor/{name}" in metrics} == terms
    assert all(metrics[f"actor/{name}"] != 0 for name in terms)
    total = sum(metrics[f"actor/{name}"] for name in terms)
    assert total == pytest.approx(metrics["actor/loss"], rel=1e-5, abs=1e-6)

    weights = sequence_weights(
        mode,
        [int(sequence.response_mask.sum()) for sequence in sequences],
        trajectories=[sequence.trajectory_id for sequence in sequences],
        length=60,
    )
    pg_loss = kl_loss = 0.0
    for weight, sequence, logprobs in zip(weights, sequences, scored, strict=True):
        mask = sequence.response_mask == 1
        correction = np.minimum(np.exp(logprobs - sequence.behavior_logprobs), 2.0)
        difference = (sequence.reference_logprobs - logprobs).astype(np.float64)
        pg_loss -= weight * float((correction * sequence.advantages)[mask].sum())
        kl_loss += 0.1 * weight * float((np.expm1(difference) - difference)[mask].sum())
    assert metrics["actor/pg_loss"] == pytest.approx(pg_loss, rel=1e-4, abs=1e-6)
    if extra:
        assert metrics["actor/kl_loss"] == pytest.approx(kl_loss, rel=1e-4)


def test_terms_of_several_optimizer_steps_are_their_means_as_the_loss_is(make_config, make_sequences) -> None:
    algorithm = {"ppo_epochs": 2, "ppo_mini_batch_size": 3, "entropy_loss_coef": 0.02}
    trainer = TorchTrainer.create(make_config(algorithm=algorithm))
    metrics = trainer.train_step(TrainBatch(step=0, sequences=make_sequences(8)))
    assert metrics["actor/num_optimizer_steps"] == 6
    total = metrics["actor/pg_loss"] + metrics["actor/entropy_loss"]
    assert total == pytest.approx(metrics["actor/loss"], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("algorithm", [{}, {"ppo_epochs": 3, "ppo_mini_batch_size": 4, "pg_clip_low": 0.001}])
def test_metrics_say_which_share_of_the_tokens_they_are_about(algorithm, make_config, make_sequences) -> None:
    some, idle = make_sequences(5), without_advantages(make_sequences(7, seed=1))
    sequences = [*some, *idle]
    training = {"learning_rate": 1e-3, "max_tokens_per_microbatch": 90}

    def metrics_of(**changes):
        config = make_config(algorithm={**algorithm, **changes}, training_args=training)
        return TorchTrainer.create(config).train_step(TrainBatch(step=0, sequences=sequences))

    num_learned, num_all = (
        sum(int(sequence.response_mask.sum()) for sequence in part) for part in (some, sequences)
    )
    lean, full = metrics_of(), metrics_of(entropy_loss_coef=1e-30)
    assert lean["actor/measured_share"] == pytest.approx(num_learned / num_all)
    assert full["actor/measured_share"] == 1.0
    # What is known of tokens without an advantage is counted ...
    whole = ("loss", "pg_loss", "clip_fraction", "behavior_entropy", "num_tokens")
    for name in whole:
        assert lean[f"actor/{name}"] == pytest.approx(full[f"actor/{name}"], rel=1e-4, abs=1e-6), name
    assert (lean["actor/clip_fraction"] > 0) == bool(algorithm)
    surprisals = [-s.behavior_logprobs[s.response_mask == 1] for s in sequences]
    assert lean["actor/behavior_entropy"] == pytest.approx(np.concatenate(surprisals).mean(), rel=1e-5)
    # ... and what is not is of the others alone.
    assert lean["actor/entropy"] != pytest.approx(full["actor/entropy"], rel=1e-6)


def test_a_batch_without_an_advantage_reports_what_is_known_of_it(make_config, make_sequences) -> None:
    idle = without_advantages(make_sequences(3))
    metrics = TorchTrainer.create(make_config()).train_step(TrainBatch(step=0, sequences=idle))
    assert metrics["actor/measured_share"] == 0.0
    assert metrics["actor/loss"] == metrics["actor/pg_loss"] == metrics["actor/clip_fraction"] == 0.0
    assert metrics["actor/behavior_entropy"] > 1.0
    assert "actor/entropy" not in metrics


def without_advantages(sequences: list[TrainSequence]) -> list[TrainSequence]:
    return [dataclasses.replace(each, advantages=np.zeros_like(each.advantages)) for each in sequences]


def test_a_loss_that_pulls_without_an_advantage_gets_every_sequence(make_config, make_sequences) -> None:
    idle = without_advantages(make_sequences(3))
    for tau, left_out in ((0.1, 0), (0.0, 3)):
        own = {"pg_variant": "kimi15", "pg_args": {"tau": tau, "ratio_over": "behavior"}}
        trainer = TorchTrainer.create(make_config(algorithm=own))
        metrics = trainer.train_step(TrainBatch(step=0, sequences=idle))
        assert metrics["actor/num_sequences_without_gradient"] == left_out
        assert (metrics["actor/grad_norm"] > 0) == (tau > 0)


def test_sequences_without_a_sampled_token_are_harmless_alone_and_in_company(
    make_config, make_sequences
) -> None:
    empty = [
        dataclasses.replace(sequence, response_mask=np.zeros_like(sequence.response_mask))
        for sequence in make_sequences(2, seed=5)
    ]
    some = make_sequences(3)
    alone, company = TorchTrainer.create(make_config()), TorchTrainer.create(make_config())
    alone.train_step(TrainBatch(step=0, sequences=some))
    company.train_step(TrainBatch(step=0, sequences=[empty[0], *some, empty[1]]))
    assert_same_weights(alone, company, tolerance=1e-7)
    metrics = TorchTrainer.create(make_config()).train_step(TrainBatch(step=0, sequences=empty))
    assert metrics["actor/num_tokens"] == 0
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("algorithm", [{}, {"ppo_epochs": 2, "ppo_mini_batch_size": 2}])
def test_a_loss_that_is_not_finite_leaves_weights_and_moments_untouched(
    algorithm, make_config, make_sequences
) -> None:
    trainer, twin = (TorchTrainer.create(make_config(algorithm=algorithm)) for _ in range(2))
    good = TrainBatch(step=0, sequences=make_sequences(6))
    for each in (trainer, twin):
        each.train_step(good)
    # Each in turn, so that the damage is found in the first and in the last optimizer step.
    for index in range(6):
        bad = make_sequences(6, seed=2)
        advantages = bad[index].advantages.copy()
        advantages[np.flatnonzero(bad[index].response_mask)[-1]] = np.nan
        bad[index] = dataclasses.replace(bad[index], advantages=advantages)
        with pytest.raises(TrainerError, match=r"step 1: the loss is nan.*weights are those from before"):
            trainer.train_step(TrainBatch(step=1, sequences=bad))
        assert_same_weights(trainer, twin)
    again = TrainBatch(step=1, sequences=make_sequences(6, seed=3))
    assert without_times(trainer.train_step(again)) == without_times(twin.train_step(again))
    assert_same_weights(trainer, twin)


def test_a_gradient_that_is_not_finite_leaves_the_weights_untouched(make_config, make_sequences) -> None:
    trainer, twin = TorchTrainer.create(make_config()), TorchTrainer.create(make_config())
    sequences = make_sequences(3)
    huge = [dataclasses.replace(s, advantages=s.advantages * np.float32(1e37)) for s in sequences]
    with pytest.raises(TrainerError, match="the gradient norm is inf"):
        trainer.train_step(TrainBatch(step=0, sequences=huge))
    assert_same_weights(trainer, twin)
    assert trainer.num_optimizer_steps == 0


@pytest.mark.parametrize("with_value_head", [False, True])
def test_a_resumed_trainer_repeats_the_original_bit_for_bit(
    with_value_head, make_config, make_sequences, tmp_path
) -> None:
    config = make_config(
        algorithm={"ppo_epochs": 2, "ppo_mini_batch_size": 4},
        training_args={"warmup_steps": 3, "lr_scheduler_type": "cosine", "max_steps": 40},
        with_value_head=with_value_head,
    )
    original = TorchTrainer.create(config)
    batches = [TrainBatch(step=step, sequences=make_sequences(7, seed=step)) for step in range(5)]
    for batch in batches[:2]:
        original.train_step(batch)
    original.save(tmp_path)
    expected = [without_times(original.train_step(batch)) for batch in batches[2:]]

    resumed = TorchTrainer.create(config)
    resumed.train_step(batches[4])  # whatever it did before, load replaces
    resumed.load(tmp_path)
    assert [without_times(resumed.train_step(batch)) for batch in batches[2:]] == expected
    assert_same_weights(original, resumed)


def test_a_trainer_saved_before_its_first_step_resumes(make_config, make_sequences, tmp_path) -> None:
    original, resumed = TorchTrainer.create(make_config()), TorchTrainer.create(make_config())
    original.save(tmp_path)
    resumed.train_step(TrainBatch(step=9, sequences=make_sequences(2)))
    resumed.load(tmp_path)
    batch = TrainBatch(step=0, sequences=make_sequences(3))
    assert without_times(original.train_step(batch)) == without_times(resumed.train_step(batch))


def test_the_average_follows_the_weights_of_every_step_and_training_does_not_see_it(
    make_config, make_sequences
) -> None:
    averaging = TorchTrainer.create(make_config(training_args={"ema_decay": 0.3}))
    plain = TorchTrainer.create(make_config())
    average = snapshot(plain)
    for step in range(5):
        batch = TrainBatch(step=step, sequences=make_sequences(3, seed=step))
        assert without_times(averaging.train_step(batch)) == without_times(plain.train_step(batch))
        decay = min(0.3, (step + 1) / (step + 10))
        average = {name: decay * average[name] + (1 - decay) * now for name, now in snapshot(plain).items()}
        averaging.use_average(True)
        averaging.use_average(True)  # what is shown already stays
        for name, found in averaging.weights():
            np.testing.assert_allclose(found, average[name], atol=1e-6, err_msg=name)
        averaging.use_average(False)
        assert_same_weights(averaging, plain)
    plain.use_average(True)
    assert_same_weights(averaging, plain)


def test_a_checkpoint_holds_weights_and_average_whichever_is_shown(
    make_config, make_sequences, tmp_path
) -> None:
    config = make_config(training_args={"ema_decay": 0.6})
    original, batches = TorchTrainer.create(config), [make_sequences(3, seed=step) for step in range(4)]
    for step in (0, 1):
        original.train_step(TrainBatch(step=step, sequences=batches[step]))
    for name, is_shown in (("weights", False), ("average", True)):
        (tmp_path / name).mkdir()
        original.use_average(is_shown)
        original.save(tmp_path / name)
    expected = [original.train_step(TrainBatch(step=step, sequences=batches[step])) for step in (2, 3)]
    original.use_average(True)
    for name in ("weights", "average"):
        resumed = TorchTrainer.create(config)
        resumed.use_average(True)
        resumed.load(tmp_path / name)
        found = [resumed.train_step(TrainBatch(step=step, sequences=batches[step])) for step in (2, 3)]
        assert list(map(without_times, found)) == list(map(without_times, expected))
        resumed.use_average(True)
        assert_same_weights(original, resumed)


def test_an_average_begins_with_the_weights_of_a_checkpoint_that_has_none(
    make_config, make_sequences, tmp_path
) -> None:
    plain = TorchTrainer.create(make_config())
    plain.train_step(TrainBatch(step=0, sequences=make_sequences(3)))
    plain.save(tmp_path)
    averaging = TorchTrainer.create(make_config(training_args={"ema_decay": 0.9}))
    averaging.load(tmp_path)
    averaging.use_average(True)
    assert_same_weights(averaging, plain)


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "trainer.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_file_is_named(name, damage, make_config, make_sequences, tmp_path) -> None:
    trainer = TorchTrainer.create(make_config())
    trainer.train_step(TrainBatch(step=0, sequences=make_sequences(2)))
    trainer.save(tmp_path)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    with pytest.raises(StorageError, match=name.replace(".", r"\.")):
        trainer.load(tmp_path)


def test_a_checkpoint_of_another_model_is_refused(make_config, untied_model_folder, tmp_path) -> None:
    TorchTrainer.create(make_config(model=untied_model_folder)).save(tmp_path)
    with pytest.raises(StorageError, match=r"of another model: model\."):
        TorchTrainer.create(make_config()).load(tmp_path)


def test_a_folder_that_cannot_be_written_is_a_storage_error(make_config, tmp_path) -> None:
    trainer = TorchTrainer.create(make_config())
    with pytest.raises(StorageError, match=r"weights\.safetensors"):
        trainer.save(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write a model"):
        trainer.save_pretrained(tmp_path / "file")


def test_save_pretrained_gives_a_folder_that_transformers_and_the_trainer_load(
    make_config, make_sequences, tmp_path
) -> None:
    trainer = TorchTrainer.create(make_config())
    trainer.train_step(TrainBatch(step=0, sequences=make_sequences(3)))
    folder = tmp_path / "exported"
    trainer.save_pretrained(folder)
    ids = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)
    np.testing.assert_allclose(trainer.logprobs([ids])[0][1:], reference_logprobs(folder, ids), atol=1e-5)
    assert (folder / "tokenizer.json").is_file()
    assert (folder / "chat_template.jinja").is_file()
    assert_same_weights(trainer, TorchTrainer.create(make_config(model=folder)))


def test_weights_are_copies_under_the_names_of_the_model_file(make_config, make_sequences) -> None:
    trainer = TorchTrainer.create(make_config())
    weights = dict(trainer.weights())
    before = {name: values.copy() for name, values in weights.items()}
    trainer.train_step(TrainBatch(step=0, sequences=make_sequences(3)))
    for name, values in weights.items():
        np.testing.assert_array_equal(values, before[name])
    assert "model.embed_tokens.weight" in weights
    assert "lm_head.weight" not in weights  # tied
    assert any(not np.array_equal(values, before[name]) for name, values in trainer.weights())


def test_device_weights_are_the_trainers_own_memory_and_the_same_as_its_weights(make_config) -> None:
    trainer = TorchTrainer.create(make_config())
    own = {parameter.data_ptr() for parameter in trainer.model.model.parameters()}
    weights, tensors = dict(trainer.weights()), dict(trainer.device_weights())
    assert weights.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.data_ptr() in own
        assert not tensor.requires_grad
        np.testing.assert_array_equal(tensor.cpu().numpy(), weights[name])


def test_the_value_head_learns_the_returns(make_config, make_sequences) -> None:
    trainer = TorchTrainer.create(
        make_config(
            with_value_head=True,
            training_args={"learning_rate": 3e-3},
            algorithm={"value_loss_coef": 1.0, "value_clip": None},
        )
    )
    sequences = [
        dataclasses.replace(s, returns=2.0 * s.response_mask.astype(np.float32)) for s in make_sequences(6)
    ]
    ids = [sequence.ids for sequence in sequences]
    assert all(not values.any() for values in trainer.values(ids))
    first = trainer.train_step(TrainBatch(step=0, sequences=sequences))
    assert first["critic/loss"] == pytest.approx(2.0)
    for step in range(1, 40):
        last = trainer.train_step(TrainBatch(step=step, sequences=sequences))
    assert last["critic/loss"] < 0.2
    for sequence, values in zip(sequences, trainer.values(ids), strict=True):
        assert len(values) == len(sequence.ids)
        assert values[sequence.response_mask == 1].mean() == pytest.approx(2.0, abs=1.0)


def test_a_warming_critic_learns_while_the_policy_stays_bit_for_bit(make_config, make_sequences) -> None:
    trainer = TorchTrainer.create(
        make_config(
            with_value_head=True,
            training_args={"learning_rate": 3e-3, "weight_decay": 0.1},
            algorithm={"value_loss_coef": 1.0, "value_clip": None, "ppo_mini_batch_size": 3},
        )
    )
    sequences = [
        dataclasses.replace(s, returns=2.0 * s.response_mask.astype(np.float32)) for s in make_sequences(6)
    ]
    before = dict(trainer.weights())
    for step in range(40):
        last = trainer.train_step(TrainBatch(step=step, sequences=sequences, critic_only=True))
    for name, values in trainer.weights():
        np.testing.assert_array_equal(values, before[name])
    assert last["critic/loss"] < 1.0
    trainer.train_step(TrainBatch(step=40, sequences=sequences))
    assert any(not np.array_equal(values, before[name]) for name, values in trainer.weights())


def test_a_warmed_critic_continues_bit_for_bit_from_a_checkpoint(
    make_config, make_sequences, tmp_path
) -> None:
    config = make_config(with_value_head=True)
    trainer = TorchTrainer.create(config)
    sequences = make_sequences(4)
    trainer.train_step(TrainBatch(step=0, sequences=sequences, critic_only=True))
    trainer.save(tmp_path)
    resumed = TorchTrainer.create(config)
    resumed.load(tmp_path)
    for each in (trainer, resumed):
        each.train_step(TrainBatch(step=1, sequences=sequences, critic_only=True))
        each.train_step(TrainBatch(step=2, sequences=sequences))
    for (name, values), (_, other) in zip(trainer.weights(), resumed.weights(), strict=True):
        np.testing.assert_array_equal(values, other, err_msg=name)
    ids = [sequence.ids for sequence in sequences]
    for one, other in zip(trainer.values(ids), resumed.values(ids), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_value_after_the_last_token_is_asked_for_with_one_token_more(make_config, make_sequences) -> None:
    """Whichever token that is, and whatever the values before it, as bootstrapping needs."""
    trainer = TorchTrainer.create(make_config(with_value_head=True, training_args={"learning_rate": 1e-2}))
    sequences = make_sequences(3)
    trainer.train_step(TrainBatch(step=0, sequences=sequences))
    ids = [sequence.ids for sequence in sequences]
    plain = trainer.values(ids)
    longer = [trainer.values([np.append(each, np.int32(token)) for each in ids]) for token in (0, 60)]
    for before, one, other in zip(plain, *longer, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one[:-1], before, atol=1e-6)
        assert one[-1] != 0


def test_behavior_cloning_learns_the_masked_tokens_and_only_those(make_config) -> None:
    trainer = SftTrainer.create(make_config(training_args={"learning_rate": 3e-3}))
    rng = np.random.default_rng(0)

    def sequence() -> tuple[np.ndarray, np.ndarray]:
        ids = rng.integers(0, 30, 12).astype(np.int32)
        ids[5], ids[9] = ids[4] + 30, ids[8] + 30  # the reply is a function of the token before it
        mask = np.zeros(12, np.int8)
        mask[[5, 9]] = 1
        return ids, mask

    first = trainer.sft_step([sequence() for _ in range(32)])
    for _ in range(60):
        last = trainer.sft_step([sequence() for _ in range(32)])
    assert first["sft/loss"] > 3.5
    assert last["sft/loss"] < 0.2
    assert last["sft/accuracy"] > 0.95
    assert last["sft/num_tokens"] == 64


def test_bfloat16_and_gradient_checkpointing_stay_close_to_float32(make_config, make_sequences) -> None:
    batch = TrainBatch(step=0, sequences=make_sequences(4))
    plain = TorchTrainer.create(make_config()).train_step(batch)
    checkpointed = TorchTrainer.create(make_config(strategy_config={"gradient_checkpointing": True}))
    assert checkpointed.train_step(batch)["actor/grad_norm"] == pytest.approx(
        plain["actor/grad_norm"], rel=1e-5
    )
    half = TorchTrainer.create(make_config(strategy_config={"dtype": "bfloat16"}))
    assert half.train_step(batch)["actor/grad_norm"] == pytest.approx(plain["actor/grad_norm"], rel=0.05)
    assert all(values.dtype == np.float32 for _, values in half.weights())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": Path("/nowhere")}, "no Hugging Face model folder"),
        ({"training_args": {"learning_rat": 1e-3}}, "did you mean `learning_rate`"),
        ({"algorithm": {"pg_variant": "pppo"}}, "pg_variant"),
        ({"strategy_config": {"num_threads": 0}}, "num_threads"),
        ({"training_args": {"lr_scheduler_type": "linear"}}, "needs max_steps"),
    ],
)
def test_wrong_settings_are_refused_with_a_message(changes, message, make_config) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TorchTrainer.create(make_config(**changes))


@pytest.mark.parametrize(
    ("fields", "algorithm", "message"),
    [
        ({"ids": np.full(300, 1, np.int32)}, {}, "more than sequence_length: 256"),
        ({"ids": np.array([1, 61, 2], np.int32)}, {}, "outside the vocabulary"),
        ({"reference_logprobs": None}, {"kl_loss_coef": 0.1}, "no reference_logprobs"),
        ({"advantages": np.zeros(1, np.float32)}, {}, "1 advantages"),
    ],
)
def test_bad_sequences_are_refused_with_a_message(
    fields, algorithm, message, make_config, make_sequences
) -> None:
    trainer = TorchTrainer.create(make_config(algorithm=algorithm))
    with pytest.raises(TrainerError, match=message):
        trainer.train_step(TrainBatch(step=0, sequences=make_sequences(1, **fields)))


def test_learning_rate_warms_up_and_decays_to_its_end() -> None:
    cosine = TrainingArgs(
        learning_rate=1.0, warmup_steps=4, lr_scheduler_type="cosine", max_steps=12, min_lr_ratio=0.1
    )
    rates = [learning_rate_at(step, cosine) for step in range(20)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[8] == pytest.approx(0.55)
    assert rates[12:] == [pytest.approx(0.1)] * 8
    linear = cosine.model_copy(update={"lr_scheduler_type": "linear", "min_lr_ratio": 0.0})
    assert [learning_rate_at(step, linear) for step in (4, 6, 12, 99)] == [1.0, 0.75, 0.0, 0.0]
    constant = cosine.model_copy(update={"lr_scheduler_type": "constant"})
    assert learning_rate_at(99, constant) == 1.0


def test_an_update_below_a_step_of_bfloat16_reaches_the_products(model_folder, make_config, tmp_path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    stored = {name: weight.detach().float() for name, weight in model.named_parameters()}
    half = make_config(model=tmp_path, strategy_config={"dtype": "bfloat16"})
    trainer, again = TorchTrainer.create(half), TorchTrainer.create(half)
    assert_same_weights(trainer, again)
    taken = wanted = 0.0
    for name, weight in trainer.model.model.named_parameters():
        if weight.ndim == 1:
            assert torch.equal(weight, stored[name])
            continue
        step = torch.ldexp(torch.ones_like(weight), torch.frexp(stored[name]).exponent - 8)
        assert ((weight - stored[name]).abs() <= step / 2).all()
        update = 0.1 * step * stored[name].sign()
        assert torch.equal((stored[name] + update).bfloat16(), stored[name].bfloat16())
        taken += float(((weight + update).bfloat16().float() - weight.bfloat16().float()).abs().sum())
        wanted += float(update.abs().sum())
    assert 0.9 < taken / wanted < 1.1
    exact = TorchTrainer.create(make_config(model=tmp_path, strategy_config={"dtype": "float32"}))
    assert all(torch.equal(weight, stored[name]) for name, weight in exact.model.model.named_parameters())


@pytest.mark.parametrize(
    ("strategy", "named"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float32"}, "float32"),
        ({"dtype": "bfloat16", "lora": {"rank": 2}}, "float32"),
    ],
)
def test_a_saved_model_names_the_type_it_was_computed_in_and_keeps_every_bit(
    strategy, named, make_config, tmp_path
) -> None:
    trainer = TorchTrainer.create(make_config(strategy_config=strategy))
    trainer.save_pretrained(tmp_path / "saved")
    assert stored_dtype(tmp_path / "saved") == named
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    weights = dict(trainer.weights())
    assert {weight.dtype for weight in saved.values()} == {torch.float32}
    assert all(torch.equal(saved[name], torch.from_numpy(weight)) for name, weight in weights.items())
    again = TorchTrainer.create(make_config(model=tmp_path / "saved", strategy_config={"dtype": "float32"}))
    assert all(np.array_equal(weight, weights[name]) for name, weight in again.weights())
