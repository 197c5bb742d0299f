"""A plan as a table and as an SVG: throughput and idle shares over the split of the devices. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from operator import attrgetter
from typing import Any

import jinja2

from envsdk.view.planning.candidates import Candidate, Row, best, cost_per_million

_HEADS = (
    "  sampling",
    "training",
    "alpha",
    "group",
    "spare",
    "running",
    "s/step",
    "episodes/s",
    "tokens/s",
    "trainer idle",
    "engines idle",
    "envs idle",
    "staleness",
    "thrown away",
)


def table(
    rows: Sequence[Row], *, devices: int, cost_per_hour: float | None = None, most: int | None = None
) -> list[str]:
    """Lines of text: the best rows first, the very best with a star. `most` rows are shown."""
    chosen = best(rows)
    ordered = sorted(rows, key=lambda row: (row is not chosen, -row.trajectories_per_s))
    heads = [*_HEADS, *(["per M tokens"] if cost_per_hour is not None else [])]
    lines = [" ".join(heads)]
    for row in ordered[:most]:
        cells = _cells(row, devices, cost_per_hour)
        mark = "*" if row is chosen else " "
        padded = [cell.rjust(len(head)) for cell, head in zip(cells, heads, strict=False)]
        lines.append(mark + " ".join(padded)[1:] + (f"  {row.problem}" if row.problem else ""))
    if most is not None and len(ordered) > most:
        lines.append(f"and {len(ordered) - most} more")
    return lines


def comparison(rows: Sequence[Row], devices: int) -> list[str]:
    """Lines on sampling and training in turns on all devices, against dividing them; none where one was not
    tried."""
    ways = [[row for row in rows if row.candidate.is_shared is is_shared] for is_shared in (True, False)]
    if not all(ways):
        return []
    shared, divided = (best(way) or way[0] for way in ways)
    split = f"{divided.candidate.sampling_devices} and {devices - divided.candidate.sampling_devices}"
    lines = [
        f"in turns on all {devices} devices: {_rate(shared)}",
        f"divided, {split}, alpha {divided.candidate.async_generation_ratio:g}: {_rate(divided)}",
    ]
    rates = shared.trajectories_per_s, divided.trajectories_per_s
    if all(rates):
        faster = "dividing them" if rates[1] >= rates[0] else "turns"
        lines.append(f"{faster}: {max(rates) / min(rates):.2f} times as fast")
    return lines


def _rate(row: Row) -> str:
    return row.problem or f"{row.trajectories_per_s:,.2f} episodes/s"


def _cells(row: Row, devices: int, cost_per_hour: float | None) -> list[str]:
    candidate, found = row.candidate, row.prediction
    bound = "" if candidate.max_staleness is None else f"/{candidate.max_staleness}"
    cells = [
        "all" if candidate.is_shared else str(candidate.sampling_devices),
        "all" if candidate.is_shared else str(devices - candidate.sampling_devices),
        f"{candidate.async_generation_ratio:g}{bound}",
        str(candidate.group_size),
        f"{candidate.num_groups_redundancy}x{candidate.group_size_redundancy}",
        str(candidate.infer_batch_size),
    ]
    if found is None:
        return cells
    cells += [
        f"{found.step_s:.2f}",
        f"{found.trajectories_per_s:,.2f}",
        f"{found.tokens_per_s:,.0f}",
        f"{found.trainer_idle:.0%}",
        f"{found.engine_idle:.0%}",
        f"{found.slot_idle:.0%}",
        f"{found.staleness_mean:.2f} <={found.staleness_max}",
        f"{found.waste:.1%}",
    ]
    if cost_per_hour is not None:
        money = cost_per_million(row, devices, cost_per_hour)
        cells.append("-" if money is None else f"{money:,.2f}")
    return cells


_WIDTH, _HEIGHT = 460.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 446.0, 14.0, 252.0
_SHARES = {"trainer idle": "trainer_idle", "engines idle": "engine_idle", "leases thrown away": "waste"}


def draw(rows: Sequence[Row], *, devices: int, title: str) -> str | None:
    """The SVG; None when fewer than two splits were simulated."""
    chosen = best(rows)
    known = [row for row in rows if row.prediction is not None and not row.candidate.is_shared]
    if chosen is None or not known:
        return None
    # The grid has the first values of the other dimensions; the best row may have others.
    shown = [row for row in known if _others(row.candidate) == _others(known[0].candidate)]
    splits = sorted({row.candidate.sampling_devices for row in shown})
    if len(splits) < 2:
        return None
    shown.sort(key=lambda row: row.candidate.sampling_devices)
    alphas = sorted({row.candidate.async_generation_ratio for row in shown})
    by_alpha = {
        alpha: [row for row in shown if row.candidate.async_generation_ratio == alpha] for alpha in alphas
    }
    highest = max(row.trajectories_per_s for row in rows)
    alpha = chosen.candidate.async_generation_ratio
    if alpha not in by_alpha:
        alpha = alphas[-1]

    def x(row: Row) -> float:
        share = (row.candidate.sampling_devices - splits[0]) / (splits[-1] - splits[0])
        return round(_LEFT + (_RIGHT - _LEFT) * share, 1)

    def relative(row: Row) -> float:
        return row.trajectories_per_s / highest

    def line(color: int, label: str, found: Sequence[Row], value: Callable[[Row], float]) -> dict[str, Any]:
        dots = [(x(row), _y(value(row))) for row in found]
        path = "M" + "L".join(f"{x:g},{y:g}" for x, y in dots)
        return {"color": color % 6, "label": label, "dots": dots, "path": path}

    one_per_split = list({row.candidate.sampling_devices: row for row in shown}.values())
    x_ticks = [
        (x(row), str(row.candidate.sampling_devices)) for row in one_per_split[:: max(1, len(splits) // 8)]
    ]
    panels = [
        {
            "title": "Trained episodes per second",
            "x": 0.0,
            "lines": [
                line(color, f"alpha {alpha:g}", found, relative)
                for color, (alpha, found) in enumerate(by_alpha.items())
            ],
            "y_ticks": [(_y(share / 4), f"{highest * share / 4:.3g}") for share in range(5)],
            "star": None if chosen.candidate.is_shared else (x(chosen), _y(relative(chosen))),
        },
        {
            "title": f"Shares of the time, alpha {alpha:g}",
            "x": _WIDTH,
            "lines": [
                line(color, label, by_alpha[alpha], attrgetter(f"prediction.{name}"))
                for color, (label, name) in enumerate(_SHARES.items())
            ],
            "y_ticks": [(_y(share / 4), f"{share / 4:.0%}") for share in range(5)],
            "star": None,
        },
    ]
    template = files("envsdk.view.planning").joinpath("figure.svg.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(template).render(
        panels=panels, x_ticks=x_ticks, title=title, devices=devices, width=2 * _WIDTH, height=_HEIGHT,
        left=_LEFT, right=_RIGHT, top=_TOP, bottom=_BOTTOM,
    )  # fmt: skip


def _others(candidate: Candidate) -> Candidate:
    """What distinguishes it besides split and alpha."""
    return replace(candidate, sampling_devices=0, async_generation_ratio=0.0)


def _y(share: float) -> float:
    return round(_BOTTOM - (_BOTTOM - _TOP) * share, 1)
