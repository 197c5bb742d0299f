"""Segments in a trainer: log-probabilities of each path, the gradient of a tree as the sum over its paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from transformers import AutoModelForCausalLM

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.batches import ModelScores, prepare_batch, segments_of, token_ids
from envsdk.contracts.trainer import TrainBatch, TrainSequence
from envsdk.contracts.trajectory import Trajectory
from envsdk.trainers.policy_trainer import optimizer_steps
from envsdk.trainers.torch_trainer import TorchTrainer
from tests.by_day import by_day
from tests.conftest import VOCAB_SIZE
from tests.envsdk.contracts.trees import Node, planted, trees

BRANCHED = [
    Node(follows=None, num_prompt=3, num_reply=3),
    Node(follows=None, num_prompt=3, num_reply=3),
    Node(follows=0, num_prompt=2, num_reply=2),
    Node(follows=-1, num_prompt=3, num_reply=2),
    Node(follows=2, num_prompt=1, num_reply=3),
]
LINEAR = [Node(follows=None, num_prompt=3, num_reply=2)] * 2
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def path_logprobs(model: Any, nodes: Sequence[Node], episode: Trajectory, leaf: int) -> torch.Tensor:
    """Log-probabilities of a turn's reply after the turns before it: written out, one path at a time."""
    assert episode.tokens is not None
    starts = [0, *(turn.response_end for turn in episode.turns)]
    ids: list[int] = []
    number = leaf
    while number >= 0:
        ids = [*episode.tokens.ids[starts[number] : starts[number + 1]].tolist(), *ids]
        number = nodes[number].before(number)
    table = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
    logprobs = table[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]
    return logprobs[len(ids) - 1 - nodes[leaf].num_reply :]


def in_time_order(trainer: TorchTrainer, episode: Trajectory) -> np.ndarray:
    """The trainer's log-probabilities of an episode's sampled tokens, put together from its segments."""
    assert episode.tokens is not None
    flat = np.full(len(episode.tokens), np.nan, np.float32)
    scored = trainer.logprobs(token_ids([episode]))
    for segment, logprobs in zip(episode.segments(), scored, strict=True):
        assert segment.tokens is not None
        own = segment.tokens.response_mask == 1
        positions = np.arange(len(flat)) if segment.positions is None else segment.positions
        flat[positions[own]] = logprobs[own]
    return flat


@pytest.fixture(scope="module")
def trainer(model_folder: Path) -> TorchTrainer:
    from envsdk.contracts.trainer import TrainerConfig

    return TorchTrainer.create(TrainerConfig(model=model_folder, sequence_length=256, seed=3))


@pytest.fixture(scope="module")
def plain(model_folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        model_folder, dtype=torch.float32, attn_implementation="eager"
    )


@few
@given(nodes=trees(min_reply=1))
@example(nodes=BRANCHED)
def test_the_log_probabilities_of_segments_are_those_of_the_plain_paths(
    nodes: list[Node], trainer: TorchTrainer, plain: Any
) -> None:
    episode = planted(nodes, vocabulary=VOCAB_SIZE)
    found = in_time_order(trainer, episode)
    for number, turn in enumerate(episode.turns):
        with torch.no_grad():
            expected = path_logprobs(plain, nodes, episode, number).numpy()
        assert found[turn.response_start : turn.response_end] == pytest.approx(expected, abs=1e-4)


def group_of(shapes: Sequence[Sequence[Node]]) -> list[Trajectory]:
    return [
        replace(planted(nodes, name=f"train-{n}", vocabulary=VOCAB_SIZE - n), group_id=0)
        for n, nodes in enumerate(shapes)
    ]


