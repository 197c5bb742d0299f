"""The tracker contract: where a run's metrics go.

    create -> [rewind] -> (log | log_episodes)* -> [end] -> close

Trackers register under the entry-point group `envsdk.trackers` and are named in the YAML (`trackers`).

    class PrintTracker(Tracker):
        @classmethod
        def create(cls, run_dir, config): return cls()
        def log(self, step, metrics, *, time_unix_s): print(step, dict(metrics))
        def rewind(self, step): ...
        def close(self): ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from envsdk.contracts.trajectory import Trajectory


class Ending(StrEnum):
    """How a process of a run ended."""

    FINISHED = "finished"
    """All steps are trained."""
    STOPPED = "stopped"
    """The user stopped it; the same command continues."""
    FAILED = "failed"


class Tracker(ABC):
    """Keeps one run's metrics. Used from one thread."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Modules of optional packages without which `create` fails."""
    in_background: ClassVar[bool] = False
    """Whether it may wait for a service. It is then called on a thread of its own; training never waits."""

    @classmethod
    @abstractmethod
    def create(cls, run_dir: Path, config: Mapping[str, Any]) -> Tracker:
        """Open the tracker of the run in `run_dir`, or create it. Raises ConfigurationError for bad settings.

        `config` is the tracker's own section of `tracker_args`, empty when there is none. The run's name is
        the folder's, and its settings are in the folder's `config.yaml`.
        """

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        """Store the metrics of one step. Steps do not decrease; a second call for a step adds to it."""

    @abstractmethod
    def rewind(self, step: int) -> None:
        """Forget everything after `step`: a resumed run plays those steps again."""

    def log_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:  # noqa: B027
        """Store the finished episodes of a step's batch; by default nothing is stored."""

    def end(self, ending: Ending, message: str = "") -> None:  # noqa: B027
        """Note how the run ended, and why, before `close`. A process that is killed does not call it."""

    @abstractmethod
    def close(self) -> None:
        """Flush pending writes. Idempotent."""
