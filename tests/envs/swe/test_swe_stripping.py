"""What of a patch is graded, and which means of introspection strict mode notices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from envsdk.envs.swe.evaluator.introspection import allowed_words, unexpected
from envsdk.envs.swe.evaluator.stripping import RefusedPatch, is_protected, strip
from envsdk.envs.swe.tasks.patches import diff, parse
from envsdk.envs.swe.tasks.task import Task, TestPlan, TreeSource

TASK = Task(
    instance_id="a",
    repo="a/b",
    source=TreeSource(folder=Path("/nowhere")),
    problem_statement="",
    gold_patch=diff({"pkg/testing/tools.py": "a\n"}, {"pkg/testing/tools.py": "b\n"}),
    tests=TestPlan(paths=("tests",), python_path=("src",)),
)


@pytest.mark.parametrize(
    "path",
    [
        *("conftest.py", "a/b/conftest.py", "tests/data/x.json", "pkg/tests/helper.py", "test_a.py"),
        *("pkg/a_test.py", "pytest.ini", ".pytest.ini", "pytest.toml", "tox.ini", "setup.cfg"),
        *("pyproject.toml", "x.pth", "sitecustomize.py", ".gitattributes", "x.egg-info/entry_points.txt"),
        *("x-1.dist-info/METADATA", "pkg/__pycache__/a.cpython-311.pyc", "TESTS/x.py", "a.so", "Makefile"),
    ],
)
def test_tests_and_their_configuration_are_protected(path: str) -> None:
    assert is_protected(path)


@pytest.mark.parametrize(
    "path", ["pkg/a.py", "setup.py", "pkg/attestation.py", "docs/testing.md", "latest/x.py"]
)
def test_source_is_not(path: str) -> None:
    assert not is_protected(path)


def test_what_is_graded_is_the_rest() -> None:
    old = {
        "pkg/a.py": "1\n",
        "tests/t.py": "1\n",
        "pkg/testing/tools.py": "a\n",
        "pkg/testing/more.py": "1\n",
    }
    new = {**dict.fromkeys(old, "2\n"), "src/json/__init__.py": "", "json/x.py": "", "src/pkg/json.py": "3\n"}
    stripped = strip(diff(old, new), TASK)
    kept = [path for patch in parse(stripped.text) for path in patch.paths]
    assert kept == ["json/x.py", "pkg/a.py", "pkg/testing/tools.py", "src/pkg/json.py"]
    assert stripped.removed == ("pkg/testing/more.py", "src/json/__init__.py", "tests/t.py")


def test_what_the_tests_import_besides_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "library").mkdir()
    task = replace(TASK, tests=replace(TASK.tests, site=tmp_path))
    new = dict.fromkeys(["src/helper.py", "src/library/x.py", "src/pkg/helper.py"], "1\n")
    assert strip(diff({}, new), task).removed == ("src/helper.py", "src/library/x.py")
    assert strip(diff({}, new), TASK).removed == ()


def test_a_file_moved_from_or_to_the_tests_is_protected() -> None:
    text = "diff --git a/pkg/a.py b/tests/a.py\nrename from pkg/a.py\nrename to tests/a.py\n"
    assert strip(text, TASK).removed == ("pkg/a.py", "tests/a.py")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", ".git/config", "a/.git/hooks/x", ".GIT/config"])
def test_paths_out_of_the_repository_are_refused(path: str) -> None:
    with pytest.raises(RefusedPatch):
        strip(diff({}, {path: "x\n"}), TASK)


def test_an_empty_patch_is_one() -> None:
    assert strip("", TASK).text == ""
    assert strip(" \n", replace(TASK, gold_patch="")).text == ""


ORIGINAL = "class A:\n    def __eq__(self, other):\n        return self.x == other.x\n"


@pytest.mark.parametrize(
    ("code", "mark"),
    [
        ("import sys\nsys._getframe()", "sys._getframe"),
        ("import sys as s\ns._getframe()", "sys._getframe"),
        ("from sys import _getframe", "sys._getframe"),
        ("from inspect import stack", "inspect.stack"),
        ("import gc", "gc"),
        ("import _pytest.runner", "_pytest.runner"),
        ("x.f_back.f_locals", "f_back"),
        ("class B:\n    def __eq__(self, other):\n        return True", "__eq__"),
        ("A.__eq__ = lambda a, b: True", "__eq__"),
        ("type('B', (), {'__eq__': f})", "__eq__"),
        ("type('B', (), {name: f})", "type()"),
        ("setattr(A, '__e' + 'q' + '__', f)", "__eq__"),
        ("import os\nos.sys.modules", "sys.modules"),
        ("from os import sys\nsys.modules", "sys.modules"),
        ("from x import gc", "gc"),
        ("import json\njson.loads = f", "changes json"),
        ("import json.decoder\njson.decoder.JSONDecoder.decode = f", "changes json.decoder"),
        ("import json\nsetattr(json, 'loads', f)", "changes json"),
        ("import os\ngetattr(os, 'e' + 'xit')", "getattr os"),
        ("eval('1')", "eval"),
        ("open('/proc/self/environ')", "/proc/"),
    ],
)
def test_means_that_the_original_lacks_are_noticed(code: str, mark: str) -> None:
    patched = f"{ORIGINAL}\n{code}\n"
    assert mark in unexpected(ORIGINAL, patched, ())
    assert unexpected(patched, patched, ()) == []
    allowed = allowed_words(ORIGINAL, patched)
    assert unexpected(ORIGINAL, patched, allowed) == []


def test_a_comparison_may_change_where_the_gold_patch_changes_one() -> None:
    always = ORIGINAL.replace("self.x == other.x", "True")
    solved = ORIGINAL.replace("self.x == other.x", "self.y == other.y")
    assert unexpected(ORIGINAL, always, ()) == ["__eq__"]
    assert unexpected(ORIGINAL, always, allowed_words(ORIGINAL, solved)) == []


@pytest.mark.parametrize(
    "code",
    [
        "import re\nre.compile('x')",
        "import inspect\ninspect.signature(f)",
        "import sys\nsys.exit(1)",
        "import os\nos.environ.get('HOME')",
        "self.stack = []\nself.stack.append(1)",
        "raise ValueError('x') from None",
        "def f(:",
    ],
)
def test_ordinary_code_is_not(code: str) -> None:
    assert unexpected(ORIGINAL, f"{ORIGINAL}\n{code}\n", ()) == []
