"""A plan as an SVG: throughput and idle shares over the split of the devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import jinja2

from envsdk.planning.candidates import Row, best

_WIDTH, _HEIGHT = 460.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 446.0, 14.0, 252.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve."""

    color: int
    label: str
    path: str
    dots: list[tuple[float, float]]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart."""

    title: str
    x: float
    lines: list[Line]
    y_ticks: list[tuple[float, str]]
    x_ticks: list[tuple[float, str]]
    star: tuple[float, float] | None


def draw(rows: Sequence[Row], *, devices: int, title: str) -> str | None:
    """The SVG; None when fewer than two splits were simulated."""
    chosen = best(rows)
    known = [row for row in rows if row.prediction is not None and not row.candidate.is_shared]
    if chosen is None or chosen.prediction is None:
        return None
    like = chosen.candidate
    fields = (
        "group_size",
        "infer_batch_size",
        "num_groups_redundancy",
        "group_size_redundancy",
        "max_staleness",
    )
    first = known[0].candidate if known else like
    # The grid has the first values of the other dimensions; the best row may have others.
    shown = [row for row in known if all(getattr(row.candidate, f) == getattr(first, f) for f in fields)]
    splits = sorted({row.candidate.sampling_devices for row in shown})
    if len(splits) < 2:
        return None
    alphas = sorted({row.candidate.async_generation_ratio for row in shown})
    highest = max(row.trajectories_per_s for row in rows)
    by_alpha = {
        alpha: sorted(
            (row for row in shown if row.candidate.async_generation_ratio == alpha),
            key=lambda row: row.candidate.sampling_devices,
        )
        for alpha in alphas
    }
    throughput = [
        _line(
            index,
            f"alpha {alpha:g}",
            [(row.candidate.sampling_devices, row.trajectories_per_s / highest) for row in found],
            splits,
        )
        for index, (alpha, found) in enumerate(by_alpha.items())
    ]
    of_best = by_alpha.get(like.async_generation_ratio) or by_alpha[alphas[-1]]
    idle = [
        _line(
            color,
            label,
            [(row.candidate.sampling_devices, getattr(row.prediction, name)) for row in of_best],
            splits,
        )
        for color, (label, name) in enumerate(
            (
                ("trainer idle", "trainer_idle"),
                ("engines idle", "engine_idle"),
                ("leases thrown away", "waste"),
            )
        )
    ]
    alpha = of_best[0].candidate.async_generation_ratio
    x_ticks = [(_x(split, splits), str(split)) for split in _few(splits)]
    star = None
    if not like.is_shared:
        star = (_x(like.sampling_devices, splits), _y(chosen.trajectories_per_s / highest))
    panels = [
        Panel(
            title="Trained episodes per second",
            x=0.0,
            lines=throughput,
            y_ticks=[(_y(share / 4), f"{highest * share / 4:.3g}") for share in range(5)],
            x_ticks=x_ticks,
            star=star,
        ),
        Panel(
            title=f"Shares of the time, alpha {alpha:g}",
            x=_WIDTH,
            lines=idle,
            y_ticks=[(_y(share / 4), f"{share / 4:.0%}") for share in range(5)],
            x_ticks=x_ticks,
            star=None,
        ),
    ]
    template = files("envsdk.planning").joinpath("figure.svg.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(template).render(
        panels=panels, title=title, devices=devices, width=2 * _WIDTH, height=_HEIGHT,
        left=_LEFT, right=_RIGHT, top=_TOP, bottom=_BOTTOM,
    )  # fmt: skip


def _line(color: int, label: str, points: Sequence[tuple[int, float]], splits: Sequence[int]) -> Line:
    dots = [(_x(split, splits), _y(value)) for split, value in points]
    path = "M" + "L".join(f"{x:g},{y:g}" for x, y in dots)
    return Line(color=color % 6, label=label, path=path, dots=dots)


def _few(splits: Sequence[int]) -> Sequence[int]:
    return splits[:: max(1, len(splits) // 8)]


def _x(split: float, splits: Sequence[int]) -> float:
    low, high = splits[0], splits[-1]
    return round(_LEFT + (_RIGHT - _LEFT) * (split - low) / (high - low), 1)


def _y(share: float) -> float:
    return round(_BOTTOM - (_BOTTOM - _TOP) * share, 1)
