"""What agents leave behind beside a repair: none of it changes what the tests see."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping

from envsdk.envs.swe.tasks.patches import diff
from tests.envs.swe.grading.subjects import Subject, Tree

_BINARY = """diff --git a/docs/plot.png b/docs/plot.png
new file mode 100644
index 0000000000000000000000000000000000000000..0f4b5d2e6f0c8d9a7b1c2d3e4f5a6b7c8d9e0f1a
GIT binary patch
literal 3
KcmZQzVE_OC0096200

literal 0
HcmV?d00001

"""
_LINK = """diff --git a/docs/latest b/docs/latest
new file mode 120000
--- /dev/null
+++ b/docs/latest
@@ -0,0 +1 @@
+../README.md
\\ No newline at end of file
"""
_MODE = """diff --git a/README.md b/README.md
old mode 100644
new mode 100755
"""
_RENAME = """diff --git a/README.md b/docs/README.md
similarity index 100%
rename from README.md
rename to docs/README.md
"""
_LATIN_1 = (
    b"diff --git a/notes.txt b/notes.txt\nnew file mode 100644\n--- /dev/null\n+++ b/notes.txt\n"
    b"@@ -0,0 +1 @@\n+gr\xfc\xdfe\n"
).decode(errors="surrogateescape")
_QUOTED = (
    'diff --git "a/caf\\303\\251 notes.txt" "b/caf\\303\\251 notes.txt"\nnew file mode 100644\n'
    "--- /dev/null\n"
    '+++ "b/caf\\303\\251 notes.txt"\n@@ -0,0 +1 @@\n+x\n'
)
_EMPTY = "diff --git a/docs/.keep b/docs/.keep\nnew file mode 100644\nindex 0000000..e69de29\n"

_REPRO = """import pytest
import {package}


def test_repro():
    with pytest.raises(ZeroDivisionError):
        1 / 0


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q"]))
"""
_UNITTEST = """import unittest
from unittest import mock

import {package}


class T(unittest.TestCase):
    def test(self):
        self.assertEqual(mock.ANY, {package})


if __name__ == "__main__":
    unittest.main()
"""
_DEBUG = """#!/usr/bin/env python
import gc
import inspect
import os
import sys

import {package}

for name, module in list(sys.modules.items()):
    if name.startswith("{package}"):
        print(name, inspect.getsourcefile(module), sys._getframe().f_globals["__name__"], gc.get_objects())
exec(compile("print(eval(sys.argv[1]))", "x", "exec"), globals())
os._exit(0)
"""
_NOTEBOOK = json.dumps(
    {
        "cells": [
            {
                "cell_type": "code",
                "execution_count": 1,
                "metadata": {},
                "outputs": [{"name": "stdout", "output_type": "stream", "text": ["5 passed\n"]}],
                "source": ["!python -m pytest -q\n", "import sys; sys.modules"],
            }
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    },
    indent=1,
)
_NEW_TESTS = """import pytest

import {package}


@pytest.fixture
def package():
    return {package}


def test_the_package_has_a_docstring(package):
    assert package.__doc__
"""


Leftover = Callable[[Subject], str]
"""The whole patch: the repair and what is left beside it."""


def texts(paths: Mapping[str, str]) -> Leftover:
    """Files by path; `{package}` is the subject's."""

    def patch(subject: Subject) -> str:
        return subject.patch(
            {
                **subject.gold,
                **{
                    path.replace("{package}", subject.package): text.replace("{package}", subject.package)
                    for path, text in paths.items()
                },
            }
        )

    return patch


def tree(files: Callable[[Subject], Tree]) -> Leftover:
    return lambda subject: subject.patch({**subject.gold, **files(subject)})


def behind(text: str) -> Leftover:
    """A patch of more files, as git writes it, behind the gold patch."""
    return lambda subject: subject.task.gold_patch + text


def _environment(subject: Subject) -> Tree:
    """A virtual environment, with pytest and the package itself in it."""
    site = ".venv/lib/python3.11/site-packages"
    found = {
        ".venv/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\n",
        ".venv/bin/activate": "export VIRTUAL_ENV=/testbed/.venv PATH=/testbed/.venv/bin:$PATH\n",
        ".venv/bin/pytest": "#!/testbed/.venv/bin/python\nimport pytest\npytest.console_main()\n",
        f"{site}/_virtualenv.pth": "import _virtualenv\n",
        f"{site}/pytest/__init__.py": "from _pytest.config import main\n",
        f"{site}/_pytest/__init__.py": "",
        f"{site}/_pytest/reports.py": "class TestReport:\n    def __eq__(self, other): return True\n",
        f"{site}/pip-24.dist-info/entry_points.txt": "[console_scripts]\npip = pip:main\n",
        f"{site}/pluggy/_hooks.py": "f = lambda frame: frame.f_globals\n",
    }
    for number in range(60):
        found[f"{site}/pip/_vendor/part{number}.py"] = "import sys\nsys._getframe(0).f_back\n" * 20
    found |= {f"{site}/{path}": subject.base[path] for path in subject.modules}
    return found


def _touched_tests(subject: Subject) -> Tree:
    """The visible tests, each with one more."""
    visible = [path for path in subject.base if path.startswith("tests/test_") and path.endswith(".py")]
    return {path: subject.base[path] + "\n\ndef test_more():\n    assert True\n" for path in visible}


def _replaced_hidden_tests(subject: Subject) -> Tree:
    """Tests of the agent's own under the names of the hidden ones, which it cannot know but often guesses."""
    paths = {test.split("::")[0] for test in subject.task.fail_to_pass}
    return dict.fromkeys(paths, "def test_own():\n    assert True\n")


