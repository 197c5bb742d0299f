"""What `python -m envsdk.envs.swe.make_tasks` takes, and how tasks are made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from envsdk.base.settings.options import Option, Options

Texts = tuple[str, ...]


class MakeTasksOptions(Options):
    """What `python -m envsdk.envs.swe.make_tasks` takes."""

    out: Annotated[Path, Option("--out", "-o", metavar="DIR")]
    """Rows are written to DIR/tasks.jsonl."""
    packages: Annotated[Texts, Option("--package", metavar="NAME==VERSION")] = ()
    """A pure-Python package; may be given again."""
    commits: Annotated[Path | None, Option(metavar="CLONE")] = None
    """In place of packages, a clone: its commits become tasks."""
    num_tasks: Annotated[int, Field(ge=1)] = 20
    """Tasks of each package, or of a clone besides weak ones."""
    num_commits: Annotated[int, Field(ge=1)] = 1000
    """Commits that are tried at most, the newest that change source and tests."""
    site: Annotated[Path | None, Option(metavar="FOLDER")] = None
    """Virtual environment, or packages, that a clone's tests import."""
    python_path: Annotated[Texts, Option(metavar="FOLDER")] = ()
    """Folder of a clone with its packages."""
    needs: Annotated[Texts, Option(metavar="REQUIREMENT")] = ()
    """What the tests import besides."""
    source: Annotated[str | None, Option(metavar="FOLDER")] = None
    """The import package, where it cannot be told."""
    tests: Annotated[Texts, Option(metavar="FOLDER")] = ()
    """The tests, where they cannot be told."""
    plugins: Annotated[Texts, Option("--plugin", metavar="MODULE")] = ()
    """A pytest plug-in that the tests need."""
    pytest_options: Annotated[Texts, Option("--pytest-option", metavar="ARGUMENT")] = ()
    """A further argument of pytest."""
    seed: int = 0
    """Seed of the order in which mutations are tried."""
    per_function: Annotated[int, Field(ge=1)] = 1
    """Tasks of one function."""
    max_test_s: float = 1.0
    """Slower tests are left out."""
    memory_mb: Annotated[int, Field(ge=64)] = 2048
    """Memory of one run."""
    jobs: Annotated[int | None, Field(ge=1)] = None
    """Runs at once; the number of cores if absent."""
    backend: str = "bubblewrap"
    """The sandbox."""

    @property
    def num_jobs(self) -> int:
        """Runs at once."""
        return self.jobs or os.cpu_count() or 1
