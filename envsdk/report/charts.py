"""Charts as plain numbers: the template only draws what these functions have placed.

Pure: values in, coordinates and labels out. Colors are indices into the page's palette.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from envsdk.tracking.timeline import TimelineEvent

Points = Sequence[tuple[float, float]]
"""`(x, y)` in order of x; y may be NaN, which leaves a gap."""

_MARGIN_LEFT = 46.0
_MARGIN_RIGHT = 18.0
_MARGIN_TOP = 12.0
_MARGIN_BOTTOM = 28.0
_MAX_POINTS = 300
_MAX_DOTS = 40
NUM_COLORS = 6
"""Of the palette in report.css."""
_SMOOTHED_FROM = 20
"""Points from which a noisy line gets a smoothed one drawn over it."""


class Size(NamedTuple):
    """Of a chart, in its own units: about pixels on a wide page."""

    width: float
    height: float


SMALL = Size(350, 190)
MIDDLE = Size(350, 220)
LARGE = Size(460, 270)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    position: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What goes into a line chart."""

    name: str
    points: Points
    color: int
    """Index into the page's palette, from 0."""
    is_sparse: bool = False
    """Drawn as dots joined by a dashed line: few values that matter each, such as validations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One placed series."""

    name: str
    color: int
    path: str
    smooth_path: str
    """Empty when the line is not noisy enough to need one."""
    is_sparse: bool
    dots: list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One part of a stack: all its bars as one path."""

    name: str
    color: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChart:
    """Values over steps: lines, or layers stacked upon each other."""

    title: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    hover: dict[str, Any]
    """For the script: positions and formatted values at every x."""
    lines: list[Line] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    label: str
    value_label: str
    share_label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    title: str
    width: float
    height: float
    left: float
    right: float
    bottom: float
    bars: list[Bar]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpan:
    name: str
    x: float
    width: float
    covered: float
    """Of the width; smaller when short spans with gaps between them have been drawn as one."""
    color: int
    title: str

    @property
    def opacity(self) -> float:
        return round(max(0.2, min(1.0, self.covered / self.width)), 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    name: str
    y: float
    spans: list[LaneSpan]
    busy_label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneChart:
    title: str
    width: float
    height: float
    left: float
    right: float
    bottom: float
    lane_height: float
    lanes: list[Lane]
    x_ticks: list[Tick]
    legend: list[tuple[str, int]]


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    size: Size = MIDDLE,
    y_range: tuple[float, float] | None = None,
    as_percent: bool = False,
) -> StepChart | None:
    """Place the series on common axes; None when none of them has a finite value."""
    kept = [(one, _thinned(one.points)) for one in series]
    kept = [(one, points) for one, points in kept if any(math.isfinite(y) for _, y in points)]
    if not kept:
        return None
    xs = sorted({x for _, points in kept for x, _ in points})
    ys = [y for _, points in kept for _, y in points if math.isfinite(y)]
    frame = _Frame(size, (xs[0], xs[-1]), y_range or _padded(min(ys), max(ys)))
    lines = []
    for one, points in kept:
        placed = [(frame.x(x), frame.y(y)) for x, y in points]
        is_noisy = not one.is_sparse and _is_noisy(points)
        smooth = [(frame.x(x), frame.y(y)) for x, y in smoothed(points)] if is_noisy else []
        dots = [(x, y) for x, y in placed if math.isfinite(y)]
        lines.append(
            Line(
                name=one.name,
                color=one.color,
                path=_path(placed),
                smooth_path=_path(smooth),
                is_sparse=one.is_sparse,
                dots=dots if len(dots) <= (_MAX_DOTS if one.is_sparse else 1) else [],
            )
        )
    hover = _hover(frame, xs, [(one.name, one.color, points) for one, points in kept], as_percent)
    return frame.chart(title, as_percent=as_percent, hover=hover, lines=lines)


def stack_chart(title: str, series: Sequence[Series], *, size: Size = MIDDLE) -> StepChart | None:
    """One bar per step in which the series add up, the first at the bottom; a missing value counts as 0."""
    totals: dict[float, float] = {}
    for one in series:
        for x, y in one.points:
            if math.isfinite(y):
                totals[x] = totals.get(x, 0.0) + y
    if not any(totals.values()):
        return None
    xs = sorted(totals)
    values = [(one, dict(one.points)) for one in series]
    rows = [(one, _thinned([(x, by_x.get(x, 0.0)) for x in xs])) for one, by_x in values]
    kept_xs = [x for x, _ in rows[0][1]]
    highest = max(math.fsum(points[i][1] for _, points in rows) for i in range(len(kept_xs)))
    frame = _Frame(size, (xs[0] - 0.5, xs[-1] + 0.5), (0.0, highest * 1.05))
    bar = max(0.5, (frame.right - frame.left) / len(kept_xs) * 0.86)
    base = [0.0] * len(kept_xs)
    layers = []
    for one, points in rows:
        path = []
        for i, (x, y) in enumerate(points):
            if y > 0:
                low, high = frame.y(base[i]), frame.y(base[i] + y)
                path.append(f"M{frame.x(x) - bar / 2:.1f},{low:g}V{high:g}h{bar:.1f}V{low:g}z")
                base[i] += y
        if path:
            layers.append(Layer(name=one.name, color=one.color, path="".join(path)))
    hover = _hover(frame, kept_xs, [(one.name, one.color, points) for one, points in rows], False)
    return frame.chart(title, as_percent=False, hover=hover, layers=layers)


def bar_chart(title: str, counts: Mapping[str, float], *, size: Size = MIDDLE) -> BarChart | None:
    """One bar per entry with its count and share; None when everything is 0."""
    total = math.fsum(counts.values())
    if total <= 0:
        return None
    left, right, top, bottom = 12.0, size.width - 12.0, 34.0, size.height - _MARGIN_BOTTOM
    slot = (right - left) / len(counts)
    bar_width = min(slot * 0.7, 90.0)
    highest = max(counts.values())
    bars = []
    for index, (name, count) in enumerate(counts.items()):
        bar_height = (bottom - top) * count / highest
        bars.append(
            Bar(
                x=round(left + slot * index + (slot - bar_width) / 2, 1),
                y=round(bottom - bar_height, 1),
                width=round(bar_width, 1),
                height=round(bar_height, 1),
                label=name,
                value_label=f"{count:,.0f}",
                share_label=f"{count / total:.1%}",
            )
        )
    return BarChart(
        title=title, width=size.width, height=size.height, left=left, right=right, bottom=bottom, bars=bars
    )


def lane_chart(
    title: str,
    events: Sequence[TimelineEvent],
    tracks: Sequence[str],
    colors: Mapping[str, int],
    *,
    start_s: float,
    end_s: float,
    width: float = 1000,
) -> LaneChart | None:
    """Spans of each track between two moments; `colors` maps the names of spans to the palette."""
    if end_s <= start_s:
        return None
    left, right, lane_height, gap = 96.0, width - 70.0, 22.0, 8.0
    scale = (right - left) / (end_s - start_s)
    lanes: list[Lane] = []
    shown: dict[str, int] = {}
    for track in tracks:
        spans: list[LaneSpan] = []
        own = [
            e
            for e in events
            if e.track == track and e.end_s > start_s and e.start_s < end_s and e.end_s > e.start_s
        ]
        for event in sorted(own, key=lambda e: (e.start_s, -e.end_s)):
            begin, end = max(event.start_s, start_s), min(event.end_s, end_s)
            x = left + (begin - start_s) * scale
            shown.setdefault(event.name, colors[event.name])
            span = LaneSpan(
                name=event.name,
                x=round(x, 1),
                width=round(max((end - begin) * scale, 0.6), 1),
                covered=(end - begin) * scale,
                color=colors[event.name],
                title=_span_title(event, start_s),
            )
            _append_or_merge(spans, span)
        busy = _covered([(max(e.start_s, start_s), min(e.end_s, end_s)) for e in own if e.name != "wait"])
        lanes.append(
            Lane(
                name=track,
                y=6 + len(lanes) * (lane_height + gap),
                spans=spans,
                busy_label=f"{busy / (end_s - start_s):.0%} busy",
            )
        )
    bottom = 6 + len(lanes) * (lane_height + gap)
    return LaneChart(
        title=title,
        width=width,
        height=bottom + 26,
        left=left,
        right=right,
        bottom=bottom,
        lane_height=lane_height,
        lanes=lanes,
        x_ticks=[
            Tick(position=round(left + second * scale, 1), label=_clock(second))
            for second in time_ticks(end_s - start_s, 8)
        ],
        legend=list(shown.items()),
    )


class _Frame:
    """The plot area of a chart over steps, and the way from values to coordinates."""

    def __init__(self, size: Size, x_range: tuple[float, float], y_range: tuple[float, float]) -> None:
        self.width, self.height = size
        self.left, self.right = _MARGIN_LEFT, size.width - _MARGIN_RIGHT
        self.top, self.bottom = _MARGIN_TOP, size.height - _MARGIN_BOTTOM
        self.x_range, self.y_range = x_range, y_range

    def x(self, value: float) -> float:
        low, high = self.x_range
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.left + share * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        """NaN stays NaN; what lies outside the range lies on its border."""
        if not math.isfinite(value):
            return math.nan
        low, high = self.y_range
        share = (min(max(value, low), high) - low) / (high - low)
        return round(self.bottom - share * (self.bottom - self.top), 1)

    def chart(
        self,
        title: str,
        *,
        as_percent: bool,
        hover: dict[str, Any],
        lines: Sequence[Line] = (),
        layers: Sequence[Layer] = (),
    ) -> StepChart:
        x_ticks = nice_ticks(*self.x_range, 6, integers=True)
        y_ticks = nice_ticks(*self.y_range, 5)
        return StepChart(
            title=title,
            width=self.width,
            height=self.height,
            left=self.left,
            right=self.right,
            top=self.top,
            bottom=self.bottom,
            x_ticks=[Tick(position=self.x(x), label=short_number(x)) for x in x_ticks],
            y_ticks=[
                Tick(position=self.y(y), label=f"{y:.0%}" if as_percent else short_number(y)) for y in y_ticks
            ],
            hover=hover,
            lines=list(lines),
            layers=list(layers),
        )


def nice_ticks(low: float, high: float, most: int, *, integers: bool = False) -> list[float]:
    """Round numbers from `low` to `high`, at most about `most` of them."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 2.5, 5, 10) if magnitude * factor >= rough * 0.999)
    if integers:
        step = max(1.0, float(math.ceil(step)))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def time_ticks(seconds: float, most: int) -> list[float]:
    """Moments from 0 to `seconds` at round seconds, minutes or hours, at most about `most` of them."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
    if seconds < 5:
        return nice_ticks(0.0, seconds, most)
    step = next((step for step in steps if seconds / step <= most), 86400 * math.ceil(seconds / 86400 / most))
    return [float(step * index) for index in range(int(seconds / step) + 1)]


def smoothed(points: Points, *, weight: float = 0.85) -> list[tuple[float, float]]:
    """Exponential moving average with the bias of its start taken out; gaps are passed over."""
    average, total, result = 0.0, 0.0, []
    for x, y in points:
        if not math.isfinite(y):
            continue
        average = weight * average + (1 - weight) * y
        total = weight * total + (1 - weight)
        result.append((x, average / total))
    return result


def short_number(value: float) -> str:
    """At most about five characters: `0.031`, `12.5`, `32k`, `1.1M`, `2e-5`."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    if size >= 100 or value == int(value):
        return f"{value:.0f}"
    if size < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.3g}"


