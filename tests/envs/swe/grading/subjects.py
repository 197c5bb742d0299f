"""The tasks that patches are written for: those that ship, and those of repositories made for this purpose.

repositories/NAME.toml      a small repository and its tasks, written as those that ship. Its tests use what
                            shipped ones do not: fixtures, mocks, files, captured output, coroutines ...
repositories/outcomes.json  recorded by `python -m tests.envs.swe.grading.subjects`
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath

from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.shipped import read_tasks, shipped_tasks
from envsdk.envs.swe.tasks.task import Task
from envsdk.envs.swe.tasks.trees import base_tree, solution_of
from envsdk.rewards.sandbox import open_backend

REPOSITORIES = Path(__file__).parent / "repositories"
OUTCOMES = REPOSITORIES / "outcomes.json"
Tree = Mapping[str, str]
"""Text files by path."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A task with what a patch of it is written from."""

    task: Task
    base: Tree
    """As the agent gets it: with the bug, without the hidden tests."""
    gold: Tree
    """With the gold patch."""
    package: str

    @property
    def name(self) -> str:
        return self.task.instance_id

    @property
    def init(self) -> str:
        return f"{self.package}/__init__.py"

    @property
    def modules(self) -> list[str]:
        """Python files of the package."""
        return [path for path in self.base if path.startswith(f"{self.package}/") and path.endswith(".py")]

    @property
    def repaired(self) -> list[str]:
        """What the gold patch changes."""
        return [path for path in self.gold if self.gold[path] != self.base.get(path)]

    def patch(self, tree: Tree) -> str:
        """What makes `tree` of the base; files that `tree` lacks stay."""
        return diff({path: text for path, text in self.base.items() if path in tree}, tree)


@cache
def subjects() -> Mapping[str, Subject]:
    """All of them, by the id of their task."""
    return {task.instance_id: _subject(task) for task in (*shipped_tasks(), *made_tasks())}


def _subject(task: Task) -> Subject:
    folder = base_tree(task)
    base = {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }
    gold = {path: after for path, (_, after) in solution_of(folder, task.gold_patch).items()}
    return Subject(task=task, base=base, gold={**base, **gold}, package=PurePosixPath(task.repo).name)


def hidden_tests(task: Task) -> Tree:
    """The files that the test patch brings."""
    return {path: after for path, (_, after) in solution_of(base_tree(task), task.test_patch).items()}


@cache
def made_tasks() -> tuple[Task, ...]:
    outcomes = json.loads(OUTCOMES.read_text()) if OUTCOMES.is_file() else {}
    tasks = (task for file in sorted(REPOSITORIES.glob("*.toml")) for task in read_tasks(file))
    return tuple(
        replace(task, **{name: tuple(tests) for name, tests in outcomes.get(task.instance_id, {}).items()})
        for task in tasks
    )


async def record() -> dict[str, dict[str, list[str]]]:
    """Which tests pass with the gold patch, and which of them fail without it."""
    from tests.envs.swe.grading.plain import grade_plainly

    backend, found = open_backend("bubblewrap"), {}
    for task in made_tasks():
        gold = (await grade_plainly(task, task.gold_patch, backend)).passed
        base = (await grade_plainly(task, "", backend)).passed
        found[task.instance_id] = {"fail_to_pass": sorted(gold - base), "pass_to_pass": sorted(gold & base)}
    await backend.aclose()
    return found


if __name__ == "__main__":
    OUTCOMES.write_text(json.dumps(asyncio.run(record()), indent=1) + "\n")
