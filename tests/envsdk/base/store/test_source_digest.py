"""The digest of sources changes with the code something is made by, and with nothing else."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from envsdk.base.store.source_digest import data_digest, source_digest
from envsdk.envs.frozen_lake import FrozenLakeEnv
from envsdk.envs.sokoban.env import SokobanEnv

Write = Callable[[str, str], None]
CLASS = "from {base} import {name} as Base\n\nclass Env(Base):\n    pass\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes files of a package `mine`, which can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path / "mine" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()

    write("__init__.py", "")
    yield write
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("mine", "theirs", "single"):
            del sys.modules[name]


def loaded(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_any_source_of_the_package_counts_and_nothing_else_in_it(package: Write) -> None:
    package("env.py", CLASS.format(base="envsdk.envs.frozen_lake", name="FrozenLakeEnv"))
    env = loaded("mine.env").Env
    digest = source_digest([env])
    assert source_digest([env]) == digest
    package("levels.txt", "data")
    assert source_digest([env]) == digest
    package("maze.py", "WIDTH = 3")
    with_maze = source_digest([env])
    assert with_maze != digest
    package("rooms.toml", "width = 3")
    assert source_digest([env]) != with_maze


def test_bases_of_other_packages_count(package: Write, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("class Base:\n    pass\n")
    package("env.py", CLASS.format(base="theirs", name="Base"))
    env = loaded("mine.env").Env
    digest = source_digest([env])
    (tmp_path / "theirs.py").write_text("class Base:\n    size = 2\n")
    assert source_digest([env]) != digest


def test_functions_and_what_arguments_name_count(package: Write, tmp_path: Path) -> None:
    (tmp_path / "single.py").write_text("def make():\n    pass\n")
    make = loaded("single").make
    package("tools.py", "")
    config = {"tools": ["mine.tools:search"], "note": "Note: no module", "url": "http://x:1", "size": 3}
    before = source_digest([make], config), source_digest([make])
    package("tools.py", "def search(): ...")
    after = source_digest([make], config), source_digest([make])
    assert before[0] != after[0]
    assert before[1] == after[1]
    (tmp_path / "single.py").write_text("def make():\n    return 1\n")
    assert source_digest([make]) != after[1]


def test_modules_beside_the_code_that_it_imports_count_however_far(package: Write, tmp_path: Path) -> None:
    (tmp_path / "single.py").write_text("from theirs import V\nimport mine.deep\n\ndef make(): ...\n")
    for name in ("theirs", "other"):
        (tmp_path / f"{name}.py").write_text("V = 1\n")
    package("deep.py", "import theirs, single, torch")
    make = loaded("single").make
    seen = {source_digest([make])}
    for change in ("theirs.py", "mine/deep.py"):
        (tmp_path / change).write_text("V = 2\nimport other\n")
        found = source_digest([make])
        assert found not in seen
        seen.add(found)
    (tmp_path / "other.py").write_text("V = 3\n")
    assert source_digest([make]) not in seen
    (tmp_path / "broken.py").write_text("def\n")
    (tmp_path / "theirs.py").write_text("import broken, theirs\nfrom . import nothing\n")
    seen.add(source_digest([make]))
    (tmp_path / "never.py").write_text("V = 4\n")
    assert source_digest([make]) in seen


def test_environments_that_ship_count_one_by_one() -> None:
    assert source_digest([FrozenLakeEnv]) != source_digest([SokobanEnv])
    assert source_digest([FrozenLakeEnv, SokobanEnv]) == source_digest([SokobanEnv, FrozenLakeEnv])
    assert source_digest([]) == source_digest([loaded("envsdk.contracts.env").TextEnv])


def test_data_that_arguments_name_counts(tmp_path: Path) -> None:
    tasks, rows = tmp_path / "tasks", tmp_path / "rows.json"
    (tasks / "one").mkdir(parents=True)
    (tasks / "one/test.sh").write_text("echo 1")
    rows.write_text("[]")
    arguments = {"data": str(tasks), "data_dir": rows, "split": "train", "size": 4, "data_seed": 3}
    seen = {data_digest(arguments)}
    assert data_digest({**arguments, "split": str(rows)}) in seen
    for change in (
        lambda: (tasks / "one/test.sh").write_text("echo 0"),
        lambda: (tasks / "two").write_text(""),
        lambda: (tasks / "two").rename(tasks / "three"),
        lambda: rows.write_text("{}"),
    ):
        change()
        found = data_digest(arguments)
        assert found not in seen
        seen.add(found)
    assert data_digest({"size": 4, "data": None, "data_dir": str(tmp_path / "absent")}) == ""
