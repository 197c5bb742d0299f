"""`python -m envsdk.envs.swe.tasks FILE`: validate the tasks of a data set, or those that ship."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from envsdk.display.command_line import run_app
from envsdk.display.terminal import say

app = typer.Typer(add_completion=False)


@app.command()
def command(
    data: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="JSONL or Parquet; absent, the tasks that ship.")
    ] = None,
    repositories: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Clones named owner__name; beside the file if absent.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="`train` or `held_out` only.")] = None,
    backend: Annotated[str, typer.Option(help="The sandbox.")] = "bubblewrap",
) -> None:
    """Grade the gold patch and an empty one of every task, and look for copies of its solution."""
    import asyncio

    from envsdk.envs.swe.evaluator import Validation, validate
    from envsdk.envs.swe.tasks.loaders import load_tasks
    from envsdk.envs.swe.tasks.shipped import shipped_tasks
    from envsdk.failures import ConfigurationError
    from envsdk.sandbox import open_backend

    if split not in (None, "train", "held_out"):
        raise ConfigurationError(f"--split: must be train or held_out, not {split!r}")
    tasks = shipped_tasks(split) if data is None else load_tasks(data, repositories=repositories, split=split)

    def show(validation: Validation) -> None:
        hidden = f"sound, {validation.hidden_bits:.0f} bits hidden"
        if validation.weak:
            hidden += ": weak, a rewarded patch may have forged its verdict"
        say(f"{validation.instance_id}: {validation.problem or hidden}", flush=True)

    async def run() -> list[Validation]:
        sandboxes = open_backend(backend)
        try:
            await sandboxes.probe()
            return await validate(tasks, sandboxes, on_done=show)
        finally:
            await sandboxes.aclose()

    found = asyncio.run(run())
    sound = sum(validation.sound for validation in found)
    weak = sum(validation.sound and validation.weak for validation in found)
    say(f"{sound} of {len(found)} tasks are sound" + (f", {weak} of them weak" if weak else ""))
    if sound < len(found):
        raise typer.Exit(1)


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="python -m envsdk.envs.swe.tasks")


if __name__ == "__main__":
    sys.exit(main())
