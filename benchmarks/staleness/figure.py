"""The experiment in one SVG: success curves, a panel per variant, and seconds and staleness beside them.

`draw_curves` is for other experiments.

Pure: summaries in, text out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import jinja2
from axes import Axes, Size, Tick, nice_ticks, short_number
from results import Spread, Summary

_TEMPLATE = Path(__file__).with_name("figure.svg.j2")
_CURVES = Size(360, 210)
_BARS = Size(240, 210)
_WIDE = Size(748, 250)
_GAP = 14.0
HELD_OUT = "Success on held-out tasks over training steps"
_TITLE = 44.0
"""Room above a panel's plot for its two lines of title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One alpha in a panel."""

    color: int
    path: str
    band: str
    """Closed path from the lowest to the highest seed."""
    dots: list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePanel:
    """One variant."""

    x: float = 0.0
    y: float = 0.0
    title: str
    subtitle: str
    chart: Axes
    curves: list[Curve]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaBar:
    """Mean as a bar, lowest to highest as a line on it."""

    color: int
    x: float
    width: float
    top: float
    low: float
    high: float
    label: str
    value_label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPanel:
    """One bar per alpha."""

    x: float
    y: float
    title: str
    subtitle: str
    left: float
    right: float
    bottom: float
    ticks: list[Tick]
    bars: list[AlphaBar]


