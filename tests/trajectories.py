"""Trajectories for tests, of which only what matters to a test is said."""

from __future__ import annotations

from typing import Any

from envsdk.contracts.trajectory import Outcome, Task, Trajectory


def trajectory_with(**changes: Any) -> Trajectory:
    """One that took a second, without a turn or a token, and succeeded; but for `changes`."""
    given: dict[str, Any] = {
        "trajectory_id": "train-0",
        "group_id": 0,
        "task": Task(tag="Lake", split="train", index=0),
        "seed": 0,
        "outcome": Outcome.TERMINATED,
        "success": True,
        "turns": (),
        "tokens": None,
        "started_at": 0.0,
        "ended_at": 1.0,
    }
    return Trajectory(**given | changes)
