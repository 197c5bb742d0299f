"""For tests on a real cluster: what its nodes are made of, a tiny policy, and what was measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.nodes import kind
from tests.tiny_policies import both_games

MEASURED: list[tuple[str, float]] = []


def pytest_report_header() -> str:
    return f"cluster: {kind()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MEASURED:
        terminalreporter.write_line(f"measured on {kind()}, load {os.getloadavg()[1]:.1f}:")
        for what, seconds in MEASURED:
            terminalreporter.write_line(f"| {what} | {seconds:.1f} s |")


@pytest.fixture
def measured() -> Callable[[str, float], None]:
    """Notes how many seconds something took; all notes are shown after the tests."""
    return lambda what, seconds: MEASURED.append((what, seconds))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, random, with a tokenizer of both games."""
    return both_games(tmp_path_factory.mktemp("model"))
