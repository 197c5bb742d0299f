"""Tests marked `alfworld` are skipped, and say so, where ALFWorld's engine is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

HAS_ENGINE = all(find_spec(name) is not None for name in ("alfworld", "textworld", "fast_downward"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("alfworld") and not HAS_ENGINE:
            item.add_marker(pytest.mark.skip(reason="needs ALFWorld's engine: make install-alfworld"))
