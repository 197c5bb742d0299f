"""`envsdk train FILE [key=value ...]`: train a policy as a YAML file says."""

from __future__ import annotations

import sys
from typing import Annotated

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.processes.garbage import importing
from envsdk.base.settings.options import Argument, Option, Options


class TrainOptions(Options):
    """What `envsdk train` takes."""

    source: Annotated[str, Argument("FILE")]
    """YAML file. A bare name is looked up here, then among the shipped examples."""
    overrides: Annotated[tuple[str, ...], Argument("KEY=VALUE")] = ()
    """Replace single keys: max_steps=20 actor_infer.num_engines=2 ..."""
    preset: Annotated[str | None, Option(metavar="NAME")] = None
    """Replace what FILE says: `tiny` runs it with the tiny policy and small batches, on a CPU."""
    explain: Annotated[bool, Option("--explain")] = False
    """Print every value, where it comes from and what follows from it; start nothing. Ends with 2 where the
    file contradicts itself or its model; with 0 where only this machine lacks something, which it lists."""


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

    from envsdk.config.start_checks import check_packages

    check_packages(loaded.config)

    with importing():
        from envsdk.explorers.start import run

    if loaded.preset_notes:
        say("\n".join([f"preset {options.preset}:", *(f"- {note}" for note in loaded.preset_notes)]))
    run(loaded)


app, main = command_of(TrainOptions, command, name="envsdk train")

if __name__ == "__main__":
    sys.exit(main())