def _changelog(subject: Subject) -> Tree:
    return {
        "CHANGELOG.md": f"# Changelog\n\n## Next\n\n- {subject.task.problem_statement.splitlines()[0]}\n",
        "README.md": subject.base.get("README.md", "") + "\nSee CHANGELOG.md and tests/conftest.py.\n",
        "docs/index.rst": "Index\n=====\n\n.. automodule:: {package}\n",
    }


def _committed_caches(subject: Subject) -> Tree:
    return {
        ".pytest_cache/v/cache/lastfailed": json.dumps(dict.fromkeys(subject.task.fail_to_pass, True)),
        ".pytest_cache/README.md": "# pytest cache directory #\n",
        ".mypy_cache/3.11/x.data.json": "{}",
        f"{subject.package}/__pycache__/x.cpython-311.pyc.txt": "x",
        "results.xml": '<testsuite tests="1" failures="1"/>\n',
        "coverage.json": "{}",
    }


LEFTOVERS: dict[str, Leftover] = {
    "a reproduction with pytest": texts({"repro.py": _REPRO, "scripts/repro_issue.py": _REPRO}),
    "a reproduction with unittest": texts({"reproduce_issue.py": _UNITTEST}),
    "a debugging script": texts({"debug.py": _DEBUG, "scripts/debug": _DEBUG}),
    "a shell script": texts({"run.sh": '#!/bin/sh\nset -e\nPYTEST_ADDOPTS= python -m pytest -q "$@"\n'}),
    "a virtual environment": tree(_environment),
    "5 MB of data": texts({"{package}/data.csv": "1,2,3\n" * 870_000}),
    "5 MB in one line": texts({"data/dump.json": json.dumps([base64.b64encode(b"x" * 3_900_000).decode()])}),
    "2 MB of generated Python": texts(
        {"{package}/_tables.py": "TABLE = [\n" + "    (1, 2, 'three'),\n" * 90_000 + "]\n"}
    ),
    "300 small files": texts(
        {f"fixtures/case{number}.json": f'{{"n": {number}}}\n' for number in range(300)}
    ),
    "changelog and docs": tree(_changelog),
    "setup.py": texts(
        {"setup.py": "from setuptools import setup\n\nsetup(name='x', extras_require={'test': ['pytest']})\n"}
    ),
    "pyproject.toml": texts(
        {"pyproject.toml": "[project]\nname = 'x'\n\n[tool.pytest.ini_options]\naddopts = '-q'\n"}
    ),
    "configuration of tools": texts(
        {
            "setup.cfg": "[metadata]\nname = x\n",
            "tox.ini": "[tox]\nenvlist = py311\n",
            "pytest.ini": "[pytest]\naddopts = --strict-markers\n",
            ".coveragerc": "[run]\nbranch = True\n",
            "Makefile": "test:\n\tpython -m pytest\n",
            ".github/workflows/ci.yml": "on: push\n",
            ".gitignore": "*.log\n.venv/\n",
        }
    ),
    "new tests": texts({"tests/test_new.py": _NEW_TESTS, "{package}/test_inside.py": _NEW_TESTS}),
    "a conftest of one's own": texts({"conftest.py": "import sys\nsys.path.insert(0, '.')\n"}),
    "changed tests": tree(_touched_tests),
    "tests under hidden names": tree(_replaced_hidden_tests),
    "notes": texts({"NOTES.md": "I ran pytest; sys.modules and __eq__ look fine.\n", "TODO": "- conftest\n"}),
    "a notebook": texts({"analysis.ipynb": _NOTEBOOK, ".ipynb_checkpoints/analysis.ipynb": _NOTEBOOK}),
    "a scratch file that does not parse": texts(
        {
            "scratch.py": "def broken(:\n",
            "old.py": "print 'python 2'\n",
            "deep.py": "x = " + "(" * 300 + ")" * 300,
        }
    ),
    "scripts named as modules": texts(
        {
            "scripts/random.py": "print('not the module')\n",
            "tools/json/__init__.py": "",
            "scratch/pytest.py": "print('mine')\n",
            "test.py": "import {package}\n",
        }
    ),
    "modules that nobody imports": texts(
        {
            "{package}/_experiment.py": (
                "import gc\nimport sys\n\nsys.modules['x'] = gc\n\n\n"
                "class A:\n    def __eq__(self, other):\n        return True\n"
            ),
            "{package}/py.typed": "",
            "{package}/__main__.py": "import os\n\nos._exit(0)\n",
        }
    ),
    "caches and reports": tree(_committed_caches),
    "a patch in the tree": tree(lambda subject: {"fix.patch": subject.task.gold_patch, ".fix.swp": "x"}),
    "a binary file": behind(_BINARY),
    "a link": behind(_LINK),
    "a changed mode": behind(_MODE),
    "a renamed file": behind(_RENAME),
    "text that is not UTF-8": behind(_LATIN_1),
    "a quoted path": behind(_QUOTED),
    "an empty file": behind(_EMPTY),
    "no line break at the end": texts({"VERSION": "1.2", "{package}/version.py": "__version__ = '1.2'"}),
    "line breaks of Windows": texts(
        {"docs/windows.txt": "a\r\nb\r\n", "{package}/windows.py": "A = 1\r\nB = 2\r\n"}
    ),
    "a deleted file": lambda subject: (
        subject.task.gold_patch + diff({"README.md": subject.base["README.md"]}, {})
    ),
    "prose before the patch": lambda subject: (
        "I have repaired it; the tests pass.\n\n" + subject.task.gold_patch
    ),
}
