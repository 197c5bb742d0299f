"""A plan's rows as a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from envsdk.view.planning.candidates import Row, best, cost_per_million

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
