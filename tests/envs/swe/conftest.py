"""For the tests of SWE: what is made once is kept in a folder of the session; toy tasks, toy sandboxes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envsdk import TextEnv, as_sync
from envsdk.envs.swe import task_list as task_lists
from envsdk.envs.swe import workspace
from envsdk.envs.swe.env import SWEEnv
from tests.envs.swe import toy_sandbox
from tests.envs.swe.toy_tasks import Evaluator, MakeEnv, toy_tasks


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trees, runtimes and the index of libraries are made once, for all workers of pytest-xdist."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVSDK_CACHE", str(folder / "swe-cache"))
        yield


@pytest.fixture
def sandboxes(tmp_path: Path) -> Path:
    """Where the toy sandboxes are."""
    folder = tmp_path / "sandboxes"
    folder.mkdir()
    return folder


@pytest.fixture
def evaluator(monkeypatch: pytest.MonkeyPatch) -> Evaluator:
    """Grades in place of the real one."""
    made_up = Evaluator()
    monkeypatch.setattr(workspace, "evaluate", made_up)
    return made_up


@pytest.fixture
def make_env(
    evaluator: Evaluator, sandboxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeEnv]:
    """Makes environments of the toy tasks in toy sandboxes."""
    tasks = toy_tasks(tmp_path)
    task_lists.task_list.cache_clear()
    monkeypatch.setattr(task_lists, "_shipped", lambda split: tasks)
    made = []

    def make(**arguments: Any) -> TextEnv:
        settings = {"backend": toy_sandbox.NAME, "backend_settings": {"folder": str(sandboxes)}}
        env = as_sync(SWEEnv(**{**settings, **arguments}))
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()
    task_lists.task_list.cache_clear()
