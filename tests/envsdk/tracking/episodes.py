"""Episodes for the tests of trackers."""

from __future__ import annotations

from typing import Any

from envsdk.contracts.trajectory import Outcome, Task, TokenLog, Trajectory, Turn, VersionSpan

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "ice"}}\n</tool_call>'


def episode(number: int = 0, **changes: Any) -> Trajectory:
    """Two turns with times: 10 tokens of prompt, 4 sampled, 6 of prompt, 5 sampled."""
    log = TokenLog()
    for prompt, sampled in ((10, 4), (6, 5)):
        log.append_prompt([1] * prompt)
        log.append_sampled([2] * sampled, [-1.0] * sampled, [VersionSpan(version=3, start=0, end=sampled)])
    turns = [
        Turn(observation="the lake", reply=CALL, reward=0.0, response_start=10, response_end=14,
             metrics={"tool_calls": 1.0, "sandbox_s": 36.0}, generate_s=2.0, env_s=0.5),
        Turn(observation="a hole", reply="left", reward=1.0, response_start=20, response_end=25,
             generate_s=1.0, env_s=0.25),
    ]  # fmt: skip
    given: dict[str, Any] = {
        "trajectory_id": f"train-{number}",
        "group_id": 7,
        "task": Task(tag="Lake", split="train", index=4),
        "seed": 1,
        "outcome": Outcome.TERMINATED,
        "success": True,
        "turns": turns,
        "tokens": log.arrays(),
        "started_at": 1000.0,
        "ended_at": 1004.0,
        "generate_s": 3.0,
        "env_s": 1.0,
        "worker": "worker 1",
    }
    return Trajectory(**given | changes)
