from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.batches import ModelScores, learnable, prepare_batch, supports, token_ids
from envsdk.contracts.failures import Boundary, Failure, TrainerError
from envsdk.contracts.support import Support
from envsdk.contracts.trainer import TeacherScores
from envsdk.contracts.trajectory import (
    FinishReason,
    Outcome,
    RolloutBatch,
    Task,
    TokenLog,
    Trajectory,
    Turn,
    VersionSpan,
)
from envsdk.engines.tool_calls.reading import AttemptStatus, attempt_metric
from envsdk.runs.rollout_metrics import rollout_metrics, validation_metrics
from tests.envsdk.contracts.trees import Node, planted
from tests.trajectories import trajectory_with


def episode(
    reward: float,
    *,
    group: int = 0,
    tag: str = "Lake",
    version: int = 3,
    failed: bool = False,
    turns: int = 2,
) -> Trajectory:
    log = TokenLog()
    played = []
    for turn in range(turns):
        log.append_prompt([1, 2])
        start = len(log)
        log.append_sampled([3], [-0.5], [VersionSpan(version=version + turn, start=0, end=1)])
        is_last = turn == turns - 1
        played.append(
            Turn(
                observation="o",
                reply="r",
                reward=reward if is_last else 0.0,
                response_start=start,
                response_end=len(log),
                metrics={"action_is_valid": float(is_last)},
            )
        )
    failure = Failure(boundary=Boundary.ENGINE, kind="turn_timeout", message="late") if failed else None
    return trajectory_with(
        trajectory_id=f"train-{id(log)}",
        group_id=group,
        task=Task(tag=tag, split="train", index=group),
        outcome=Outcome.FAILED if failed else Outcome.TERMINATED,
        success=reward > 0 and not failed,
        turns=played,
        tokens=log.arrays(),
        failure=failure,
    )


def test_a_batch_without_a_sampled_token_is_an_error_that_says_so() -> None:
    batch = [episode(1.0, turns=0), episode(0.0, failed=True)]
    with pytest.raises(TrainerError, match="nothing to learn from in a batch of 2 episodes: 1 failed"):
        learnable(batch)


def test_a_failed_member_is_left_out_of_batch_and_baseline() -> None:
    group = [episode(1.0), episode(0.0), episode(0.0, failed=True), episode(0.0)]
    members = learnable(group)
    assert len(members) == 3
    batch = prepare_batch(AlgorithmArgs(grpo_normalize_std=False), 7, members, ModelScores()).batch
    assert batch.step == 7
    first = [float(s.advantages[s.response_mask == 1][0]) for s in batch.sequences]
    assert first == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    for sequence in batch.sequences:
        assert not sequence.advantages[sequence.response_mask == 0].any()


def test_masked_trajectories_are_not_in_the_batch_and_their_rewards_count() -> None:
    def cut(trajectory):
        return replace(
            trajectory, turns=[replace(t, finish_reason=FinishReason.LENGTH) for t in trajectory.turns]
        )

    group = [episode(1.0), cut(episode(0.0)), episode(0.0)]
    args = AlgorithmArgs(grpo_normalize_std=False, max_len_mask=True)
    prepared = prepare_batch(args, 0, group, ModelScores())
    kept = [group[0].trajectory_id, group[2].trajectory_id]
    assert [s.trajectory_id for s in prepared.batch.sequences] == kept
    first = [float(s.advantages[s.response_mask == 1][0]) for s in prepared.batch.sequences]
    assert first == pytest.approx([2 / 3, -1 / 3])
    assert prepared.metrics["advantage/masked_max_len"] == pytest.approx(1 / 3)
    assert prepared.metrics["advantage/masked"] == pytest.approx(1 / 3)
    assert prepared.nothing_left == ""


@pytest.mark.parametrize("distill_as", ["advantage", "loss"])
def test_a_teacher_counts_where_it_scored_and_beside_it_the_rewards_by_their_weight(distill_as: str) -> None:
    group = [episode(1.0), episode(0.0)]
    plain = prepare_batch(AlgorithmArgs(), 0, group, ModelScores()).batch.sequences
    of_first = TeacherScores(logprobs=np.array([0, 0, -0.25, 0, 0, -1.0], np.float32), coef=2.0)
    args = AlgorithmArgs(distill_as=distill_as, distill_reward_coef=0.5)
    prepared = prepare_batch(args, 0, group, ModelScores(teacher=[of_first, None]))
    taught, alone = prepared.batch.sequences
    np.testing.assert_array_equal(alone.advantages, plain[1].advantages)
    expected = 0.5 * plain[0].advantages
    if distill_as == "advantage":
        expected = expected + np.array([0, 0, 0.5, 0, 0, -1.0])
    np.testing.assert_allclose(taught.advantages, expected, rtol=1e-6)
    assert taught.teacher is (None if distill_as == "advantage" else of_first)
    assert prepared.metrics["distill/kl_per_token"] == pytest.approx((-0.25 + 0.5) / 2)


