"""`envsdk plan FILE`: predict throughput, idle shares, staleness and waste; find the best configuration."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import PositiveFloat

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Count, Option, Options, at_least
from envsdk.config.reading import find_config
from envsdk.contracts.failures import EnvsdkError


class PlanOptions(Options):
    """What `envsdk plan` takes."""

    file: Annotated[Path, Argument("FILE")]
    """A plan (docs/planner.md), or the configuration of a run, with --measured."""
    devices: Annotated[int, at_least(2)]
    """Devices to split between sampling and training."""
    measured: Annotated[Path | None, Option(metavar="RUN_DIR")] = None
    """A run's folder: episodes and timings are taken from it."""
    cost: Annotated[PositiveFloat | None, Option(metavar="MONEY")] = None
    """What a device costs per hour, in any currency: adds money per million trained tokens."""
    steps: Count = 12
    """Training steps to simulate of each configuration, after its warm-up."""
    rows: Count = 16
    """Rows to show."""
    seed: int = 0
    """Seed of the drawn durations."""
    plot: Annotated[Path | None, Option(metavar="FILE.svg")] = None
    """Where the plot goes; FILE with the ending .svg, in this folder, when absent."""


def plan(options: PlanOptions) -> None:
    """Predict what a run does on so many devices, and find the best way to split and set them.

    The ledger and the router of a real run decide in virtual time; nothing is started.
    """
    from envsdk.view.planning.candidates import best
    from envsdk.view.planning.report import comparison, draw, table
    from envsdk.view.planning.settings import read_plan

    began = time.monotonic()
    planned, measured = read_plan(
        find_config(options.file),
        devices=options.devices,
        measured=options.measured,
        seed=options.seed,
        num_steps=options.steps,
    )
    if measured is not None:
        say(
            f"measured: {measured.num_episodes} episodes, {measured.num_steps} steps of {options.measured}, "
            f"{measured.step_s:.2f} s per step; reply times are fitted within {measured.error:.0%} (median)"
        )
    with ProcessPoolExecutor() as pool:
        rows = planned.explore(partial(pool.map, planned.evaluate))
    say(f"{len(rows)} configurations, {options.steps} steps each, in {time.monotonic() - began:.0f} s\n")
    for line in table(rows, devices=options.devices, cost_per_hour=options.cost, most=options.rows):
        say(line)
    if compared := comparison(rows, options.devices):
        say("\n" + "\n".join(compared))
    if best(rows) is None:
        raise EnvsdkError("no configuration delivers batches: the last column says why")
    svg = draw(rows, devices=options.devices, title=f"{options.file.name} on {options.devices} devices")
    if svg is not None:
        plot = options.plot or Path(options.file.stem + ".svg")
        plot.write_text(svg, encoding="utf-8")
        say(f"\nplot: {plot}")


app, main = command_of(PlanOptions, plan, name="envsdk plan")

if __name__ == "__main__":
    sys.exit(main())
