"""The trackers of a run as one, by their names.

open_trackers(["jsonl", "wandb"], run_dir, {"wandb": {"mode": "offline"}})
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from envsdk.base.plugins import load_plugin
from envsdk.contracts.failures import ConfigurationError, EnvsdkError
from envsdk.contracts.trajectory import Trajectory
from envsdk.tracking.background import BackgroundTracker
from envsdk.tracking.tracker import Ending, Tracker

ENTRY_POINT_GROUP = "envsdk.trackers"

_logger = logging.getLogger(__name__)


class TrackerGroup(Tracker):
    """Several trackers behind one.

    Metrics are not worth a run: a tracker that raises (a service that is down, say) is dropped with
    one warning. What raises EnvsdkError, as `jsonl` does on a full disk, ends the run.
    """

    def __init__(self, trackers: Mapping[str, Tracker | BackgroundTracker]) -> None:
        self._trackers = dict(trackers)

    @classmethod
    def create(cls, run_dir: Path, config: Mapping[str, Any]) -> Self:
        """`config` maps the names of trackers to their settings."""
        trackers: dict[str, Tracker | BackgroundTracker] = {}
        try:
            for name, settings in config.items():
                tracker = load_tracker(name)
                if tracker.in_background:
                    trackers[name] = BackgroundTracker.open(name, tracker, run_dir, settings or {})
                else:
                    trackers[name] = tracker.create(run_dir, settings or {})
        except BaseException:
            for opened in trackers.values():
                opened.close()
            raise
        return cls(trackers)

    @property
    def names(self) -> tuple[str, ...]:
        """Trackers still in use."""
        return tuple(self._trackers)

    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        self._each("log", step, metrics, time_unix_s=time_unix_s)

    def rewind(self, step: int) -> None:
        self._each("rewind", step)

    def log_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        self._each("log_episodes", step, trajectories)

    def end(self, ending: Ending, message: str = "") -> None:
        self._each("end", ending, message)

    def close(self) -> None:
        self._each("close")

    def _each(self, method: str, *args: Any, **kwargs: Any) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                getattr(tracker, method)(*args, **kwargs)
            except EnvsdkError:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary to third-party trackers
                _logger.warning("tracker %s failed in %s and is dropped: %s", name, method, error)
                del self._trackers[name]


def load_tracker(name: str) -> type[Tracker]:
    """The tracker registered as `name`, or behind `package.module:Class`.

    Raises ConfigurationError, with the nearest known name, when there is none.
    """
    try:
        tracker = load_plugin(ENTRY_POINT_GROUP, name)
    except ConfigurationError as error:
        raise ConfigurationError(f"trackers: {error}") from error
    if not (isinstance(tracker, type) and issubclass(tracker, Tracker)):
        raise ConfigurationError(f"trackers: {name!r} is not an envsdk.tracking.Tracker, but {tracker!r}")
    return tracker


def open_trackers(
    names: Sequence[str] | Mapping[str, Mapping[str, Any] | None],
    run_dir: Path,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> TrackerGroup:
    """The named trackers as one; `settings` by name, which a mapping of names holds itself."""
    given = names if isinstance(names, Mapping) else {name: (settings or {}).get(name) for name in names}
    return TrackerGroup.create(run_dir, given)
