"""Tasks: those that ship, what the agent sees of one, and which ones are refused."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.evaluator import Validation, Verdict, evaluate, layout, validate
from envsdk.envs.swe.tasks.images import prepare_image
from envsdk.envs.swe.tasks.leaks import leaks
from envsdk.envs.swe.tasks.patches import diff, parse
from envsdk.envs.swe.tasks.runtime import empty_folder, library_folders, runtime_python
from envsdk.envs.swe.tasks.shipped import OUTCOMES, REPOSITORIES, shipped_tasks
from envsdk.envs.swe.tasks.task import (
    GitSource,
    ImageSource,
    Outcome,
    Split,
    Task,
    TestPlan,
    TextSource,
    TreeSource,
)
from envsdk.envs.swe.tasks.trees import base_tree
from envsdk.rewards.sandbox import Image, Limits, Sandbox, SandboxBackend, SandboxError, open_backend
from envsdk.rewards.sandbox.bubblewrap.system import shown_folders, this_system
from tests.envs.swe.recorded_outcomes import record

TASKS = shipped_tasks()
TWO = list({task.repo: task for task in TASKS}.values())[:2]
"""Of two repositories."""
BUG = "def add(a, b):\n    # the sum of both\n    return a - b\n"
SOLVED = BUG.replace("a - b", "a + b")
TEST = """from calc import add

def test_add():
    assert add(2, 1) == 3

def test_zero():
    assert add(2, 0) == 2
"""
FIXTURE_TEST = """import helper
from calc import add

def test_add(three):
    assert add(2, 1) == three == helper.three
"""


class CountingBackend:
    """Counts sandboxes; shows `containers`, by image, from folders of this machine."""

    name = "counting"

    def __init__(self, inner: SandboxBackend, containers: dict[str, Path] | None = None) -> None:
        self.inner = inner
        self.containers = containers or {}
        self.started: list[Image] = []

    async def probe(self) -> None: ...

    async def start(self, image: Image, *, limits: Limits | None = None) -> Sandbox:
        self.started.append(image)
        if image.container is not None:
            tree = image.tree or self.containers[image.container]
            image = replace(image, container=None, tree=tree, python=runtime_python())
        return await self.inner.start(image, limits=limits)

    async def aclose(self) -> None: ...


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[SandboxBackend]:
    opened = open_backend("bubblewrap")
    yield opened
    await opened.aclose()


def calc(folder: Path, **changes: object) -> Task:
    """A task about one line, in a tree of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "calc.py").write_text(BUG)
    task = Task(
        instance_id="toy__calc",
        repo="toy/calc",
        source=TreeSource(folder=folder),
        problem_statement="add(2, 1) is 1.",
        gold_patch=diff({"calc.py": BUG}, {"calc.py": SOLVED}),
        test_patch=diff({}, {"tests/test_calc.py": TEST}),
        fail_to_pass=("tests/test_calc.py::test_add",),
        pass_to_pass=("tests/test_calc.py::test_zero",),
        tests=TestPlan(paths=("tests",)),
    )
    return replace(task, **changes)  # type: ignore[arg-type]


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_bugs_of_several_kinds_ship_in_little_space() -> None:
    assert len({task.metadata["kind"] for task in TASKS}) >= 6
    assert len({task.instance_id for task in TASKS}) == len(TASKS) >= 20
    assert {task.licence for task in TASKS} == {"Apache-2.0"}
    assert sum(path.stat().st_size for path in REPOSITORIES.rglob("*") if path.is_file()) < 200_000


def test_the_files_of_a_text_source_are_written_as_they_are(tmp_path: Path) -> None:
    files = (("a/b.py", "x = 1\r\ny = '\f'\n"), ("empty.py", ""), ("name.txt", "Grüße"))
    tree = base_tree(calc(tmp_path, source=TextSource(files=files)))
    assert {path: (tree / path).read_bytes().decode() for path, _ in files} == dict(files)


def test_splits_share_no_repository() -> None:
    train, held_out = ({task.repo for task in shipped_tasks(split)} for split in Split)
    assert train
    assert held_out
    assert not train & held_out


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.instance_id)
def test_a_shipped_task_hides_the_tests_that_decide(task: Task) -> None:
    tree = base_tree(task)
    hidden = {path for patch in parse(task.test_patch) for path in patch.paths}
    deciding = {test.split("::")[0] for test in task.fail_to_pass}
    assert deciding
    assert deciding <= hidden
    assert not any((tree / path).exists() for path in hidden)
    assert not set(task.fail_to_pass) & set(task.pass_to_pass)
    assert all((layout.tests_folder(task, tree) / path).is_file() for path in hidden)


