"""A trace of a run's spans and counters, which https://ui.perfetto.dev opens.

    open (new, or after the events of an earlier process) -> span | counter -> close

The file is Chrome's trace-event format as a JSON array. Each event is on disk when the call
returns; a killed process leaves an array without its closing bracket, which viewers and
`read_timeline` accept.

    with Timeline(run_dir / "timeline.json") as timeline:
        with timeline.measure(Track.TRAINER, "train", step=3):
            trainer.train_step(batch)
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Any, Self

from envsdk.base.store.appendfile import AppendFile

FILE_NAME = "timeline.json"

_PROCESS_ID = 1
_PROCESS_NAME = "envsdk"


class Track(StrEnum):
    """Tracks that the viewer draws first. Any other name makes a track of its own."""

    TRAINER = "trainer"
    """`train`, `wait` (no batch is ready), `checkpoint` ..."""
    GENERATION = "generation"
    """Engines are sampling: one span per stretch without a pause."""
    PUBLISH = "publish"
    """New weights on their way to the engines."""
    VALIDATION = "validation"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """One event, read back."""

    track: str
    name: str
    start_s: float
    """Unix time, seconds."""
    end_s: float
    """Equal to the start for counters."""
    args: dict[str, Any] = field(default_factory=dict)


class Timeline:
    """Appends events to one file. Thread-safe.

    Spans of one track either nest or do not overlap, as viewers demand; what really runs side by
    side belongs on tracks of its own (`worker 0`, `worker 1` ...).
    """

    def __init__(self, path: Path) -> None:
        self._file = AppendFile(path)
        self._lock = Lock()
        self._tracks: dict[str, int] = {}
        self._num_events = 0
        self._closed = False
        self._continue()

    def span(self, track: str, name: str, start_s: float, end_s: float, **args: Any) -> None:
        """A span from `start_s` to `end_s`, in Unix seconds."""
        duration_us = max(0, _microseconds(end_s) - _microseconds(start_s))
        self._event(track, {"ph": "X", "name": name, "ts": _microseconds(start_s), "dur": duration_us}, args)

    def counter(self, name: str, time_s: float | None = None, **values: float) -> None:
        """Values of a named counter from now, or from a Unix time, on; drawn as a stacked chart."""
        moment = time.time() if time_s is None else time_s
        self._event(name, {"ph": "C", "name": name, "ts": _microseconds(moment)}, values)

    @contextmanager
    def measure(self, track: str, name: str, **args: Any) -> Iterator[None]:
        """A span around a `with` block, kept when the block raises, too."""
        start_s, began = time.time(), time.monotonic()
        try:
            yield
        finally:
            # The time of day may be set meanwhile.
            self.span(track, name, start_s, start_s + time.monotonic() - began, **args)

    def close(self) -> None:
        """Complete the JSON array. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._file.append(b"\n]\n")
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _continue(self) -> None:
        """Continue an earlier process's file: remove a torn event or a closing bracket, read the tracks."""
        size = 0
        for end, event in _parse(self._file.read()):
            size = end
            self._num_events += 1
            if event.get("ph") == "M" and event.get("name") == "thread_name":
                self._tracks[event["args"]["name"]] = event["tid"]
        self._file.truncate(size)
        if self._num_events == 0:
            self._file.truncate(0)
            self._write(
                {"ph": "M", "name": "process_name", "pid": _PROCESS_ID, "args": {"name": _PROCESS_NAME}}
            )

    def _event(self, track: str, event: dict[str, Any], args: dict[str, Any]) -> None:
        with self._lock:
            if self._closed:
                return
            event |= {"pid": _PROCESS_ID, "tid": self._track(track)}
            if args:
                event["args"] = args
            self._write(event)

    def _track(self, name: str) -> int:
        if name not in self._tracks:
            track_id = self._tracks[name] = len(self._tracks) + 1
            about: dict[str, Any] = {"ph": "M", "pid": _PROCESS_ID, "tid": track_id}
            self._write(about | {"name": "thread_name", "args": {"name": name}})
            known = [track.value for track in Track]
            order = known.index(name) if name in known else len(known) + track_id
            self._write(about | {"name": "thread_sort_index", "args": {"sort_index": order}})
        return self._tracks[name]

    def _write(self, event: dict[str, Any]) -> None:
        prefix = b"[\n" if self._num_events == 0 else b",\n"
        self._file.append(prefix + json.dumps(event, default=str).encode())
        self._num_events += 1


def read_timeline(path: Path) -> list[TimelineEvent]:
    """Spans and counters in the order they were written; a torn end is left out."""
    tracks: dict[int, str] = {}
    events = []
    for _, event in _parse(path.read_bytes()):
        if event.get("ph") == "M":
            if event["name"] == "thread_name":
                tracks[event["tid"]] = event["args"]["name"]
            continue
        start_s = event["ts"] / 1e6
        events.append(
            TimelineEvent(
                track=tracks.get(event["tid"], ""),
                name=event["name"],
                start_s=start_s,
                end_s=start_s + event.get("dur", 0) / 1e6,
                args=event.get("args", {}),
            )
        )
    return events


def _parse(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Complete events, one a line, each with the offset of its end; stops at the first torn one."""
    offset = 0
    for line in content.splitlines(keepends=True):
        offset += len(line)
        text = line.rstrip(b"\n").rstrip(b",")
        if text in (b"[", b"]", b""):
            continue
        try:
            event = json.loads(text)
        except ValueError:
            return
        yield offset - (len(line) - len(text)), event


def _microseconds(time_s: float) -> int:
    return round(time_s * 1e6)
