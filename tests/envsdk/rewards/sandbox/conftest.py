"""A small repository, and sandboxes of it. Where bubblewrap cannot run these tests fail: nothing else shows
that attacks are held."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from envsdk.rewards.sandbox import Image, Limits
from envsdk.rewards.sandbox.bubblewrap import BubblewrapBackend
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from tests.envsdk.rewards.sandbox.boxes import Start, git


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One commit of `lib.py` and `tests/test_lib.py`."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "lib.py").write_text("def one():\n    return 1\n")
    (folder / "tests").mkdir()
    (folder / "tests/test_lib.py").write_text(
        "from lib import one\n\n\ndef test_one():\n    assert one() == 1\n"
    )
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "base")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BubblewrapBackend]:
    backend = BubblewrapBackend({"state_dir": tmp_path_factory.mktemp("state") / "sandboxes"})
    await backend.probe()
    yield backend
    await backend.aclose()


@pytest.fixture
def start(backend: BubblewrapBackend, repository: Path) -> Start:
    """`await start(limits=..., **fields of the image)`."""

    async def start(*, limits: Limits | None = None, **fields: object) -> BubblewrapSandbox:
        return await backend.start(Image(**{"tree": repository, **fields}), limits=limits)

    return start


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(start: Start) -> AsyncIterator[BubblewrapSandbox]:
    sandbox = await start()
    yield sandbox
    await sandbox.close()
