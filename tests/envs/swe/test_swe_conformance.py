"""The environment keeps the contract that training relies on, with real sandboxes and real grading."""

from __future__ import annotations

from envsdk.testing import TextEnvSuite

TestSWE = TextEnvSuite.of(
    "envsdk/SWE-v1",
    {"num_tasks": 2, "max_steps": 4, "instructions": False},
    max_examples=2,
    max_turns=10,
)
