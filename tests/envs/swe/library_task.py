"""Tasks about one file, `lib.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.task import Task, TestPlan, TreeSource

FILE = "tests/test_lib.py"


def library_task(
    folder: Path,
    name: str,
    *,
    base: str,
    solved: str,
    tests: str | Mapping[str, str],
    fail_to_pass: Iterable[str],
    pass_to_pass: Iterable[str] = (),
) -> Task:
    """`base` is written into `folder`. `tests` are those of `FILE`, or of several files.

    Tests go by their names in `FILE`, or by whole node ids.
    """
    (folder / "lib.py").write_text(base)

    def ids(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name if name.startswith("tests/") else f"{FILE}::{name}" for name in names)

    return Task(
        instance_id=f"toy__{name}-1",
        repo=f"toy/{name}",
        source=TreeSource(folder=folder),
        problem_statement="It does not work.",
        gold_patch=diff({"lib.py": base}, {"lib.py": solved}),
        test_patch=diff({}, {FILE: tests} if isinstance(tests, str) else dict(tests)),
        fail_to_pass=ids(fail_to_pass),
        pass_to_pass=ids(pass_to_pass),
        tests=TestPlan(paths=("tests",)),
    )
