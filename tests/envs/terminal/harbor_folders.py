"""Harbor tasks made for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FILES = {
    "task.toml": "",
    "instruction.md": "Do it.\n",
    "environment/Dockerfile": "FROM python:3.12\nWORKDIR /app\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "true\n",
}


def write_task(folder: Path, files: Mapping[str, str | None] | None = None) -> Path:
    """A task with these files besides FILES; None leaves one of those out."""
    for name, text in {**FILES, **(files or {})}.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder
