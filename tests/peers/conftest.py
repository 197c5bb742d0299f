"""What was compared with other packages' code, as a table after the tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Row = tuple[str, str, str, str]
ROWS = pytest.StashKey[list[Row]]()


@pytest.fixture
def write_down(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`write_down(ours, theirs, difference, tolerance)`: a row of the table."""
    rows = request.config.stash.setdefault(ROWS, [])

    def write(ours: str, theirs: str, difference: str, tolerance: str) -> None:
        rows.append((ours, theirs, difference, tolerance))

    return write


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(ROWS, [])
    if not rows:
        return
    terminalreporter.section("compared with other packages")
    for row in [("envsdk", "peer", "largest difference", "tolerance"), ("---",) * 4, *rows]:
        terminalreporter.write_line("| " + " | ".join(row) + " |")
