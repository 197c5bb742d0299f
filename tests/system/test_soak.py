"""A short soak: each of some faults on a real run, and nothing is lost, doubled, too old or left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak_parts.job import REPOSITORY

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

SEED = 966
"""Of which the first faults are thirteen different ones, of nine kinds, and one of them ends the program."""
NUM_FAULTS = 14


def test_a_run_survives_faults_of_many_kinds(tmp_path: Path) -> None:
    out = tmp_path / "soak"
    command = [sys.executable, "benchmarks/soak.py", "--jobs", "agentic", "--seed", str(SEED)]
    numbers = ["--faults", str(NUM_FAULTS), "--longest-stop-s", "3", "--steps", "60"]
    soak = subprocess.run(
        [*command, *numbers, "--out", str(out)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert soak.returncode == 0, soak.stdout + soak.stderr
    result = json.loads((out / "result.json").read_text())
    assert result["findings"] == []
    assert result["faults"] == NUM_FAULTS
