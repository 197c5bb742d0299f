"""Tests of the `vllm` engine. Those marked `vllm` run vLLM itself: `make test-vllm`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "envsdk" / "engines"))  # for tiny_models


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("vllm") is None:
        skip = pytest.mark.skip(
            reason="vLLM is not installed; `make test-vllm` sets up an environment with it"
        )
        for item in items:
            if item.get_closest_marker("vllm"):
                item.add_marker(skip)
