"""The project's own tests, in this process: those marked `gpu`, and the suites that other parts ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu_parts.bench import Bench, Row, Skipped, TimeUp
from benchmarks.gpu_parts.checkout import REPOSITORY


class Counted:
    """A plug-in of pytest that counts outcomes and remembers what failed."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.failed: list[str] = []
        self.missing: set[str] = set()
        """Modules that files could not import."""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One phase of one test."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] = self.outcomes.get(report.outcome, 0) + 1
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported here counts as skipped: it needs what is not installed."""
        if report.failed:
            self.outcomes["not importable"] = self.outcomes.get("not importable", 0) + 1
            self.missing.update(re.findall(r"No module named '([^']+)'", str(report.longrepr)))


def run(bench: Bench) -> Iterator[Row]:
    if not bench.is_cuda:
        raise Skipped("the tests marked gpu need a GPU")
    marked = (path for path in REPOSITORY.glob("tests/**/test_*.py") if "mark.gpu" in path.read_text())
    files = sorted(str(path.relative_to(REPOSITORY)) for path in marked)
    yield from outcomes(bench, "tests marked gpu", files, marker="gpu")


def outcomes(bench: Bench, what: str, files: Sequence[str], *, marker: str) -> Iterator[Row]:
    """How many of the tests in `files` with this marker passed, and which did not."""
    import pytest

    counted = Counted()
    arguments = ["-m", marker, "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = pytest.main(
        [*arguments, "--continue-on-collection-errors", *(str(REPOSITORY / file) for file in files)],
        plugins=[counted],
    )
    yield Row(what=f"{what} that passed", value=counted.outcomes.get("passed", 0), at_least=1)
    yield Row(
        what=f"{what} that failed",
        value=len(counted.failed),
        at_most=0,
        note=", ".join(counted.failed),
    )
    yield Row(
        what=f"{what} that were skipped, or are not importable here",
        value=counted.outcomes.get("skipped", 0) + counted.outcomes.get("not importable", 0),
        note=", ".join(f"no {name}" for name in sorted(counted.missing)),
    )
    if code == pytest.ExitCode.INTERRUPTED:
        raise TimeUp if bench.left_s <= 0 else KeyboardInterrupt