def label_precisely(value: float, as_percent: bool) -> str:
    """As the tooltip shows it."""
    return f"{value:.1%}" if as_percent else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _is_noisy(points: Points) -> bool:
    """Goes up and down much more than it gets anywhere; a schedule or a counter does not."""
    values = [y for _, y in points if math.isfinite(y)]
    if len(values) < _SMOOTHED_FROM:
        return False
    way = math.fsum(abs(after - before) for before, after in pairwise(values))
    return way > 3 * (max(values) - min(values))


def _thinned(points: Points) -> list[tuple[float, float]]:
    """At most `_MAX_POINTS`, each the mean of its neighbors."""
    size = math.ceil(len(points) / _MAX_POINTS)
    if size <= 1:
        return list(points)
    thinned = []
    for first in range(0, len(points), size):
        part = points[first : first + size]
        known = [y for _, y in part if math.isfinite(y)]
        thinned.append((part[0][0], math.fsum(known) / len(known) if known else math.nan))
    return thinned


def _padded(low: float, high: float) -> tuple[float, float]:
    if low == high:
        margin = abs(low) * 0.1 or 1.0
        return low - margin, high + margin
    margin = (high - low) * 0.06
    # A quantity that is never negative keeps its floor at 0 instead of dipping below the axis.
    return (0.0 if 0 <= low < 3 * margin else low - margin), high + margin


