"""Tasks are made of a package's own tests, in real sandboxes, and hold what a sound evaluation needs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.evaluator import validate
from envsdk.envs.swe.make_tasks.baseline import Baseline, measure, plan_of
from envsdk.envs.swe.make_tasks.maker import Progress, make
from envsdk.envs.swe.make_tasks.options import MakeTasksOptions
from envsdk.envs.swe.make_tasks.package import Package, fetch
from envsdk.envs.swe.tasks.loaders import load_tasks
from envsdk.envs.swe.tasks.shipped import shipped_tasks
from envsdk.envs.swe.tasks.task import TextSource
from envsdk.envs.swe.tasks.trees import write_texts
from envsdk.rewards.sandbox import SandboxBackend, open_backend

FLAKY = """
import os, time

def test_of_one_hash_seed():
    assert os.environ["PYTHONHASHSEED"] == "0"

def test_slow():
    time.sleep(0.6)

def test_failing():
    assert False
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[SandboxBackend]:
    opened = open_backend("bubblewrap")
    yield opened
    await opened.aclose()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """A repository that ships, as if it had been downloaded, with tests that cannot be used."""
    out = tmp_path_factory.mktemp("made")
    tree = out / "trees" / "slotcache-1.0"
    shipped = next(task.source for task in shipped_tasks() if task.repo == "envsdk/slotcache")
    assert isinstance(shipped, TextSource)
    write_texts(tree, dict(shipped.files))
    (tree / "tests" / "test_flaky.py").write_text(FLAKY)
    return Package(
        name="slotcache",
        version="1.0",
        licence="MIT",
        tree=tree,
        site=None,
        source="slotcache",
        tests=("tests",),
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_tasks_are_made_once_and_are_sound(package: Package, backend: SandboxBackend) -> None:
    out = package.tree.parents[1]
    seen: list[Progress] = []
    plan = plan_of(package)
    progress = await make(
        package,
        plan,
        out,
        backend,
        MakeTasksOptions(out=out, num_tasks=1, max_test_s=0.5),
        on_progress=seen.append,
    )
    assert progress.num_valid == 1
    assert len(seen) == 1 + sum(progress.fresh.values())
    baseline = Baseline(**json.loads((out / "work/slotcache-1.0/baseline.json").read_text()))
    left_out = {test.partition("::")[2] for test in baseline.deselected}
    assert left_out == {"test_slow", "test_failing", "test_of_one_hash_seed"}
    assert len(baseline.run_s) == 3
    assert "slotcache/cache.py" in baseline.covered

    # The same call goes on where the other stopped, and nothing is decided again.
    more = await make(package, plan, out, backend, MakeTasksOptions(out=out, num_tasks=2, max_test_s=0.5))
    assert more.num_valid == 2
    assert more.outcomes == progress.outcomes + more.fresh
    again = await make(package, plan, out, backend, MakeTasksOptions(out=out, num_tasks=2, max_test_s=0.5))
    assert not again.fresh

    tasks = load_tasks(out / "tasks.jsonl")
    assert len({task.instance_id for task in tasks}) == 2
    for task in tasks:
        assert task.fail_to_pass
        assert task.limits.timeout_s >= 15
        assert task.metadata["covering_tests"] > 0
        assert task.problem_statement.startswith("slotcache 1.0: `slotcache.")
        assert "test_" not in task.problem_statement
    assert [validation.problem for validation in await validate(tasks[:1], backend)] == [""]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_package_whose_tests_do_not_run_is_refused(
    package: Package, backend: SandboxBackend, tmp_path: Path
) -> None:
    tree = tmp_path / "broken-1.0"
    (tree / "tests").mkdir(parents=True)
    (tree / "broken").mkdir()
    (tree / "broken" / "__init__.py").write_text("")
    (tree / "tests" / "test_a.py").write_text("import not_there\n")
    broken = Package(
        name="broken", version="1.0", licence="", tree=tree, site=None, source="broken", tests=("tests",)
    )
    with pytest.raises(ConfigurationError, match=r"broken-1\.0: no test passes"):
        await measure(broken, plan_of(broken), backend, max_test_s=1.0, memory_mb=512)


@pytest.mark.parametrize("requirement", ["humanize", "humanize>=4", "humanize ==", "a==1,==2"])
def test_a_version_has_to_be_pinned(requirement: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--package"):
        fetch(requirement, tmp_path)


@pytest.mark.slow
def test_a_source_distribution_is_fetched(tmp_path: Path) -> None:
    package = fetch("toolz==1.1.0", tmp_path)
    assert (package.source, package.label) == ("toolz", "toolz-1.1.0")
    assert package.tests == ("toolz/tests", "toolz/sandbox/tests")
    assert not list(package.tree.rglob("*.egg-info"))
    assert fetch("toolz==1.1.0", tmp_path) == package
