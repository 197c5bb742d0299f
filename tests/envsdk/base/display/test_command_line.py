from __future__ import annotations

import os
import subprocess
import sys

import pytest

from envsdk.base.display.command_line import canonical_command


def test_an_argument_that_is_no_text_in_this_locale_is_told_with_what_to_set() -> None:
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "envsdk", "eval", "ü.jsonl", "--reward", "exact"]
    done = subprocess.run(command, env=ascii_only, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "error: \\udcc3\\udcbc.jsonl is no ascii text: set LC_ALL=C.UTF-8, or use ASCII alone\n"
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["/somewhere/envsdk/collect.py", "FrozenLake", "--out", "demos"],
        ["/somewhere/bin/envsdk", "collect", "FrozenLake", "--out", "demos"],
        ["/somewhere/envsdk/__main__.py", "collect", "FrozenLake", "--out", "demos"],
    ],
)
def test_a_command_reads_the_same_whichever_way_it_was_called(argv: list[str]) -> None:
    assert canonical_command("collect", argv) == ["envsdk", "collect", "FrozenLake", "--out", "demos"]
