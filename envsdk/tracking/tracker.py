"""The tracker contract: where a run's metrics go.

    create -> [rewind] -> log* -> close

Trackers register under the entry-point group `envsdk.trackers` and are named in the YAML (`trackers`).

    class PrintTracker(Tracker):
        @classmethod
        def create(cls, run_dir, config): return cls()
        def log(self, step, metrics, *, time_unix_s): print(step, dict(metrics))
        def rewind(self, step): ...
        def close(self): ...
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from envsdk.failures import ConfigurationError, EnvsdkError
from envsdk.plugins import load_plugin

ENTRY_POINT_GROUP = "envsdk.trackers"

_logger = logging.getLogger(__name__)


class Tracker(ABC):
    """Keeps one run's metrics. Used from one thread."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Modules of optional packages without which `create` fails."""

    @classmethod
    @abstractmethod
    def create(cls, run_dir: Path, config: Mapping[str, Any]) -> Tracker:
        """Open the tracker of the run in `run_dir`, or create it. Raises ConfigurationError for bad settings.

        `config` is the tracker's own section of the YAML, empty when there is none.
        """

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        """Store the metrics of one step. Steps do not decrease; a second call for a step adds to it."""

    @abstractmethod
    def rewind(self, step: int) -> None:
        """Forget everything after `step`: a resumed run plays those steps again."""

    @abstractmethod
    def close(self) -> None:
        """Flush pending writes. Idempotent."""


class TrackerGroup(Tracker):
    """Several trackers behind one.

    Metrics are not worth a run: a tracker that raises (a service that is down, say) is dropped with
    one warning. What raises EnvsdkError, as the built-in ones do on a full disk, ends the run.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)

    @classmethod
    def create(cls, run_dir: Path, config: Mapping[str, Any]) -> TrackerGroup:
        """`config` maps the names of trackers to their settings."""
        return cls({name: load_tracker(name).create(run_dir, config[name] or {}) for name in config})

    @property
    def names(self) -> tuple[str, ...]:
        """Trackers still in use."""
        return tuple(self._trackers)

    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        self._each("log", step, metrics, time_unix_s=time_unix_s)

    def rewind(self, step: int) -> None:
        self._each("rewind", step)

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
    names: Sequence[str] | Mapping[str, Mapping[str, Any] | None], run_dir: Path
) -> TrackerGroup:
    """The named trackers as one; a mapping gives each its settings."""
    settings = names if isinstance(names, Mapping) else dict.fromkeys(names)
    return TrackerGroup.create(run_dir, settings)
