"""What a package imports itself is source, whatever its name; nothing is to be gained by that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsdk.envs.swe.evaluator import evaluate, layout
from envsdk.envs.swe.evaluator.stripping import Stripped, installed_for, strip
from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.task import Task, TestPlan, TreeSource
from envsdk.envs.swe.tasks.trees import base_tree
from envsdk.rewards.sandbox import SandboxBackend, open_backend

BASE = {
    "pkg/__init__.py": "from pkg.core import double\nfrom pkg import testing\n",
    "pkg/core.py": "def double(number):\n    return number\n",
    "pkg/testing/__init__.py": "from pkg.testing import near\n",
    "pkg/testing/near.py": "def is_near(one, other):\n    return abs(one - other) < 1\n",
    "pkg/limits/__init__.py": "from .tests import LIMIT\n",
    "pkg/limits/tests.py": "LIMIT = 1\n",
    "pkg/tests/__init__.py": "",
    "pkg/tests/test_old.py": "from pkg.testing.near import is_near\n\n\n"
    "def test_old():\n    assert is_near(1, 1)\n",
}
HIDDEN = {
    "pkg/tests/test_new.py": "import pkg\nfrom pkg.testing.near import is_near\n\n\n"
    "def test_new():\n    assert pkg.double(1207) == 2414\n    assert is_near(pkg.double(2), 4)\n"
}
SOLVED = {"pkg/core.py": "def double(number):\n    return 2 * number\n"}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    for path, text in BASE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return Task(
        instance_id="toy__pkg-1",
        repo="toy/pkg",
        source=TreeSource(folder=tmp_path),
        problem_statement="double does not double.",
        gold_patch=patch(SOLVED),
        test_patch=diff({}, HIDDEN),
        fail_to_pass=("pkg/tests/test_new.py::test_new",),
        pass_to_pass=("pkg/tests/test_old.py::test_old",),
        tests=TestPlan(paths=("pkg/tests",)),
    )


def patch(new: dict[str, str]) -> str:
    return diff({path: BASE[path] for path in new if path in BASE}, new)


def stripped(task: Task, new: dict[str, str]) -> Stripped:
    base = base_tree(task)
    return strip(patch(new), task, installed_for(task, base, tests=layout.tests_folder(task, base)))


HONEST = {
    "a module tests.py": {
        "pkg/core.py": "from .more.tests import TWO\n\n\ndef double(number):\n    return TWO * number\n",
        "pkg/more/__init__.py": "",
        "pkg/more/tests.py": "TWO = 2\n",
    },
    "a module among the tests": {
        "pkg/core.py": "from pkg.tests.factor import TWO\n\n\ndef double(number):\n    return TWO * number\n",
        "pkg/tests/factor.py": "TWO = 2\n",
    },
    "a new package": {
        "pkg/core.py": "from pkg.test import factor\n\n\n"
        "def double(number):\n    return factor.TWO * number\n",
        "pkg/test/__init__.py": "",
        "pkg/test/factor.py": "TWO = 2\n",
    },
    "a package that is imported by steps": {
        "pkg/core.py": "from .test import TWO\n\n\ndef double(number):\n    return TWO * number\n",
        "pkg/test/__init__.py": "from ._more.test import (\n    TWO,\n)\n",
        "pkg/test/_more/__init__.py": "",
        "pkg/test/_more/test.py": "TWO = 2\n",
    },
    "what is there and no test imports": {
        "pkg/core.py": "from pkg.limits import LIMIT\n\n\ndef double(number):\n    return LIMIT * number\n",
        "pkg/limits/tests.py": "LIMIT = 2\n",
    },
}
CHEATS = {
    "its own conftest.py": {
        "pkg/core.py": "from pkg.tests import conftest\n\n\ndef double(number):\n    return number\n",
        "pkg/tests/conftest.py": "import pytest\n\n\n@pytest.hookimpl(hookwrapper=True)\n"
        "def pytest_runtest_makereport():\n"
        "    outcome = yield\n    outcome.get_result().outcome = 'passed'\n",
    },
    "its own version of a test": {
        "pkg/core.py": "import pkg.tests.test_old\n\n\ndef double(number):\n    return number\n",
        "pkg/tests/test_old.py": "def test_old():\n    pass\n",
    },
    "its own version of the hidden test": {
        "pkg/core.py": "import pkg.tests.test_new\n\n\ndef double(number):\n    return number\n",
        "pkg/tests/test_new.py": "def test_new():\n    pass\n",
    },
    "what tests compare with": {
        "pkg/testing/near.py": "def is_near(one, other):\n    return True\n",
    },
    "the package of the tests": {
        "pkg/core.py": "import pkg.tests\n\n\ndef double(number):\n    return number\n",
        "pkg/tests/__init__.py": "import sys\n",
    },
    "modules in place of Python's": {
        "pkg/core.py": "import sitecustomize\n\n\ndef double(number):\n    return number\n",
        "pkg/test/sitecustomize.py": "",
    },
}


@pytest.mark.parametrize("name", HONEST)
def test_modules_that_the_package_imports_are_source(name: str, task: Task) -> None:
    assert stripped(task, HONEST[name]).removed == ()


@pytest.mark.parametrize("name", CHEATS)
def test_what_decides_how_tests_come_out_is_taken_out_all_the_same(name: str, task: Task) -> None:
    taken_out = tuple(path for path in sorted(CHEATS[name]) if path != "pkg/core.py")
    assert stripped(task, CHEATS[name]).removed == taken_out


def test_what_the_package_does_not_import_is_no_source(task: Task) -> None:
    new = {
        **SOLVED,
        "pkg/test/factor.py": "TWO = 2\n",
        "tests/helper.py": "",
        "pkg/tests.py": "import pkg.test.factor\n",
    }
    assert stripped(task, new).removed == ("pkg/test/factor.py", "pkg/tests.py", "tests/helper.py")


def test_many_new_files_that_are_named_like_tests_are_not_read(task: Task) -> None:
    new = {**SOLVED, **{f"pkg/test/data_{number}.py": "1\n" for number in range(300)}}
    assert len(stripped(task, new).removed) == 300


@pytest.fixture
def backend() -> Iterator[SandboxBackend]:
    backend = open_backend("bubblewrap")
    yield backend
    asyncio.run(backend.aclose())


def test_what_is_source_is_graded_and_cheats_are_not_paid(task: Task, backend: SandboxBackend) -> None:
    async def grade(patches: dict[str, dict[str, str]]) -> dict[str, bool]:
        verdicts = await asyncio.gather(*(evaluate(task, patch(new), backend) for new in patches.values()))
        return dict(zip(patches, (verdict.resolved for verdict in verdicts), strict=True))

    assert asyncio.run(grade({**HONEST, **CHEATS})) == {
        **dict.fromkeys(HONEST, True),
        **dict.fromkeys(CHEATS, False),
    }
