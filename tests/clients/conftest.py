from __future__ import annotations

from pathlib import Path

import pytest
from policies import write_model
from scripted_programs import write_repository


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that samples, with the tokenizer of the scripted ones."""
    return write_model(tmp_path_factory.mktemp("clients") / "model")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """For an agent program to work in."""
    return write_repository(tmp_path / "repository")
