from __future__ import annotations

import numpy as np
import pytest

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.failures import Boundary, Failure
from envsdk.managers.scheduler import RolloutBatch
from envsdk.trainers.batches import ModelScores, learnable, train_batch
from envsdk.trainers.rollout_metrics import rollout_metrics, validation_metrics
from envsdk.trajectory import Outcome, Task, TokenLog, Trajectory, Turn, VersionSpan


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
    return Trajectory(
        trajectory_id=f"train-{id(log)}",
        group_id=group,
        task=Task(tag=tag, split="train", index=group),
        seed=0,
        outcome=Outcome.FAILED if failed else Outcome.TERMINATED,
        success=reward > 0 and not failed,
        turns=played,
        tokens=log.arrays(),
        failure=failure,
        started_at=0.0,
        ended_at=1.0,
    )


def test_a_failed_member_is_left_out_of_batch_and_baseline() -> None:
    group = [episode(1.0), episode(0.0), episode(0.0, failed=True), episode(0.0)]
    members = learnable(group)
    assert len(members) == 3
    batch = train_batch(AlgorithmArgs(grpo_normalize_std=False), 7, members, ModelScores())
    assert batch.step == 7
    first = [float(s.advantages[s.response_mask == 1][0]) for s in batch.sequences]
    assert first == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    for sequence in batch.sequences:
        assert not sequence.advantages[sequence.response_mask == 0].any()


def test_scores_go_with_their_sequence() -> None:
    members = [episode(1.0), episode(0.0, turns=3)]
    values = [np.full(len(m.tokens), i, np.float32) for i, m in enumerate(members) if m.tokens]
    args = AlgorithmArgs(adv_estimator="gae")
    batch = train_batch(args, 0, members, ModelScores(values=values))
    for index, sequence in enumerate(batch.sequences):
        assert sequence.old_values is values[index]
        assert sequence.returns is not None
        assert len(sequence.returns) == len(sequence.ids)


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


def test_an_evaluation_reports_how_many_episodes_it_rests_on() -> None:
    metrics = validation_metrics(
        RolloutBatch(version=0, groups=[[episode(1.0)], [episode(0.0, failed=True)]])
    )
    assert metrics["val/episodes"] == 1
    assert metrics["val/failed"] == 1
    assert metrics["val/success/mean"] == 1.0


def test_a_batch_of_failures_alone_has_metrics_too() -> None:
    metrics = rollout_metrics(RolloutBatch(version=0, groups=[[episode(0.0, failed=True)]]))
    assert metrics["reward/mean"] == 0.0
    assert metrics["rollout/valid_share"] == 0.0
