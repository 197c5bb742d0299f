"""Trajectories that a file in this folder holds: it was written once and must stay readable.

python -m tests.envsdk.base.store.kept_files    writes the file, for a new schema version
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from envsdk.base.store.trajectories import SCHEMA_VERSION, write_trajectories
from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import FinishReason, Outcome, Task, TokenArrays, Trajectory, Turn

KEPT = Path(__file__).with_name("trajectories_2.parquet")


def kept_trajectories() -> list[Trajectory]:
    """With and without tokens, turns, metrics, hashes, details and a failure."""
    tokens = TokenArrays(
        ids=np.array([5, 6, 7, 2**31 - 1], np.int32),
        response_mask=np.array([0, 1, 1, 0], np.int8),
        behavior_logprobs=np.array([0.0, -0.25, -7.5, 0.0], np.float32),
        versions=np.array([-1, 3, 4, -1], np.int32),
    )
    turn = Turn(observation="P _\n# G", reply="Right é\0", reward=0.5, response_start=1, response_end=3)
    other = Turn(
        observation="",
        reply="",
        reward=-1.25,
        response_start=3,
        response_end=3,
        finish_reason=FinishReason.LENGTH,
        metrics={"action_is_valid": 1.0, "": -2.5},
        state_hash="a1b2",
        details='{"hint": "é"}',
    )
    failure = Failure(boundary=Boundary.ENVIRONMENT, kind="step_timeout", message="waited 30 s")
    task = Task(tag="FrozenLake", split="train", index=2**40)
    made = []
    for number, (turns, log, failed) in enumerate(
        [((turn, other), tokens, None), ((), None, failure), ((turn,), None, None)]
    ):
        made.append(
            Trajectory(
                trajectory_id=f"train-{number}",
                group_id=-number,
                task=task,
                seed=17 + number,
                outcome=Outcome.FAILED if failed else list(Outcome)[number // 2],
                success=number == 0,
                turns=turns,
                tokens=log,
                failure=failed,
                final_observation="_ P" if turns else "",
                started_at=1000.5,
                ended_at=1003.25,
                generate_s=1.5,
                env_s=0.125,
                worker="train-0#1",
            )
        )
    return made


if __name__ == "__main__":
    assert KEPT.name == f"trajectories_{SCHEMA_VERSION}.parquet"
    write_trajectories(KEPT, kept_trajectories(), metadata={"step": "7"})
