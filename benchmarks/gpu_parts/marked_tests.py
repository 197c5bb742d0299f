"""The project's own tests that are marked `gpu`, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu_parts.bench import Bench, Row, Skipped, TimeUp
from benchmarks.gpu_parts.checkout import REPOSITORY


class Counted:
    """A plug-in of pytest that counts outcomes and remembers what failed."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.failed: list[str] = []

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


def run(bench: Bench) -> Iterator[Row]:
    if not bench.is_cuda:
        raise Skipped("the tests marked gpu need a GPU")
    import pytest

    counted = Counted()
    inference = ("device_memory", "weight_buckets", "weight_group")
    files = ["tests/trainers", *(f"tests/envsdk/inference/test_{name}.py" for name in inference)]
    arguments = ["-m", "gpu", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = pytest.main(
        [*arguments, "--continue-on-collection-errors", *(str(REPOSITORY / file) for file in files)],
        plugins=[counted],
    )
    yield Row(what="tests marked gpu that passed", value=counted.outcomes.get("passed", 0), at_least=1)
    yield Row(
        what="tests marked gpu that failed",
        value=len(counted.failed),
        at_most=0,
        note=", ".join(counted.failed),
    )
    yield Row(
        what="skipped, or not importable here",
        value=counted.outcomes.get("skipped", 0) + counted.outcomes.get("not importable", 0),
    )
    if code == pytest.ExitCode.INTERRUPTED:
        raise TimeUp if bench.left_s <= 0 else KeyboardInterrupt
