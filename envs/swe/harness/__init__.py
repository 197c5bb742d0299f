"""Programs that play inside a task's sandbox."""

from envsdk.envs.swe.harness.record import Harness, Stage, read_harness, staged

__all__ = ["Harness", "Stage", "read_harness", "staged"]
