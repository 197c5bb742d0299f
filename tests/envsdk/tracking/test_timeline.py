from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.tracking.timeline import Timeline, TimelineEvent, Track, read_timeline

SPANS = st.lists(
    st.tuples(st.sampled_from(["trainer", "worker \N{SNOWMAN}", 'a "quoted" one']), st.text(max_size=6)),
    max_size=12,
)


def test_a_closed_timeline_is_a_trace_that_names_its_tracks(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    with Timeline(path) as timeline:
        timeline.span(Track.TRAINER, "train", 1000.0, 1002.5, step=3)
        timeline.span(Track.PUBLISH, "publish", 1002.5, 1002.75, version=4)
        timeline.counter("ready", 1003.0, groups=2)
    events = json.loads(path.read_text())
    names = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert list(names) == ["trainer", "publish", "ready"]
    span, _ = [e for e in events if e["ph"] == "X"]
    assert (span["ts"], span["dur"], span["tid"]) == (1_000_000_000, 2_500_000, names["trainer"])
    assert span["args"] == {"step": 3}
    assert all({"ph", "pid", "name"} <= set(event) for event in events)


def test_events_read_back(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    with Timeline(path) as timeline:
        timeline.span("trainer", "train", 1000.0, 1002.5, step=3)
        timeline.counter("ready", 1003.0, groups=2)
    assert read_timeline(path) == [
        TimelineEvent(track="trainer", name="train", start_s=1000.0, end_s=1002.5, args={"step": 3}),
        TimelineEvent(track="ready", name="ready", start_s=1003.0, end_s=1003.0, args={"groups": 2}),
    ]


@given(spans=SPANS, cut=st.integers(0, 10_000), is_closed=st.booleans())
def test_whatever_is_cut_off_the_end_the_rest_reads_and_the_next_run_goes_on(
    spans: list[tuple[str, str]], cut: int, is_closed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run") / "timeline.json"
    timeline = Timeline(path)
    for i, (track, name) in enumerate(spans):
        timeline.span(track, name, float(i), i + 1.0)
    if is_closed:
        timeline.close()
    path.write_bytes(path.read_bytes()[:cut])

    before = read_timeline(path)
    assert [(e.track, e.name) for e in before] == spans[: len(before)]
    with Timeline(path) as resumed:
        resumed.span("trainer", "after", 100.0, 101.0)
    assert [(e.track, e.name) for e in read_timeline(path)] == [*spans[: len(before)], ("trainer", "after")]
    tracks = [e["args"]["name"] for e in json.loads(path.read_text()) if e["name"] == "thread_name"]
    assert len(tracks) == len(set(tracks))


def test_a_killed_process_leaves_every_event_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    code = (
        "import os, pathlib, signal, sys\n"
        "from envsdk.tracking.timeline import Timeline\n"
        "timeline = Timeline(pathlib.Path(sys.argv[1]))\n"
        "for i in range(50): timeline.span('trainer', 'train', float(i), i + 0.5)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert result.returncode == -signal.SIGKILL
    assert len(read_timeline(path)) == 50


def test_a_measured_block_is_recorded_when_it_raises(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    timeline = Timeline(path)
    with pytest.raises(RuntimeError), timeline.measure("trainer", "train"):
        raise RuntimeError
    (event,) = read_timeline(path)
    assert event.name == "train"
    assert event.end_s >= event.start_s


def test_a_measured_block_is_as_long_as_it_was_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "timeline.json"
    timeline = Timeline(path)
    day, since_boot = iter([1e6, 0.0]), iter([10.0, 13.0])
    clock = SimpleNamespace(time=lambda: next(day), monotonic=lambda: next(since_boot))
    monkeypatch.setattr("envsdk.tracking.timeline.time", clock)
    with timeline.measure("trainer", "train"):
        pass
    (event,) = read_timeline(path)
    assert (event.start_s, event.end_s) == (1e6, 1e6 + 3)


def test_an_event_after_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    timeline = Timeline(path)
    timeline.close()
    timeline.close()
    timeline.span("trainer", "late", 0.0, 1.0)
    assert read_timeline(path) == []
    json.loads(path.read_text())
