"""The tasks that patches are written for: those that ship, and those of repositories made for this purpose.

repositories/NAME/          a small repository as it should be, whose tests use what the shipped ones do not:
                            fixtures, mocks, files, captured output, coroutines, helper assertions ...
repositories/NAME.toml      its tasks, written as those that ship
repositories/outcomes.json  recorded by `python -m tests.envs.swe.grading.subjects`
"""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from envsdk.envs.swe.tasks import Task, TestPlan, TreeSource
from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.shipped import shipped_tasks
from envsdk.envs.swe.tasks.solution import solution_of
from envsdk.envs.swe.tasks.task import TaskLimits
from envsdk.envs.swe.tasks.trees import base_tree
from envsdk.sandbox import open_backend

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
    return tuple(task for file in sorted(REPOSITORIES.glob("*.toml")) for task in _read(file, outcomes))


def _read(file: Path, outcomes: Mapping[str, Mapping[str, list[str]]]) -> Iterator[Task]:
    folder, described = file.with_suffix(""), tomllib.loads(file.read_text())
    for entry in described["tasks"]:
        fixed = {edit["file"]: (folder / edit["file"]).read_text() for edit in entry["edits"]}
        buggy = dict(fixed)
        for edit in entry["edits"]:
            assert buggy[edit["file"]].count(edit["fixed"]) == 1, edit["fixed"]
            buggy[edit["file"]] = buggy[edit["file"]].replace(edit["fixed"], edit["buggy"])
        hidden = {path: (folder / path).read_text() for path in entry["hidden"]}
        name = f"{folder.name}__{entry['id']}"
        recorded = outcomes.get(name, {})
        yield Task(
            instance_id=name,
            repo=f"made/{folder.name}",
            source=TreeSource(folder=folder),
            problem_statement=entry["issue"].strip() + "\n",
            gold_patch=diff(buggy, fixed),
            test_patch=diff({}, hidden),
            setup_patch=diff({**fixed, **hidden}, buggy),
            fail_to_pass=tuple(recorded.get("fail_to_pass", ())),
            pass_to_pass=tuple(recorded.get("pass_to_pass", ())),
            tests=TestPlan(paths=("tests",)),
            limits=TaskLimits(timeout_s=60.0, memory_mb=1024),
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