def test_the_empty_folder_that_sandboxes_show_is_never_written_to() -> None:
    """Another sandbox may be reading it, to bind or to copy it."""
    seen: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            seen.update(entry.name for entry in os.scandir(empty_folder()))

    with ThreadPoolExecutor(1) as looking:
        found = looking.submit(look)
        for _ in range(500):
            empty_folder()
        ended.set()
        found.result()
    assert seen == set()


def test_history_is_one_commit() -> None:
    tree = base_tree(TASKS[0])
    assert git(tree, "rev-list", "--all", "--count").strip() == "1"
    assert git(tree, "fsck", "--unreachable", "--no-reflogs") == ""
    assert git(tree, "status", "--short") == ""
    assert not (tree / ".git" / "logs").exists()
    assert not list((tree / ".git").glob("hooks/*"))


def test_a_test_patch_leaves_the_base_tree_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_calc.py").write_text("old = 1\n")
    (tmp_path / "checks.py").write_text("old = 2\n")
    changed = diff(
        {"tests/test_calc.py": "old = 1\n", "checks.py": "old = 2\n"},
        {"tests/test_calc.py": TEST, "checks.py": "new = 2\n"},
    )
    task = calc(tmp_path, test_patch=changed)
    tree = base_tree(task)
    laid = layout.tests_folder(task, tree)
    assert sorted(path.name for path in laid.rglob("*")) == ["checks.py", "test_calc.py", "tests"]
    assert (laid / "checks.py").read_text() == "new = 2\n"
    assert (tree / "checks.py").read_text() == "old = 2\n"
    assert git(tree, "status", "--short") == ""


@pytest.mark.asyncio(loop_scope="module")
async def test_the_agents_sandbox_shows_no_answer(backend: SandboxBackend) -> None:
    task = next(task for task in TASKS if task.instance_id == "slotcache__none")
    sandbox = await backend.start(await prepare_image(task, backend))
    try:
        seen = await sandbox.exec(
            "git log --all --oneline | wc -l; git stash list; git reflog; ls tests;"
            "python -c 'import envsdk' 2>&1 | tail -1; python -m pytest -q tests 2>&1 | tail -1;"
            "shown=$(python -c 'import sys; print(sys.prefix, sys.base_prefix)');"
            "for folder in /testbed /opt /tmp $shown; do"
            "  grep -rlF 'value = cache.get(key, _NONE)' $folder --include=*.py --include=*.toml; done; true",
            timeout_s=120,
        )
    finally:
        await sandbox.close()
    lines = seen.output.splitlines()
    assert lines[0] == "1"
    assert "test_memo.py" not in lines
    assert "ModuleNotFoundError: No module named 'envsdk'" in lines
    assert any(" passed in " in line for line in lines)
    assert not [line for line in lines if line.startswith("/")], seen.output


async def problems(tasks: Sequence[Task], backend: SandboxBackend) -> list[str]:
    return [validation.problem for validation in await validate(tasks, backend)]


@pytest.mark.asyncio(loop_scope="module")
async def test_shipped_tasks_of_two_repositories_are_sound(backend: SandboxBackend) -> None:
    done: list[Validation] = []
    counting = CountingBackend(backend)
    found = await validate(TWO, counting, on_done=done.append)
    assert [validation.problem for validation in found] == [""] * len(TWO)
    assert len(done) == len(TWO)
    assert not any(validation.weak for validation in found)
    started = len(counting.started)
    assert await validate(TWO, counting) == found
    assert len(counting.started) == started, "what is in the cache starts no sandbox"


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_all_shipped_tasks_are_sound(backend: SandboxBackend) -> None:
    found = await validate(TASKS, backend)
    assert [validation.problem for validation in found] == [""] * len(TASKS)
    assert not any(validation.weak for validation in found)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_the_recorded_outcomes_are_those_of_a_run(backend: SandboxBackend) -> None:
    assert await record(backend) == json.loads(OUTCOMES.read_text())


