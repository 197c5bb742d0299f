"""Pure: who waited for whom, from a run's timeline.

At each moment the trainer trains or waits for a batch, and the engines sample or do not; new weights may be
published or a validation may run. `CAUSES` names the combinations. When the engines do not sample, the
cause is the first of publication, validation and training that is running; when the trainer waits as well, it
is the environments.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from envsdk.tracking.timeline import TimelineEvent, Track

CAUSES = {
    "both": "both busy",
    "trainer_waits": "trainer waits for engines",
    "engines_wait": "engines wait for the trainer",
    "publish": "weights on their way",
    "validate": "validation",
    "environments": "both wait for environments",
}
"""Each recorded moment of a run is one of these."""

MAX_SPANS = 10_000
"""Spans of one lane: in a longer one short neighbors are drawn as one, about as many as spans that stay."""
MAX_STEPS = 500
"""Steps of the bars by step; in a longer run, a bar is the mean of neighboring steps."""

Interval = tuple[float, float]
"""`[start, end)`, Unix seconds."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as disjoint intervals in order."""
    merged: list[Interval] = []
    for start, end in sorted(each for each in intervals if each[1] > each[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def segments(events: Sequence[TimelineEvent]) -> Iterator[tuple[float, float, str]]:
    """`(start, end, cause)` in order, without overlap.

    Times in which nothing at all is recorded, such as those between two processes of one run, are left out.
    """
    lanes = {
        "wait": _spans(events, Track.TRAINER, "wait", True),
        "train": _spans(events, Track.TRAINER, "wait", False),
        "generate": _spans(events, Track.GENERATION),
        "publish": _spans(events, Track.PUBLISH),
        "validate": _spans(events, Track.VALIDATION),
    }
    points = sorted(
        (time, change, name)
        for name, spans in lanes.items()
        for interval in spans
        for time, change in zip(interval, (1, -1), strict=True)
    )
    active = dict.fromkeys(lanes, 0)
    at = points[0][0] if points else 0.0
    for time, change, name in points:
        if time > at and any(active.values()):
            yield at, time, _cause(active)
        at = time
        active[name] += change


def timeline_view(events: Sequence[TimelineEvent], max_spans: int = MAX_SPANS) -> dict[str, Any]:
    """Lanes of spans in seconds from the first event, and who waited for whom, in all and by step.

    A step here is the time from the end of the training before it to the end of its own.
    """
    spans = [event for event in events if event.end_s > event.start_s]
    if not spans:
        return {"start": None, "seconds": 0.0, "lanes": [], "waits": {}, "steps": [], "causes": CAUSES}
    start_s, end_s = min(e.start_s for e in spans), max(e.end_s for e in spans)
    known = [track.value for track in Track]
    tracks = [track for track in known if any(event.track == track for event in spans)]
    tracks += [track for track in dict.fromkeys(e.track for e in spans) if track not in known]
    parts = list(segments(spans))
    return {
        "start": start_s,
        "seconds": end_s - start_s,
        "lanes": [_lane(track, spans, start_s, end_s, max_spans) for track in tracks],
        "waits": _sum(parts),
        "steps": _by_step(spans, parts, start_s),
        "causes": CAUSES,
    }


def _cause(active: dict[str, int]) -> str:
    if active["generate"]:
        if active["wait"]:
            return "trainer_waits"
        return "validate" if active["validate"] and not active["train"] else "both"
    if active["publish"]:
        return "publish"
    if active["validate"]:
        return "validate"
    return "engines_wait" if active["train"] else "environments"


def _spans(
    events: Iterable[TimelineEvent], track: Track, name: str = "", is_name: bool = False
) -> list[Interval]:
    """Times of a track; with a name, of the events called so, or of all others."""
    return union(
        (event.start_s, event.end_s)
        for event in events
        if event.track == track and (not name or (event.name == name) is is_name)
    )


def _sum(parts: Iterable[tuple[float, float, str]]) -> dict[str, float]:
    seconds = dict.fromkeys(CAUSES, 0.0)
    for start, end, cause in parts:
        seconds[cause] += end - start
    return seconds


def _by_step(
    spans: Sequence[TimelineEvent], parts: Sequence[tuple[float, float, str]], start_s: float
) -> list[dict[str, Any]]:
    trained = sorted(
        (event.end_s, event.args["step"])
        for event in spans
        if event.track == Track.TRAINER and event.name == "train" and isinstance(event.args.get("step"), int)
    )
    ends = [end for end, _ in trained]
    seconds = [dict.fromkeys(CAUSES, 0.0) for _ in trained]
    for start, end, cause in parts:
        step = bisect_right(ends, start)
        while step < len(ends) and start < end:
            cut = min(end, ends[step])
            seconds[step][cause] += cut - start
            start, step = cut, step + 1
    lows = [start_s, *ends]
    steps = [
        {"step": step, "last": step, "start": low - start_s, "end": end - start_s, "waits": waits}
        for low, (end, step), waits in zip(lows, trained, seconds, strict=False)
    ]
    size = -(-len(steps) // MAX_STEPS) or 1
    return [_mean_step(steps[first : first + size]) for first in range(0, len(steps), size)]


def _mean_step(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    waits = {cause: math.fsum(step["waits"][cause] for step in steps) / len(steps) for cause in CAUSES}
    return steps[0] | {"last": steps[-1]["step"], "end": steps[-1]["end"], "waits": waits}


def _lane(
    track: str, spans: Sequence[TimelineEvent], start_s: float, end_s: float, max_spans: int
) -> dict[str, Any]:
    own = sorted((e for e in spans if e.track == track), key=lambda event: event.start_s)
    resolution = (end_s - start_s) / max_spans if len(own) > max_spans else 0.0
    drawn: list[tuple[float, float, str, int | None]] = []
    # Spans that are shorter than a cell become one, with the name that has most of its seconds.
    for (_, is_short), group in groupby(own, key=lambda e: _cell(e, start_s, resolution)):
        together = list(group)
        if is_short:
            names: dict[str, float] = {}
            for event in together:
                names[event.name] = names.get(event.name, 0.0) + event.end_s - event.start_s
            start, end = together[0].start_s, max(event.end_s for event in together)
            drawn.append((start, end - start, max(names, key=names.__getitem__), _step(together[0])))
        else:
            drawn += [(e.start_s, e.end_s - e.start_s, e.name, _step(e)) for e in together]
    busy_s = sum(b - a for a, b in union((e.start_s, e.end_s) for e in own if e.name != "wait"))
    rounded = [
        [round(start - start_s, 4), round(length, 4), name, step] for start, length, name, step in drawn
    ]
    return {"track": track, "busy_s": busy_s, "spans": rounded}


def _cell(event: TimelineEvent, start_s: float, resolution: float) -> tuple[int, bool]:
    """The cell of the lane in which an event begins, and whether it is shorter than one."""
    if not resolution:
        return 0, False
    return int((event.start_s - start_s) / resolution), event.end_s - event.start_s < resolution


def _step(event: TimelineEvent) -> int | None:
    step = event.args.get("step")
    return step if isinstance(step, int) else None
