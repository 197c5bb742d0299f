"""The one schema of a software-engineering task, whatever data set it comes from.

    source tree --setup_patch--> base tree (what the agent sees, one fresh commit)
    base tree --agent's patch, test and configuration files stripped--> solution
    base tree --test_patch--> hidden tests, laid read-only over the solution and run

Patches are unified diffs as `git diff` writes them, relative to the repository's root. Test ids are
pytest's node ids (`tests/test_a.py::TestB::test_c[1]`); with another runner also as that prints
them: `test_c (tests.test_a.TestB)`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Split(StrEnum):
    """Which use a task is for. No repository is in both."""

    TRAIN = "train"
    HELD_OUT = "held_out"


class Outcome(StrEnum):
    """What became of one test."""

    PASSED = "passed"
    """Set-up, call and tear-down each ran once and passed: the only outcome that counts as a pass."""
    FAILED = "failed"
    ERROR = "error"
    """Set-up or tear-down failed."""
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    MISSING = "missing"
    """Listed, but not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSource:
    """A repository as a plain folder on this machine; a `.git` in it is left out."""

    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """A repository written down here: text files by path, none of them executable."""

    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GitSource:
    """One commit of a git repository on this machine (a clone or a mirror)."""

    repository: Path
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """A repository inside a container image, for the backends that run images."""

    image: str
    """As `docker run` takes it."""
    workdir: str = "/testbed"


RepoSource = TreeSource | TextSource | GitSource | ImageSource


class Runner(StrEnum):
    """What runs the tests of a task."""

    PYTEST = "pytest"
    UNITTEST = "unittest"
    """The standard library alone: `unittest.TestCase` classes, and functions `test...` as SymPy has them."""
    DJANGO = "django"
    """Django's own `tests/runtests.py`, with its SQLite settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestPlan:
    """How the tests of a task run: under the evaluator's own configuration.

    No file of the repository configures pytest (`-c /dev/null`), and no plug-in loads by itself: what
    the tests need is said here.
    """

    __test__ = False

    paths: tuple[str, ...]
    """Files and folders with the tests to run, relative to the root; for Django files alone."""
    runner: Runner = Runner.PYTEST
    python_path: tuple[str, ...] = (".",)
    """Folders put on `sys.path`, relative to the root, for example `src`."""
    python: str | None = None
    """Absolute path of the interpreter inside an image; None: the sandbox's own."""
    site: Path | None = None
    """Folder on this machine with what the tests import besides pytest (`pip install --target`)."""
    plugins: tuple[str, ...] = ()
    """With pytest: modules of plug-ins to load, for example `hypothesis.extra.pytestplugin`."""
    options: tuple[str, ...] = ()
    """With pytest: further arguments, for example `-o`, `asyncio_mode=auto`."""
    deselected: tuple[str, ...] = ()
    """Node ids that are not run: flaky or slow ones."""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """What the evaluation of one task may take."""

    timeout_s: float = 300.0
    memory_mb: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One issue of one repository, and what decides whether a patch resolves it."""

    instance_id: str
    """Unique in its data set."""
    repo: str
    """For example `owner/name`."""
    source: RepoSource
    problem_statement: str
    """The issue: all that the agent gets to read."""
    gold_patch: str
    """Resolves the issue; applies to the base tree. Hidden from the agent."""
    test_patch: str = ""
    """Adds or changes the tests that decide; applies to the base tree. Hidden from the agent."""
    setup_patch: str = ""
    """Makes the base tree of the source tree (plants the bug); "" where the source is the base."""
    hidden_tests: tuple[str, ...] = ()
    """Files and folders of the source tree that the base tree lacks and that grading lays back."""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    expected: Mapping[str, Outcome] | None = None
    """R2E-Gym: the outcome of every test, keyed by its name without the file; decides in place of
    `fail_to_pass` and `pass_to_pass`, which are then empty."""
    tests: TestPlan
    limits: TaskLimits = TaskLimits()
    split: Split = Split.TRAIN
    base_commit: str = ""
    version: str = ""
    created_at: str = ""
    hints_text: str = ""
    environment_setup_commit: str = ""
    licence: str = ""
    """SPDX identifier of the repository, where the data set says it."""
    origin: str = ""
    """Where the task was read: `FILE:record 3`."""
    looked_for: str = ""
    """Where a clone of the repository would have been taken in place of the image."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the data set says besides; JSON values."""

    def content_hash(self) -> str:
        """Hex digest of all that grading hangs on; a folder or a repository counts by its path alone."""
        fields = asdict(self)
        del fields["origin"], fields["looked_for"], fields["metadata"]
        fields["source_kind"] = type(self.source).__name__
        return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()
