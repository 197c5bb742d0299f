"""`envsdk train FILE [key=value ...]`: train a policy as a YAML file says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Option, Options

if TYPE_CHECKING:
    from envsdk.config import RunConfig


class TrainOptions(Options):
    """What `envsdk train` takes."""

    source: Annotated[str, Argument("FILE")]
    """YAML file. A bare name is looked up here, then among the shipped examples."""
    overrides: Annotated[tuple[str, ...], Argument("KEY=VALUE")] = ()
    """Replace single keys: max_steps=20 actor_infer.num_engines=2 ..."""
    preset: Annotated[str | None, Option(metavar="NAME")] = None
    """Replace what FILE says: `tiny` runs it with the tiny policy and small batches, on a CPU."""
    explain: Annotated[bool, Option("--explain")] = False
    """Print every value, where it comes from and what follows from it; start nothing."""


def command(options: TrainOptions) -> None:
    """Train a policy by reinforcement learning on the environments that FILE names.

    Everything the run writes goes to the folder OUTPUT_DIR/EXP_NAME named in FILE.
    """
    from envsdk.config import explain as explain_config
    from envsdk.config import load_config

    loaded = load_config(options.source, options.overrides, preset=options.preset, to_explain=options.explain)
    if options.explain:
        say(explain_config(loaded))
        return

    from envsdk.base.settings.extras import require

    require("this run", *_needed_modules(loaded.config))

    from envsdk.explorers.start import run

    if loaded.preset_notes:
        say("\n".join([f"preset {options.preset}:", *(f"- {note}" for note in loaded.preset_notes)]))
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


app, main = command_of(TrainOptions, command, name="envsdk train")

if __name__ == "__main__":
    sys.exit(main())
