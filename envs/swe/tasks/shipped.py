"""The tasks that ship with envsdk: small repositories written for it, each with several planted bugs.

repositories/NAME.toml      [[tasks]]: the issue, the edits that plant the bug, the test files that are hidden
                            [files]: the repository as it should be, with all its tests
repositories/outcomes.json  the tests of each repository, and which of them each bug fails; recorded by
                            `python -m tests.envs.swe.recorded_outcomes`
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.task import Split, Task, TaskLimits, TestPlan, TextSource

REPOSITORIES = Path(__file__).parent / "repositories"
OUTCOMES = REPOSITORIES / "outcomes.json"
_TIMEOUT_S = 60.0
_MEMORY_MB = 1024


def shipped_tasks(split: Split | str | None = None) -> tuple[Task, ...]:
    """The shipped tasks of `split` (`train` or `held_out`), or all of them; always in the same order."""
    wanted = None if split is None else Split(split)
    return tuple(task for task in _all_tasks() if wanted is None or task.split is wanted)


@cache
def _all_tasks() -> tuple[Task, ...]:
    outcomes = json.loads(OUTCOMES.read_text())
    return tuple(task for file in repositories() for task in read_tasks(file, **outcomes[file.stem]))


def repositories() -> list[Path]:
    """The file of each repository, by name."""
    return sorted(REPOSITORIES.glob("*.toml"))


def read_tasks(
    file: Path, *, tests: Sequence[str] = (), fail_to_pass: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Iterator[Task]:
    """The tasks of one repository.

    Args:
        tests: Ids of all its tests.
        fail_to_pass: Those that each bug fails, by the task's `id`.
    """
    described = tomllib.loads(file.read_text(encoding="utf-8"))
    files = described["files"]
    for entry in described["tasks"]:
        fixed = {edit["file"]: files[edit["file"]] for edit in entry["edits"]}
        buggy = dict(fixed)
        for edit in entry["edits"]:
            buggy[edit["file"]] = _replaced(buggy[edit["file"]], edit["fixed"], edit["buggy"])
        hidden = {path: files[path] for path in entry["hidden"]}
        failing = tuple(fail_to_pass.get(entry["id"], ()))
        yield Task(
            instance_id=f"{file.stem}__{entry['id']}",
            repo=f"envsdk/{file.stem}",
            source=TextSource(files=tuple(files.items())),
            problem_statement=entry["issue"].strip() + "\n",
            gold_patch=diff(buggy, fixed),
            test_patch=diff({}, hidden),
            setup_patch=diff({**fixed, **hidden}, buggy),
            fail_to_pass=failing,
            pass_to_pass=tuple(test for test in tests if test not in failing),
            tests=TestPlan(paths=tuple(described["tests"])),
            limits=TaskLimits(timeout_s=_TIMEOUT_S, memory_mb=_MEMORY_MB),
            split=Split(described["split"]),
            licence=described["licence"],
            origin=f"{file.name}:{entry['id']}",
            metadata={"kind": entry["kind"]},
        )


def _replaced(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise ValueError(f"the edit must match once, not {text.count(old)} times: {old!r}")
    return text.replace(old, new)
