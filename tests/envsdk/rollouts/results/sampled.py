"""Episodes with token logs, made by Hypothesis and by hand."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import Outcome, Task, TokenLog, Trajectory, Turn, VersionSpan


def sampled(
    turns: Sequence[tuple[Sequence[int], Sequence[int], float]] = (((1, 2), (3,), 1.0),),
    *,
    index: int = 0,
    group: int = 0,
    member: int = 0,
    failed: bool = False,
    success: bool = True,
    version: int = 0,
) -> Trajectory:
    """One turn per `(prompt ids, reply ids, reward)`; token i of a reply has log-probability -(i + 1)."""
    log, played = TokenLog(), []
    for prompt, reply, reward in turns:
        log.append_prompt(prompt)
        start = len(log)
        span = VersionSpan(version=version, start=0, end=len(reply))
        log.append_sampled(reply, [-1.0 - i for i in range(len(reply))], [span])
        played.append(
            Turn(observation="seen", reply="said", reward=reward, response_start=start, response_end=len(log))
        )
    return Trajectory(
        trajectory_id=f"train-{index}-{group}-{member}",
        group_id=group,
        task=Task(tag="Lake", split="train", index=index),
        seed=index,
        outcome=Outcome.FAILED if failed else Outcome.TERMINATED,
        success=success and not failed,
        turns=tuple(played),
        tokens=log.arrays() if turns else None,
        failure=Failure(boundary=Boundary.ENVIRONMENT, kind="raised", message="no") if failed else None,
        started_at=0.0,
        ended_at=1.0,
    )


_ids = st.lists(st.integers(1, 9), max_size=4)
_turns = st.lists(st.tuples(_ids, _ids, st.sampled_from([0.0, 0.5, 1.0, -1.0])), max_size=3)
sampled_episodes = st.builds(
    sampled,
    _turns,
    group=st.integers(0, 2),
    member=st.integers(0, 99),
    failed=st.booleans(),
    success=st.booleans(),
    version=st.integers(0, 3),
)