@pytest.mark.asyncio(loop_scope="module")
async def test_tasks_that_cannot_be_graded_are_refused(backend: SandboxBackend, tmp_path: Path) -> None:
    sound = calc(tmp_path / "a")
    useless = diff({"calc.py": BUG}, {"calc.py": BUG + "\n\nunused_name_of_some_length = 'nothing at all'\n"})
    copied = tmp_path / "b"
    (copied / "build" / "lib").mkdir(parents=True)
    (copied / "build" / "lib" / "calc.py").write_text(SOLVED)
    tasks = [
        sound,
        replace(sound, instance_id="useless", gold_patch=useless),
        replace(sound, instance_id="solved", fail_to_pass=sound.pass_to_pass),
        replace(sound, instance_id="missing", fail_to_pass=("tests/test_calc.py::test_none",)),
        replace(sound, instance_id="misfit", setup_patch=sound.gold_patch.replace("a - b", "a * b")),
        calc(copied, instance_id="copied"),
    ]
    found = await problems(tasks, backend)
    assert found[0] == ""
    assert found[1].startswith("its gold patch does not resolve it: tests_failed: 1 of 2")
    assert found[2] == "an empty patch resolves it"
    assert "missing: tests/test_calc.py::test_none" in found[3]
    assert "cannot make its repository" in found[4]
    assert found[5].startswith("the solution is in sight: ")
    assert found[5].endswith("build/lib/calc.py")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_twin_of_the_changed_place_in_its_own_file_is_no_copy(
    backend: SandboxBackend, tmp_path: Path
) -> None:
    task = calc(tmp_path)
    body = "\n    # a\n    # sum\n    # of\n    found = {}\n    # b\n    # o\n    # i\n    return found\n\n\n"
    twin = "def total(a, b):" + body.format("a + b")
    bug, solved = (twin + "def add(a, b):" + body.format(text) + "x = 1\n" for text in ("a - b", "a + b"))
    (tmp_path / "calc.py").write_text(bug)
    task = replace(task, gold_patch=diff({"calc.py": bug}, {"calc.py": solved}))
    assert await problems([task], backend) == [""]


@pytest.mark.asyncio(loop_scope="module")
async def test_two_tasks_of_one_id_are_refused(backend: SandboxBackend, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="two tasks of this id"):
        await validate([calc(tmp_path), calc(tmp_path)], backend)


def test_leaks_need_more_than_a_few_letters(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("x = 1\n")
    short = diff({"a.py": "x = 2\n"}, {"a.py": "x = 1\n"})
    assert leaks({"short": short}, [tmp_path]) == {"short": []}


@pytest.mark.parametrize(
    "copy",
    [
        SOLVED,
        SOLVED.replace("\n", "\r\n"),
        "".join(f"        {line}\n" for line in SOLVED.splitlines()),
        "".join(f"+{line}\n" for line in SOLVED.splitlines()),
        f"import os\n\n{SOLVED}\n",
    ],
)
def test_a_copy_of_the_solution_is_found_however_it_is_indented_or_quoted(tmp_path: Path, copy: str) -> None:
    gold = {"calc": diff({"calc.py": BUG}, {"calc.py": SOLVED})}
    (tmp_path / "bin").mkdir()
    (tmp_path / "other.py").write_text(BUG)
    for indexed in (False, True, True):
        assert leaks(gold, [tmp_path], indexed=indexed) == {"calc": []}
    (tmp_path / "bin" / "script").write_bytes(copy.encode())
    for folders in ([tmp_path], [tmp_path / "other.py", tmp_path / "bin" / "script"]):
        for indexed in (False, True):
            assert leaks(gold, folders, indexed=indexed) == {"calc": [str(tmp_path / "bin" / "script")]}
    assert leaks(gold, [tmp_path], hidden=[tmp_path / "bin"], indexed=True) == {"calc": []}


def test_the_search_sees_all_of_the_machine_that_a_sandbox_shows() -> None:
    shown, searched = shown_folders(shows_usr_local=False), set(library_folders())
    assert set(shown) <= searched
    assert {Path("/usr/bin"), runtime_python().parent.parent} <= searched
    hidden = this_system(shows_usr_local=False).hidden
    assert not [path for path in searched if str(path) in hidden]


@pytest.mark.asyncio(loop_scope="module")
async def test_the_agent_imports_what_grading_imports(backend: SandboxBackend, tmp_path: Path) -> None:
    task = calc(tmp_path / "repository")
    source = tmp_path / "repository"
    (source / "src").mkdir()
    (source / "calc.py").rename(source / "src" / "calc.py")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "helper.py").write_text("three = 3\n")
    tests = replace(task.tests, python_path=("src",), site=tmp_path / "site")
    sandbox = await backend.start(await prepare_image(replace(task, tests=tests), backend))
    result = await sandbox.exec("python -c 'import calc, helper; print(calc.add(3, 1))'", timeout_s=60)
    await sandbox.close()
    assert result.output == "2\n", result.output


@pytest.mark.asyncio(loop_scope="module")
async def test_tests_that_cannot_be_collected_are_named_with_the_exception(
    backend: SandboxBackend, tmp_path: Path
) -> None:
    task = calc(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "calc.py").rename(tmp_path / "src" / "calc.py")
    task = replace(task, gold_patch=diff({"src/calc.py": BUG}, {"src/calc.py": SOLVED}))
    verdict = await evaluate(task, task.gold_patch, backend)
    assert "tests/test_calc.py (ModuleNotFoundError: No module named 'calc')" in verdict.detail


