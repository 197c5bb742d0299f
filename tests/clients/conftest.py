from __future__ import annotations

from pathlib import Path

import pytest
from policies import write_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that samples, with the tokenizer of the scripted ones."""
    return write_model(tmp_path_factory.mktemp("clients") / "model")
