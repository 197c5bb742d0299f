"""`python -m envsdk.envs.swe.make_tasks --package humanize==4.17.0 --out DIR`."""

from __future__ import annotations

import asyncio
import sys

from envsdk.base.display.model_command import command_of
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.make_tasks.options import MakeTasksOptions


def command(options: MakeTasksOptions) -> None:
    """Make SWE tasks of packages of the package index, or of a clone's commits. Killed, the same command goes
    on where it stopped."""
    from envsdk.envs.swe.make_tasks.command import run, run_of_commits

    if (options.commits is None) == (not options.packages):
        raise ConfigurationError("give either --package NAME==VERSION or --commits CLONE")
    if options.commits is not None:
        asyncio.run(run_of_commits(options.commits, options))
    else:
        asyncio.run(run(options))


app, main = command_of(MakeTasksOptions, command, name="python -m envsdk.envs.swe.make_tasks")

if __name__ == "__main__":
    sys.exit(main())