def test_the_tokens_that_could_be_drawn_reach_the_trainer_by_segment() -> None:
    played = episode(1.0)
    assert supports([played]) == []
    assert played.tokens is not None
    told = Support.of([[], [], [3, 9], [], [], [3]])
    played = replace(played, tokens=replace(played.tokens, support=told))
    [found, nothing] = supports([played, episode(0.0)])
    assert (found, nothing) == (told, None)
    batch = prepare_batch(AlgorithmArgs(), 0, [played, episode(0.0)], ModelScores()).batch
    assert batch.sequences[0].support is told
    branched = replace(
        played,
        turns=[played.turns[0], replace(played.turns[1], follows=-1)],
    )
    assert [each and each.ids.tolist() for each in supports([branched])] == [[3, 9], [3]]


def test_a_batch_that_masks_empty_says_which_did() -> None:
    args = AlgorithmArgs(difficulty_mask=True, max_len_mask=True)
    prepared = prepare_batch(args, 0, [episode(1.0), episode(1.0)], ModelScores())
    assert prepared.batch.sequences == []
    assert "all 2 trajectories" in prepared.nothing_left
    assert "max_len_mask 0, difficulty_mask 2" in prepared.nothing_left
    assert "advantage/mean" not in prepared.metrics


def test_scores_go_with_their_sequence() -> None:
    members = [episode(1.0), episode(0.0, turns=3)]
    asked = token_ids(members, with_end=True)
    values = [np.full(len(ids), index, np.float32) for index, ids in enumerate(asked)]
    batch = prepare_batch(AlgorithmArgs(adv_estimator="gae"), 0, members, ModelScores(values=values)).batch
    for index, sequence in enumerate(batch.sequences):
        assert sequence.old_values is not None
        assert sequence.returns is not None
        assert sequence.old_values.tolist() == [index] * len(sequence.ids)
        assert len(sequence.returns) == len(sequence.ids)
        assert sequence.trajectory_id == members[index].trajectory_id


def test_an_episode_that_was_cut_off_keeps_the_value_of_its_future() -> None:
    ended, cut_off = episode(1.0), replace(episode(1.0), outcome=Outcome.TRUNCATED)
    asked = token_ids([ended, cut_off], with_end=True)
    assert [len(ids) for ids in asked] == [len(ended.tokens) + 1, len(cut_off.tokens) + 1]
    values = [np.zeros(len(ids), np.float32) for ids in asked]
    for each in values:
        each[-1] = 8.0
    args = AlgorithmArgs(adv_estimator="gae", gamma=0.5, lambd=1.0)
    batch = prepare_batch(args, 0, [ended, cut_off], ModelScores(values=values)).batch
    found = [s.advantages[s.response_mask == 1].tolist() for s in batch.sequences]
    assert found == [[0.5, 1.0], [0.5 + 0.25 * 8, 1.0 + 0.5 * 8]]
    targets = batch.sequences[1].returns
    assert targets is not None
    assert targets[cut_off.tokens.response_mask == 1].tolist() == [2.5, 5.0]


def test_states_are_compared_by_the_hashes_the_turns_carry() -> None:
    def visited(reward, *hashes):
        trajectory = episode(reward, turns=len(hashes))
        turns = [replace(t, state_hash=h) for t, h in zip(trajectory.turns, hashes, strict=True)]
        return replace(trajectory, turns=turns)

    args = AlgorithmArgs(adv_estimator="gigpo", grpo_normalize_std=False)
    batch = prepare_batch(args, 0, [visited(1.0, "s", "a"), visited(0.0, "s", "b")], ModelScores()).batch
    found = [s.advantages[s.response_mask == 1].tolist() for s in batch.sequences]
    assert found == [[1.0, 0.5], [-1.0, -0.5]]
    with pytest.raises(ValueError, match="hash of the state"):
        prepare_batch(args, 0, [episode(1.0), episode(0.0)], ModelScores())


def test_the_critic_warms_up_for_the_first_steps_of_the_run() -> None:
    args = AlgorithmArgs(adv_estimator="gae", critic_warmup=2)
    steps = [prepare_batch(args, step, [], ModelScores()).batch.critic_only for step in range(4)]
    assert steps == [True, True, False, False]


def test_the_weight_of_the_kl_penalty_follows_the_divergence() -> None:
    members = [episode(1.0), episode(0.0)]
    sizes = [len(m.tokens) for m in members]
    scores = ModelScores(
        logprobs=[np.full(size, -1.0, np.float32) for size in sizes],
        reference_logprobs=[np.full(size, -1.5, np.float32) for size in sizes],
    )
    fixed = prepare_batch(AlgorithmArgs(init_kl_coef=0.1), 0, members, scores, kl_coef=0.3)
    assert fixed.kl_coef == 0.3
    args = AlgorithmArgs(init_kl_coef=0.1, target_kl=0.1, kl_horizon=20)
    prepared = prepare_batch(args, 0, members, scores)
    assert prepared.metrics["kl_reward/coef"] == 0.1
    assert prepared.metrics["kl_reward/kl_per_token"] == pytest.approx(0.5)
    assert prepared.kl_coef == pytest.approx(0.1 * (1 + 0.2 * 2 / 20))
    later = prepare_batch(args, 1, members, scores, kl_coef=prepared.kl_coef)
    assert later.metrics["kl_reward/coef"] == prepared.kl_coef