def draw(summaries: Sequence[Summary], about: Mapping[str, str]) -> str:
    """The SVG. `about` has a subtitle for each variant; ValueError when there is nothing to draw."""
    if not summaries:
        raise ValueError("there is no finished run to draw")
    variants = list(dict.fromkeys(one.variant for one in summaries))
    alphas = sorted({one.alpha for one in summaries})
    colors = {alpha: index for index, alpha in enumerate(alphas)}
    panels = []
    for index, name in enumerate(variants):
        column, row = index % 2, index // 2
        panels.append(
            _curve_panel(
                name,
                about[name],
                {colors[one.alpha]: one.curve for one in summaries if one.variant == name},
                y_range=_common_range(one.curve for one in summaries),
                x=column * (_CURVES.width + _GAP),
                y=row * (_CURVES.height + _TITLE + _GAP),
            )
        )
    beside = 2 * (_CURVES.width + _GAP)
    bars = []
    if all(any(one.training_s for one in summaries if one.alpha == alpha) for alpha in alphas):
        bars.append(
            _bar_panel(
                "Seconds per step",
                "all variants; line: fastest to slowest",
                {alpha: _pooled(summaries, alpha, lambda one: one.training_s) for alpha in alphas},
                colors,
                label=lambda value: f"{value:.2f}",
                x=beside,
                y=0.0,
            )
        )
    bars.append(
        _bar_panel(
            "Staleness of the samples",
            "weight updates since sampling",
            {
                alpha: _pooled(
                    summaries, alpha, lambda one: Spread(one.staleness, one.staleness, one.staleness)
                )
                for alpha in alphas
            },
            colors,
            label=lambda value: f"{value:.1f}",
            x=beside,
            y=len(bars) * (_CURVES.height + _TITLE + _GAP),
        )
    )
    rows = max(2, -(-len(variants) // 2))
    return _rendered(
        heading=HELD_OUT,
        label="Held-out success over training steps under four values of alpha, for each variant; seconds "
        "per step and staleness beside it",
        panels=panels,
        bars=bars,
        legend=[f"alpha {alpha}" for alpha in alphas],
        num_seeds=sorted({one.num_seeds for one in summaries}),
        width=beside + _BARS.width,
        height=rows * (_CURVES.height + _TITLE + _GAP),
    )


def draw_curves(
    curves: Mapping[str, Mapping[int, Spread]],
    *,
    title: str,
    subtitle: str,
    num_seeds: int,
    heading: str = HELD_OUT,
) -> str:
    """One panel with a curve for each name."""
    panel = _curve_panel(
        title,
        subtitle,
        dict(enumerate(curves.values())),
        y_range=_common_range(curves.values()),
        size=_WIDE,
    )
    return _rendered(
        label=f"{heading}: {', '.join(curves)}",
        heading=heading,
        panels=[panel],
        bars=[],
        legend=list(curves),
        num_seeds=[num_seeds],
        width=_WIDE.width,
        height=_WIDE.height + _TITLE,
    )


def _rendered(*, legend: Sequence[str], **values: Any) -> str:
    widths = (max(84, 25 + 7 * len(label)) for label in legend)
    values["legend"] = list(zip(legend, accumulate(widths, initial=420), strict=False))
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_TEMPLATE.read_text()).render(title_height=_TITLE, **values)


def _curve_panel(
    name: str,
    subtitle: str,
    curves: Mapping[int, Mapping[int, Spread]],
    *,
    y_range: tuple[float, float],
    size: Size = _CURVES,
    x: float = 0.0,
    y: float = 0.0,
) -> CurvePanel:
    """`curves` by their colors."""
    steps = [step for curve in curves.values() for step in curve]
    if not steps:
        raise ValueError(f"{name}: no evaluation to draw")
    chart = Axes(size, (min(steps), max(steps)), y_range)
    drawn = []
    for color, curve in curves.items():
        mean, low, high = (
            [(chart.x(step), chart.y(pick(spread))) for step, spread in curve.items()]
            for pick in (_mean, _low, _high)
        )
        band = "M" + "L".join(f"{px:g},{py:g}" for px, py in [*low, *reversed(high)]) + "z"
        path = "M" + "L".join(f"{px:g},{py:g}" for px, py in mean)
        drawn.append(Curve(color=color, path=path, band=band, dots=mean))
    return CurvePanel(x=x, y=y, title=name, subtitle=subtitle, chart=chart, curves=drawn)


def _bar_panel(
    title: str,
    subtitle: str,
    spreads: Mapping[int, Spread],
    colors: Mapping[int, int],
    *,
    label: Callable[[float], str],
    x: float,
    y: float,
) -> BarPanel:
    left, right, top, bottom = 40.0, _BARS.width - 6.0, 20.0, _BARS.height - 28.0
    highest = max((spread.high for spread in spreads.values()), default=0.0) or 1.0
    slot = (right - left) / max(1, len(spreads))

    def height(value: float) -> float:
        return round(bottom - (bottom - top) * value / highest, 1)

    bars = [
        AlphaBar(
            color=colors[alpha],
            x=round(left + slot * (index + 0.2), 1),
            width=round(slot * 0.6, 1),
            top=height(spread.mean),
            low=height(spread.low),
            high=height(spread.high),
            label=f"alpha {alpha}",
            value_label=label(spread.mean),
        )
        for index, (alpha, spread) in enumerate(spreads.items())
    ]
    return BarPanel(
        x=x,
        y=y,
        title=title,
        subtitle=subtitle,
        left=left,
        right=right,
        bottom=bottom,
        ticks=[
            Tick(position=height(value), label=short_number(value)) for value in nice_ticks(0.0, highest, 4)
        ],
        bars=bars,
    )


def _pooled(summaries: Sequence[Summary], alpha: int, pick: Callable[[Summary], Spread | None]) -> Spread:
    """Over the variants of one alpha that have it."""
    spreads = [spread for one in summaries if one.alpha == alpha and (spread := pick(one)) is not None]
    return Spread(
        sum(one.mean for one in spreads) / len(spreads),
        min(one.low for one in spreads),
        max(one.high for one in spreads),
    )


def _common_range(curves: Iterable[Mapping[int, Spread]]) -> tuple[float, float]:
    """One axis for all panels, with a little room."""
    spreads = [spread for curve in curves for spread in curve.values()]
    low, high = min(one.low for one in spreads), max(one.high for one in spreads)
    return max(0.0, low - 0.03), min(1.0, high + 0.03)


def _mean(spread: Spread) -> float:
    return spread.mean


def _low(spread: Spread) -> float:
    return spread.low


def _high(spread: Spread) -> float:
    return spread.high
