"""The trackers of a run as one, by their names; those of services on threads of their own.

open_trackers(["jsonl", "wandb"], run_dir, {"wandb": {"mode": "offline"}})
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from envsdk.base.plugins import load_plugin
from envsdk.contracts.failures import ConfigurationError, EnvsdkError
from envsdk.contracts.trajectory import Trajectory
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
                    trackers[name] = BackgroundTracker(name, tracker, run_dir, settings or {})
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


START_PATIENCE_S = 30.0
"""For the service's first answer. Settings that it refuses in this time end the start of the run."""
CLOSE_PATIENCE_S = 30.0
MOST_CALLS = 1000
"""That wait for the service; later ones are lost until there is room."""
MOST_BATCHES = 4
"""Batches of episodes among them."""


class BackgroundTracker:
    """The calls of a tracker, behind a bounded queue. An error of it disables it with one warning.

    opened (waits START_PATIENCE_S at most) -> calls, queued -> close (waits CLOSE_PATIENCE_S at most)
    """

    def __init__(
        self,
        name: str,
        tracker: type[Tracker],
        run_dir: Path,
        config: Mapping[str, Any],
        *,
        start_patience_s: float = START_PATIENCE_S,
        close_patience_s: float = CLOSE_PATIENCE_S,
    ) -> None:
        """Open `tracker` on a thread. ConfigurationError when it refuses its settings in time."""
        self._name = name
        self._close_patience_s = close_patience_s
        self._calls: deque[tuple[str, tuple[Any, ...], dict[str, Any]]] = deque()
        self._changed = threading.Condition()
        self._num_lost = 0
        self._is_closing = False
        self._is_over = False
        self._refused: ConfigurationError | None = None
        self._has_started = threading.Event()
        self._thread = threading.Thread(
            target=self._work, args=(tracker, run_dir, config), name=f"tracker {name}", daemon=True
        )
        self._thread.start()
        if not self._has_started.wait(start_patience_s):
            _logger.warning("tracker %s does not answer; training starts without waiting for it", name)
        if self._refused is not None:
            raise self._refused

    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        self._put("log", step, dict(metrics), time_unix_s=time_unix_s)

    def log_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        self._put("log_episodes", step, trajectories)

    def rewind(self, step: int) -> None:
        self._put("rewind", step)

    def end(self, ending: Ending, message: str = "") -> None:
        self._put("end", ending, message)

    def close(self) -> None:
        with self._changed:
            if self._is_closing or self._is_over:
                return
            self._is_closing = True
            self._changed.notify()
        self._thread.join(self._close_patience_s)
        if self._thread.is_alive():
            _logger.warning(
                "tracker %s has not taken everything after %.0f s; the rest is lost",
                self._name,
                self._close_patience_s,
            )
        elif self._num_lost:
            _logger.warning("tracker %s lost %d calls", self._name, self._num_lost)

    def _put(self, method: str, *args: Any, **kwargs: Any) -> None:
        with self._changed:
            if self._is_over or self._is_closing:
                return
            if self._is_full(method):
                self._num_lost += 1
                if self._num_lost == 1:
                    _logger.warning("tracker %s is too slow: what it cannot take in time is lost", self._name)
                return
            self._calls.append((method, args, kwargs))
            self._changed.notify()

    def _is_full(self, method: str) -> bool:
        if method == "end":
            return False
        if method == "log_episodes":
            return sum(call[0] == method for call in self._calls) >= MOST_BATCHES
        return len(self._calls) >= MOST_CALLS

    def _work(self, kind: type[Tracker], run_dir: Path, config: Mapping[str, Any]) -> None:
        doing = "create"
        try:
            tracker = kind.create(run_dir, config)
            self._has_started.set()
            while (call := self._next()) is not None:
                doing, args, kwargs = call
                getattr(tracker, doing)(*args, **kwargs)
            doing = "close"
            tracker.close()
        except ConfigurationError as error:
            self._refused = error
            self._disable(doing, error, is_known=not self._has_started.is_set())
        except Exception as error:  # noqa: BLE001 - the boundary to services and their packages
            self._disable(doing, error)
        finally:
            self._has_started.set()

    def _next(self) -> tuple[str, tuple[Any, ...], dict[str, Any]] | None:
        """The next call; None when there is none left and none will come."""
        with self._changed:
            while not self._calls and not self._is_closing:
                self._changed.wait()
            return self._calls.popleft() if self._calls else None

    def _disable(self, doing: str, error: Exception, *, is_known: bool = False) -> None:
        with self._changed:
            self._is_over = True
            self._calls.clear()
        if not is_known:
            _logger.warning("tracker %s failed in %s and is disabled: %s", self._name, doing, error)