def _hover(
    frame: _Frame, xs: Sequence[float], series: Sequence[tuple[str, int, Points]], as_percent: bool
) -> dict[str, Any]:
    """Positions and, at each, every series' label; None where it has no value."""
    rows = []
    for name, color, points in series:
        labels = {x: label_precisely(y, as_percent) for x, y in points if math.isfinite(y)}
        rows.append(
            {
                "name": name,
                "color": color % NUM_COLORS if color >= 0 else color,
                "values": [labels.get(x) for x in xs],
            }
        )
    return {"x": [[frame.x(x), f"step {short_number(x)}"] for x in xs], "series": rows}


def _path(points: Points) -> str:
    commands, is_drawing = [], False
    for x, y in points:
        if not math.isfinite(y):
            is_drawing = False
            continue
        commands.append(f"{'L' if is_drawing else 'M'}{x:g},{y:g}")
        is_drawing = True
    return "".join(commands)


def _append_or_merge(spans: list[LaneSpan], span: LaneSpan) -> None:
    """Keep the number of spans within what can be seen, however long the run was."""
    last = spans[-1] if spans else None
    if (
        last is None
        or span.x - last.x - last.width >= 0.5
        or (span.name != last.name and span.x > last.x + 0.5)
    ):
        spans.append(span)
    elif span.name == last.name:
        width = round(max(last.x + last.width, span.x + span.width) - last.x, 1)
        title = f"{last.name}, several times: zoom in with Perfetto"
        covered = last.covered + span.covered
        spans[-1] = LaneSpan(
            name=last.name, x=last.x, width=width, covered=covered, color=last.color, title=title
        )
    elif span.width > last.width:
        spans[-1] = span


def _covered(intervals: Sequence[tuple[float, float]]) -> float:
    """Length of the union."""
    length, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length


def _span_title(event: TimelineEvent, start_s: float) -> str:
    about = "".join(f", {name} {value}" for name, value in event.args.items())
    return f"{event.name}{about}: {event.end_s - event.start_s:.2f} s, from {event.start_s - start_s:.1f} s"


def _clock(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:g}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
