"""For tests of sealing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from envsdk.rewards.sandbox import SandboxBackend, open_backend


@pytest.fixture(scope="module")
def backend() -> Iterator[SandboxBackend]:
    backend = open_backend("bubblewrap")
    yield backend
    asyncio.run(backend.aclose())
