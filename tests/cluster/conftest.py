"""For tests on a real cluster: what its nodes are made of, a tiny policy, and what was measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_random_model, write_tokenizer
from tests.cluster.nodes import kind

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
    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["P___\nOO__\n#XV_", "<answer>Right</answer>", "<answer>Up</answer>"])
    write_tokenizer(folder, tokenizer, sequence_length=256)
    write_random_model(
        folder, tokenizer, hidden_size=32, num_layers=1, num_heads=4, sequence_length=256, seed=0
    )
    return folder
