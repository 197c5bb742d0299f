"""Which tasks of Harbor's format can be played here, and why others cannot."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Options


class TasksOptions(Options):
    data: Annotated[str | None, Argument("FOLDER")] = None
    """Folder with tasks at any depth, or a name of a data set of Harbor's; the shipped tasks if absent."""
    network: bool = False
    """The sandboxes are to have a network."""
    backend: str = "bubblewrap"
    """The sandboxes' backend; `bubblewrap` knows fewer instructions of Dockerfiles than the others."""


def command(options: TasksOptions) -> int:
    """List the tasks of Harbor's format below FOLDER: how each is checked, or by which key it is refused.

    The exit code is 1 where one is refused.
    """
    from envsdk.envs.terminal.harbor.folder import strays
    from envsdk.envs.terminal.notes import counted
    from envsdk.envs.terminal.shipped import shipped_folder
    from envsdk.envs.terminal.task_list import folder_of, read_tasks

    root: Path = shipped_folder() if options.data is None else folder_of(options.data)
    tasks, refused = read_tasks(root, has_network=options.network, backend=options.backend)
    for line in strays(root):
        say(f"warning: {line}", err=True)
    kinds: Counter[str] = Counter()
    for task in tasks:
        kind = "in a separate box" if task.is_separate else "in place"
        steps = f", {len(task.stages)} steps" if len(task.stages) > 1 else ""
        unsolved = "" if task.has_solution else ", no solution"
        kinds[kind] += 1
        say(f"{task.id}: checked {kind}{steps}{unsolved}")
    for name, why in refused.items():
        say(f"{name}: REFUSED: {why}")
    for line in counted(tasks, has_network=options.network):
        say(f"  {line}")
    said = ", ".join(f"{number} checked {kind}" for kind, number in kinds.most_common())
    say(f"{len(tasks) + len(refused)} tasks: {said or 'none can be played'}; {len(refused)} refused")
    return 1 if refused else 0


app, main = command_of(TasksOptions, command, name="python -m envsdk.envs.terminal")

if __name__ == "__main__":
    sys.exit(main())