def test_metrics_count_outcomes_by_tag_and_never_score_a_failure() -> None:
    groups = [
        [episode(1.0, version=3), episode(0.0, version=4)],
        [episode(1.0, group=1, tag="Room", version=4), episode(0.0, group=1, tag="Room", failed=True)],
    ]
    batch = RolloutBatch(
        version=4,
        groups=groups,
        ledger_counts={"stale": 2},
        failures={"engine/turn_timeout": 1},
        discarded_tokens=9,
    )
    metrics = rollout_metrics(batch)
    assert metrics["success/Lake"] == 0.5
    assert metrics["success/Room"] == 1.0
    assert metrics["success/mean"] == 0.75
    assert metrics["staleness/max"] == 1
    assert metrics["staleness/count_0"] == 2
    assert metrics["staleness/count_1"] == 1
    assert metrics["rollout/valid_share"] == 0.75
    assert metrics["rollout/zero_variance_groups_share"] == 0.5
    assert metrics["env/action_is_valid"] == 0.5
    assert metrics["failures/engine/turn_timeout"] == 1
    assert metrics["ledger/stale"] == 2
    assert metrics["waste/tokens"] == 9


def test_attempts_to_call_tools_are_counted_by_tag_and_status() -> None:
    statuses = ["ok", "ok", "malformed", "cut", "cut", "unknown_tool", "none", "none"]
    played = episode(1.0, turns=len(statuses))
    turns = [
        replace(turn, metrics=attempt_metric(AttemptStatus(status)) | {"tool_calls": 1.0})
        for turn, status in zip(played.turns, statuses, strict=True)
    ]
    turns[3] = replace(turns[3], finish_reason=FinishReason.LENGTH)
    never = replace(
        episode(1.0, tag="Room"), turns=[replace(turns[-1], metrics=attempt_metric(AttemptStatus.NONE))]
    )
    batch = RolloutBatch(
        version=3, groups=[[replace(played, turns=turns)], [never], [episode(0.0, tag="Hall")]]
    )
    metrics = rollout_metrics(batch)
    assert {name: value for name, value in metrics.items() if name.startswith("calls/")} == {
        "calls/tried/Lake": 6 / 8,
        "calls/ok/Lake": 2 / 6,
        "calls/malformed/Lake": 2 / 6,
        "calls/cut/Lake": 1 / 6,
        "calls/unknown_tool/Lake": 1 / 6,
        "calls/tried/Room": 0.0,
    }
    assert [name for name in metrics if "attempt" in name] == []
    assert validation_metrics(batch)["val/calls/tried/Lake"] == 6 / 8


def test_an_evaluation_reports_how_many_episodes_it_rests_on() -> None:
    metrics = validation_metrics(
        RolloutBatch(version=0, groups=[[episode(1.0)], [episode(0.0, failed=True)]])
    )
    assert metrics["val/episodes"] == 1
    assert metrics["val/failed"] == 1
    assert (metrics["val/num_scored/Lake"], metrics["val/num_failed/Lake"]) == (1, 1)
    assert [name for name in metrics if name.startswith("val/failures/")] != []
    assert metrics["val/success/mean"] == 1.0


def test_a_batch_of_failures_alone_has_metrics_too() -> None:
    metrics = rollout_metrics(RolloutBatch(version=0, groups=[[episode(0.0, failed=True)]]))
    assert not {"reward/mean", "success/mean"} & metrics.keys()  # never scored 0
    assert metrics["rollout/num_failed/Lake"] == 1
    assert metrics["rollout/valid_share"] == 0.0


def test_the_share_of_tokens_that_segments_have_in_common_is_a_metric() -> None:
    nodes = [
        Node(follows=None, num_prompt=4, num_reply=2),
        Node(follows=None, num_prompt=1, num_reply=1),
        Node(follows=0, num_prompt=1, num_reply=1),
    ]
    batch = RolloutBatch(version=9, groups=[[planted(nodes), planted(nodes[:1])]])
    metrics = rollout_metrics(batch)
    assert metrics["rollout/num_segments_mean"] == 1.5
    assert metrics["rollout/merged_share"] == pytest.approx(6 / (8 + 8 + 6))
    assert metrics["rollout/sequence_tokens_mean"] == pytest.approx((10 + 6) / 2)
    assert "rollout/merged_share" not in rollout_metrics(RolloutBatch(version=9, groups=[[episode(1.0)]]))
