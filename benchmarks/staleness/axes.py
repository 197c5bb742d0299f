"""The axes of a panel: where values over steps are drawn, and round numbers beside them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

_MARGIN_LEFT = 46.0
_MARGIN_RIGHT = 18.0
_MARGIN_TOP = 12.0
_MARGIN_BOTTOM = 28.0


class Size(NamedTuple):
    """Of a chart, in its own units."""

    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A number beside an axis."""

    position: float
    label: str


class Axes:
    """The plot area of a panel whose y values are shares, and the way from values to coordinates."""

    def __init__(self, size: Size, x_range: tuple[float, float], y_range: tuple[float, float]) -> None:
        self.width, self.height = size
        self.left, self.right = _MARGIN_LEFT, size.width - _MARGIN_RIGHT
        self.top, self.bottom = _MARGIN_TOP, size.height - _MARGIN_BOTTOM
        self.x_range, self.y_range = x_range, y_range
        self.x_ticks = [
            Tick(position=self.x(x), label=short_number(x)) for x in nice_ticks(*x_range, 6, integers=True)
        ]
        self.y_ticks = [Tick(position=self.y(y), label=f"{y:.0%}") for y in nice_ticks(*y_range, 5)]

    def x(self, value: float) -> float:
        low, high = self.x_range
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.left + share * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        """A value outside the range is drawn on its border."""
        low, high = self.y_range
        share = (min(max(value, low), high) - low) / (high - low)
        return round(self.bottom - share * (self.bottom - self.top), 1)


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
