"""Django and SymPy themselves, with a planted bug, as SWE-bench would list them; pip downloads them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from envsdk.envs.swe.evaluator import Verdict, evaluate
from envsdk.envs.swe.tasks.archives import unpack_tar
from envsdk.envs.swe.tasks.loaders import load_tasks
from envsdk.envs.swe.tasks.patches import diff
from envsdk.rewards.sandbox import open_backend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True, kw_only=True)
class Project:
    requirement: str
    needs: tuple[str, ...]
    file: str
    fixed: str
    buggy: str
    tests: tuple[str, ...]
    failing: tuple[str, ...]
    passing: tuple[str, ...]


PROJECTS = {
    "django/django": Project(
        requirement="django==4.2.16",
        needs=("asgiref", "sqlparse"),
        file="django/utils/text.py",
        fixed='.strip("-_")',
        buggy='.strip("-")',
        tests=("tests/utils_tests/test_text.py", "tests/model_fields/test_charfield.py"),
        failing=("test_slugify (utils_tests.test_text.TestUtilsText)",),
        passing=(
            "test_emoji (model_fields.test_charfield.TestCharField)",
            "test_unescape_string_literal (utils_tests.test_text.TestUtilsText)",
        ),
    ),
    "sympy/sympy": Project(
        requirement="sympy==1.12",
        needs=("mpmath==1.3.0",),
        file="sympy/core/logic.py",
        fixed="return t % 2 == 1",
        buggy="return t % 2 == 0",
        tests=("sympy/core/tests/test_logic.py", "sympy/core/tests/test_facts.py"),
        failing=("test_fuzzy_xor",),
        passing=("test_torf", "test_fuzzy_group", "test_deduce_alpha_implications"),
    ),
}


@pytest.mark.parametrize("repo", PROJECTS)
async def test_a_planted_bug_is_graded_by_the_projects_own_tests(repo: str, tmp_path: Path) -> None:
    project = PROJECTS[repo]
    (task,) = load_tasks(plant(repo, project, tmp_path))
    backend = open_backend("bubblewrap")
    try:
        gold = await evaluate(task, task.gold_patch, backend)
        assert (gold.reward, gold.reason) == (1.0, Verdict.RESOLVED), gold
        empty = await evaluate(task, "", backend)
        assert (empty.reward, empty.reason) == (0.0, Verdict.TESTS_FAILED), empty
        leaving = task.gold_patch + diff({}, {f"{project.file}c": "import os\nos._exit(1)\n"})
        assert (await evaluate(task, leaving, backend)).stripped == (f"{project.file}c",)
    finally:
        await backend.aclose()


def plant(repo: str, project: Project, folder: Path) -> Path:
    """A file with one row of SWE-bench's, and beside it the clone that it names."""
    pip("download", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), project.requirement)
    pip("install", "--no-deps", "--target", str(folder / "site"), *project.needs)
    unpack_tar(next(folder.glob("*.tar.gz")), folder / "unpacked")
    clone = folder / "repositories" / repo.replace("/", "__")
    clone.parent.mkdir()
    next((folder / "unpacked").iterdir()).rename(clone)
    fixed = (clone / project.file).read_text()
    buggy = fixed.replace(project.fixed, project.buggy, 1)
    assert fixed != buggy
    (clone / project.file).write_text(buggy)
    tests = {path: (clone / path).read_text() for path in project.tests}
    for path in tests:
        (clone / path).write_text("")
    row = {
        "repo": repo,
        "instance_id": repo.replace("/", "__") + "-1",
        "base_commit": commit_all(clone),
        "patch": diff({project.file: buggy}, {project.file: fixed}),
        "test_patch": diff(dict.fromkeys(tests, ""), tests),
        "problem_statement": "It is broken.",
        "version": "1",
        "FAIL_TO_PASS": json.dumps(project.failing),
        "PASS_TO_PASS": json.dumps(project.passing),
        "environment_setup_commit": "0",
        "envsdk": {"tests": {"site": "site"}},
    }
    (folder / "rows.jsonl").write_text(json.dumps(row))
    return folder / "rows.jsonl"


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


def commit_all(folder: Path) -> str:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "base"]):
        subprocess.run([*git, *arguments], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return head.stdout.strip()
