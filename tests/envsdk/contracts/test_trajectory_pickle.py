"""Trajectories cross processes as tuples, without a loss."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields

import numpy as np
import pytest

from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.prompts import TagPrompts
from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import FinishReason, Outcome, Task, TokenLog, Trajectory, Turn, VersionSpan


def episode(*, has_tokens: bool, has_support: bool = False) -> Trajectory:
    log = TokenLog()
    log.append_prompt([5, 6, 7])
    spans = [VersionSpan(version=3, start=0, end=2)]
    log.append_sampled(
        [8, 9], [-0.1, -0.7], spans, support=Support.of([[8, 2], [9]]) if has_support else None
    )
    turn = Turn(
        observation="S F",
        reply="right",
        reward=0.5,
        response_start=3,
        response_end=5,
        finish_reason=FinishReason.LENGTH,
        metrics={"action_is_valid": 1.0},
        state_hash="ab",
        details='{"grade": 1}',
        generate_s=0.25,
        env_s=0.125,
    )
    return Trajectory(
        trajectory_id="train-7",
        group_id=2,
        task=Task(tag="Lake", split="train", index=4),
        seed=11,
        outcome=Outcome.FAILED,
        success=False,
        turns=[turn, turn],
        tokens=log.arrays() if has_tokens else None,
        failure=Failure(boundary=Boundary.ENVIRONMENT, kind="step_raised", message="no"),
        final_observation="S G",
        started_at=1.0,
        ended_at=2.5,
        generate_s=0.5,
        env_s=0.25,
        worker="train-0#1",
        shown=TagPrompts(max_turns=3),
        tools=[{"name": "look"}],
    )


@pytest.mark.parametrize("has_tokens", [True, False])
def test_a_pickled_trajectory_comes_back_with_every_field(has_tokens: bool) -> None:
    before = episode(has_tokens=has_tokens)
    for after in (pickle.loads(pickle.dumps(before)), copy.deepcopy(before)):
        for field in fields(Trajectory):
            if field.name != "tokens":
                assert getattr(after, field.name) == getattr(before, field.name), field.name
        # These do not take part in comparisons of turns.
        assert [(turn.generate_s, turn.env_s) for turn in after.turns] == [(0.25, 0.125)] * 2
        assert (after.tokens is None) is (before.tokens is None)
        if before.tokens is not None and after.tokens is not None:
            for name in ("ids", "response_mask", "behavior_logprobs", "versions"):
                there, here = getattr(after.tokens, name), getattr(before.tokens, name)
                assert there.dtype == here.dtype
                np.testing.assert_array_equal(there, here)


def test_the_tokens_that_could_be_drawn_come_along() -> None:
    after = pickle.loads(pickle.dumps(episode(has_tokens=True, has_support=True)))
    assert after.tokens.support.counts.tolist() == [0, 0, 0, 2, 1]
    assert after.tokens.support.ids.tolist() == [8, 2, 9]