@pytest.mark.asyncio(loop_scope="module")
async def test_an_image_that_cannot_run_here_is_named_with_the_clone_that_would_do(
    backend: SandboxBackend, tmp_path: Path
) -> None:
    task = replace(calc(tmp_path / "x"), source=ImageSource(image="a/b:1"), looked_for="repositories/a__b")
    with pytest.raises(ConfigurationError, match=r"a/b:1.*nor is there a clone repositories/a__b"):
        await prepare_image(task, backend)
    assert task.content_hash() == replace(task, looked_for="").content_hash()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_commit_of_a_clone_is_a_source(backend: SandboxBackend, tmp_path: Path) -> None:
    clone = tmp_path / "toy__calc"
    task = calc(clone)
    git(clone, "init", "--quiet")
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    git(clone, "add", ".")
    git(clone, *author, "commit", "--quiet", "--message", "bug")
    bug = git(clone, "rev-parse", "HEAD").strip()
    (clone / "calc.py").write_text(SOLVED)
    git(clone, *author, "commit", "--quiet", "--all", "--message", "solved")
    task = replace(task, source=GitSource(repository=clone, commit=bug))
    assert await problems([task], backend) == [""]
    assert git(base_tree(task), "rev-list", "--all", "--count").strip() == "1"
    unknown = replace(task, source=GitSource(repository=clone, commit="f" * 40))
    with pytest.raises(ConfigurationError, match="toy__calc: cannot make its repository"):
        base_tree(unknown)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_container_image_is_a_source_and_an_expected_outcome_decides(
    backend: SandboxBackend, tmp_path: Path
) -> None:
    task = calc(tmp_path / "image", test_patch="", fail_to_pass=(), pass_to_pass=())
    tests = tmp_path / "image" / "r2e_tests"
    tests.mkdir()
    (tests / "test_1.py").write_text(TEST + "\ndef test_known_to_fail():\n    assert add(1, 1) == 3\n")
    expected = {"test_add": Outcome.PASSED, "test_zero": Outcome.PASSED, "test_known_to_fail": Outcome.FAILED}
    task = replace(
        task,
        source=ImageSource(image="maker/calc:1"),
        hidden_tests=("r2e_tests",),
        tests=TestPlan(paths=("r2e_tests",)),
        expected=expected,
    )
    containers = CountingBackend(backend, {"maker/calc:1": tmp_path / "image"})
    assert await problems([task], containers) == [""]
    image = await prepare_image(task, containers)
    assert image.tree is not None
    assert sorted(path.name for path in image.tree.iterdir()) == [".git", "calc.py"]
    assert (image.container, image.workdir) == ("maker/calc:1", "/testbed")
    verdict = await evaluate(task, "", containers)
    assert verdict.outcomes == {**expected, "test_add": Outcome.FAILED}


@pytest.mark.asyncio(loop_scope="module")
async def test_what_the_tests_import_is_shown_from_a_folder(backend: SandboxBackend, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "helper.py").write_text("three = 3\n")
    (site / "plugin.py").write_text("import pytest\n\n@pytest.fixture\ndef three():\n    return 3\n")
    task = calc(
        tmp_path / "tree",
        test_patch=diff({}, {"tests/test_calc.py": FIXTURE_TEST}),
        pass_to_pass=(),
        tests=TestPlan(paths=("tests",), site=site, plugins=("plugin",), options=("-p", "plugin")),
    )
    assert await problems([task], backend) == [""]


@pytest.mark.asyncio(loop_scope="module")
async def test_memory_that_only_a_patch_uses_up_is_held_against_it(
    backend: SandboxBackend, tmp_path: Path
) -> None:
    task = calc(tmp_path)
    task = replace(task, limits=replace(task.limits, memory_mb=128, timeout_s=60))
    hungry = SOLVED + "\nkept = []\nwhile True:\n    kept.append(bytearray(b'x' * (1 << 20)))\n"
    verdict = await evaluate(task, diff({"calc.py": BUG}, {"calc.py": hungry}), backend)
    assert (verdict.reason, verdict.reward) == (Verdict.EXHAUSTED, 0.0), verdict
    assert "ran out of memory" in verdict.detail


@pytest.mark.asyncio(loop_scope="module")
async def test_a_sandbox_that_cannot_start_says_nothing_about_the_patch(tmp_path: Path) -> None:
    class Broken(CountingBackend):
        async def start(self, image: Image, *, limits: Limits | None = None) -> Sandbox:
            raise SandboxError("no room left")

    task = calc(tmp_path)
    verdict = await evaluate(task, task.gold_patch, Broken(open_backend("bubblewrap")))
    assert (verdict.infrastructure, verdict.reward, verdict.detail) == (True, None, "no room left")
