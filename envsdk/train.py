"""`envsdk train FILE [key=value ...]`: train a policy as a YAML file says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from envsdk.display.command_line import run_app
from envsdk.display.terminal import say

if TYPE_CHECKING:
    from envsdk.config import RunConfig

app = typer.Typer(add_completion=False)


@app.command()
def train(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="YAML file. A bare name is looked up here, then among the shipped examples.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Replace single keys: max_steps=20 actor_infer.num_engines=2 ..."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Replace what FILE says: `tiny` runs it with the tiny policy and small batches, on a CPU.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Print every value, where it comes from and what follows from it; start nothing.",
        ),
    ] = False,
) -> None:
    """Train a policy by reinforcement learning on the environments that FILE names.

    Everything the run writes goes to the folder OUTPUT_DIR/EXP_NAME named in FILE.
    """
    from envsdk.config import explain as explain_config
    from envsdk.config import load_config

    loaded = load_config(source, overrides or [], preset=preset, to_explain=explain)
    if explain:
        say(explain_config(loaded))
        return

    from envsdk.settings.extras import require

    require("this run", *_needed_modules(loaded.config))

    from envsdk.job.start import run

    if loaded.preset_notes:
        say("\n".join([f"preset {preset}:", *(f"- {note}" for note in loaded.preset_notes)]))
    run(loaded)


def _needed_modules(config: RunConfig) -> list[str]:
    """What every run needs, and what the settings of its engine, its trainer and its trackers declare."""
    from envsdk.config.plugins import settings_model
    from envsdk.tracking import load_tracker

    plugins = [
        settings_model("engines", config.actor_infer.strategy_args.strategy_name, "strategy_config"),
        settings_model("trainers", config.actor_train.strategy_args.strategy_name, "strategy_config"),
        *map(load_tracker, config.trackers),
    ]
    more = {module for plugin in plugins for module in getattr(plugin, "needs", ())}
    return ["ray", "torch", "transformers", "safetensors", *sorted(more)]


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="envsdk train")


if __name__ == "__main__":
    sys.exit(main())
