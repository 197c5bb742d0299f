"""What is said of a list of tasks before a run plays it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.terminal.boxes import resolved
from envsdk.envs.terminal.env import TerminalArguments
from envsdk.envs.terminal.harbor.folder import CONFIG, HarborTask, strays
from envsdk.envs.terminal.harbor.support import remarks
from envsdk.envs.terminal.task_list import folder_of


def notes(**keywords: Any) -> list[str]:
    """What is said before a run trains on tasks of a folder."""
    args = TerminalArguments.model_validate(keywords)
    if (data := args.data) is None:
        return []
    found = args.task_list()
    lines = counted(found.tasks, has_network=args.has_network, variables=args.variables or {})
    said = [f"{data}: {line}" for line in (*lines, *strays(folder_of(data)))]
    if found.refused:
        said.append(
            f"{data}: {len(found.refused)} tasks are left out (`python -m envsdk.envs.terminal {data}`)"
        )
    if unknown := sum(not task.has_solution for task in found.tasks):
        said.append(
            f"{data}: {unknown} of {len(found.tasks)} tasks have no solution that shows them to be sound"
        )
    return said


def counted(
    tasks: Iterable[HarborTask], *, has_network: bool, variables: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Remarks on tasks, each once with the number and the first of the tasks that it is about."""
    about: dict[str, list[str]] = {}
    for task in tasks:
        for line in dict.fromkeys([*remarks(task, has_network=has_network), *_lacking(task, variables)]):
            about.setdefault(line, []).append(task.id)
    ordered = sorted(about.items(), key=lambda item: -len(item[1]))
    return [
        f"{line} ({ids[0]})" if len(ids) == 1 else f"{line} ({len(ids)} tasks, such as {ids[0]})"
        for line, ids in ordered
    ]


def _lacking(task: HarborTask, variables: Mapping[str, str]) -> Iterator[str]:
    """Variables that a task takes from its host and is not given."""
    envs: list[tuple[str, Mapping[str, str]]] = [
        ("environment.env", task.box.config.env),
        ("solution.env", task.config.solution.env),
    ]
    for stage in task.stages:
        envs.append(("verifier.env", stage.verifier.env))
        if stage.verifier.box is not None:
            envs.append(("verifier.environment.env", stage.verifier.box.config.env))
    for where, env in envs:
        try:
            resolved(env, variables, f"{CONFIG}: {where}")
        except ConfigurationError as error:
            yield str(error)
