"""Programs that play inside a task's sandbox."""

from envsdk.envs.swe.harness.record import Harness, read_harness
from envsdk.envs.swe.harness.stage import Stage, staged

__all__ = ["Harness", "Stage", "read_harness", "staged"]