@pytest.mark.parametrize(
    "mode", by_day(["seq-mean-token-mean"], ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
)
@few
@given(nodes=trees(min_reply=1))
@example(nodes=BRANCHED)
def test_the_gradient_of_a_tree_is_the_sum_over_its_replies_an_episode_weighing_once(
    mode: str, nodes: list[Node], model_folder: Path, make_config, trainer: TorchTrainer, plain: Any
) -> None:
    shapes = [nodes, LINEAR, [*LINEAR, *LINEAR]]
    episodes = group_of(shapes)
    advantages = [1.0, -0.5, 0.25]
    # Sampled by the present policy: every ratio is 1.
    batch_sequences: list[TrainSequence] = []
    for episode, advantage in zip(episodes, advantages, strict=True):
        assert episode.tokens is not None
        logprobs = np.nan_to_num(in_time_order(trainer, episode))
        for segment in episode.segments():
            assert segment.tokens is not None
            mask = segment.tokens.response_mask
            batch_sequences.append(
                TrainSequence(
                    ids=segment.tokens.ids,
                    response_mask=mask,
                    behavior_logprobs=segment.take(logprobs),
                    advantages=(mask * advantage).astype(np.float32),
                    trajectory_id=episode.trajectory_id,
                )
            )
    learner = TorchTrainer.create(
        make_config(algorithm={"loss_agg_mode": mode}, training_args={"max_grad_norm": 1e9})
    )
    learner.train_step(TrainBatch(step=0, sequences=batch_sequences))

    plain.zero_grad()
    lengths = [sum(node.num_reply for node in shape) for shape in shapes]
    loss = torch.zeros(())
    for shape, episode, advantage, length in zip(shapes, episodes, advantages, lengths, strict=True):
        total = sum(path_logprobs(plain, shape, episode, number).sum() for number in range(len(shape)))
        weight = {"token-mean": 1 / sum(lengths), "seq-mean-token-sum": 1 / 3}.get(mode, 1 / (3 * length))
        loss = loss - weight * advantage * total
    loss.backward()
    state = learner._optimizer.state()
    for name, parameter in plain.named_parameters():
        if name == "lm_head.weight" and f"exp_avg/{name}" not in state:
            continue
        assert parameter.grad is not None
        moment = state[f"exp_avg/{name}"].numpy() / 0.1
        np.testing.assert_allclose(moment, parameter.grad.numpy(), atol=1e-5, err_msg=name)


def test_a_batch_has_a_sequence_for_each_segment_that_has_something_to_learn() -> None:
    silent = Node(follows=-1, num_prompt=2, num_reply=0)
    group = [planted([*BRANCHED, silent], reward=1.0, name="a"), planted(LINEAR, reward=0.0, name="b")]
    batch = prepare_batch(AlgorithmArgs(grpo_normalize_std=False), 0, group, ModelScores()).batch
    assert [sequence.trajectory_id for sequence in batch.sequences] == ["a", "a", "a", "b"]
    assert len(segments_of(group)) == 5
    assert len(token_ids(group)) == 5
    for sequence, advantage in zip(batch.sequences, [0.5, 0.5, 0.5, -0.5], strict=True):
        assert np.array_equal(sequence.advantages, advantage * sequence.response_mask)
    learned = sum(int(sequence.response_mask.sum()) for sequence in batch.sequences)
    assert learned == sum(int(each.tokens.response_mask.sum()) for each in group if each.tokens is not None)


@given(nodes=trees(min_reply=1))
@example(nodes=BRANCHED)
def test_values_are_those_of_each_path_and_returns_run_in_the_order_of_time(nodes: list[Node]) -> None:
    """With gamma and lambda 1 an advantage is what is earned from there on, less the value there."""
    episode = planted(nodes, reward=2.0)
    asked = token_ids([episode], with_end=True)
    values = [(0.125 * ids).astype(np.float32) for ids in asked]  # told by the token alone
    batch = prepare_batch(
        AlgorithmArgs(adv_estimator="gae", gamma=1.0, lambd=1.0),
        0,
        [episode],
        ModelScores(values=values, logprobs=[-each for each in values]),
    ).batch
    for sequence in batch.sequences:
        own = sequence.response_mask == 1
        assert sequence.returns is not None
        assert sequence.old_values is not None
        assert sequence.proximal_logprobs is not None
        assert sequence.returns[own] == pytest.approx(2.0)
        assert not sequence.returns[~own].any()
        assert not sequence.advantages[~own].any()
        assert np.array_equal(sequence.old_values, (0.125 * sequence.ids).astype(np.float32))


@given(nodes=trees(min_reply=1))
def test_the_segments_of_a_trajectory_are_learned_in_one_optimizer_step(nodes: list[Node]) -> None:
    episodes = [planted(nodes, name=f"train-{n}") for n in range(5)]
    batch = prepare_batch(AlgorithmArgs(), 0, episodes, ModelScores()).batch
    args = AlgorithmArgs(ppo_mini_batch_size=2, ppo_epochs=2)
    steps = optimizer_steps(batch, args, seed=1)
    learned = [{batch.sequences[index].trajectory_id for index in members} for members in steps]
    assert [len(names) for names in learned] == [2, 2, 1] * 2
    assert sorted(index for members in steps[:3] for index in members) == list(range(len(batch.sequences)))
