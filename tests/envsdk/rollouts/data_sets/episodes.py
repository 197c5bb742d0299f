"""Episodes for tests of data sets, made by hand and by Hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import NO_VERSION, Outcome, Task, TokenArrays, Trajectory, Turn


def episode(
    *replies: str,
    index: int = 0,
    tag: str = "Lake",
    rewards: Sequence[float] | None = None,
    success: bool = True,
    outcome: Outcome = Outcome.TERMINATED,
    first: str = "start",
    num_tokens: int | None = None,
) -> Trajectory:
    """One turn per reply; each observation tells the replies before it."""
    turns = [
        Turn(
            observation="".join([first, *(f" {reply}" for reply in replies[:position])]),
            reply=reply,
            reward=rewards[position] if rewards else float(position == len(replies) - 1),
            response_start=0,
            response_end=0,
        )
        for position, reply in enumerate(replies)
    ]
    failed = outcome is Outcome.FAILED
    return Trajectory(
        trajectory_id=f"train-{index}",
        group_id=index,
        task=Task(tag=tag, split="train", index=index),
        seed=index,
        outcome=outcome,
        success=success and not failed,
        turns=tuple(turns),
        tokens=None if num_tokens is None else token_log(num_tokens),
        failure=Failure(boundary=Boundary.ENVIRONMENT, kind="raised", message="no") if failed else None,
        final_observation="end",
        started_at=0.0,
        ended_at=0.0,
    )


def token_log(num_tokens: int) -> TokenArrays:
    return TokenArrays(
        ids=np.zeros(num_tokens, np.int32),
        response_mask=np.zeros(num_tokens, np.int8),
        behavior_logprobs=np.zeros(num_tokens, np.float32),
        versions=np.full(num_tokens, NO_VERSION, np.int32),
    )


episodes = st.builds(
    lambda replies, first, tag, success, outcome, num_tokens: episode(
        *replies, first=first, tag=tag, success=success, outcome=outcome, num_tokens=num_tokens
    ),
    st.lists(st.sampled_from(["a", "b", " "]), max_size=4),
    st.sampled_from(["start", "begin"]),
    st.sampled_from(["Lake", "Room"]),
    st.booleans(),
    st.sampled_from(Outcome),
    st.none() | st.integers(0, 9),
)
