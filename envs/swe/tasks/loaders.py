"""Tasks of the public data sets: SWE-bench (all variants), SWE-Gym, SWE-smith, R2E-Gym, NeMo, and made ones.

The fields of a row decide its kind:

    envsdk              made by `envs.swe.make_tasks`: everything a sound evaluation needs
    instance_dict ...   NeMo: a complete row of another kind, as JSON or not, anywhere inside
    expected_output_json    R2E-Gym: the outcome of every test
    repo: swesmith/..., or an image of SWE-smith's      `patch` introduces the bug
    otherwise           SWE-bench, SWE-Gym and what is made like them (`images`)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.evaluator.stripping import is_protected
from envsdk.envs.swe.tasks.patches import MalformedPatch, diff, parse, render, reverse
from envsdk.envs.swe.tasks.records import Record, read_records
from envsdk.envs.swe.tasks.task import (
    GitSource,
    ImageSource,
    Outcome,
    RepoSource,
    Runner,
    Split,
    Task,
    TaskLimits,
    TestPlan,
    TreeSource,
)
from envsdk.rewards.sandbox.contract import WORKDIR

NESTED = ("instance_dict", "instance", "swe_instance", "instance_json")
"""Fields in which NeMo-style rows hold a row."""
_BESIDE = ("problem_statement", "instance_id", "docker_image", "image_name", "patch_workdir")
"""What may stand elsewhere in such a row."""
_PLANS: Mapping[str, Mapping[str, Any]] = {
    "django/django": {"runner": Runner.DJANGO, "python_path": (".", "tests")},
    "sympy/sympy": {"runner": Runner.UNITTEST},
}
"""Repositories whose tests pytest does not run."""
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_CONDA_PYTHON = "/opt/miniconda3/envs/testbed/bin/python"
_PRO_WORKDIR = "/app"
_R2E_TESTS = "r2e_tests"
_R2E_PYTHON = "/testbed/.venv/bin/python"


def load_tasks(
    path: Path | str, *, repositories: Path | None = None, split: Split | str | None = None
) -> tuple[Task, ...]:
    """The tasks of a `.jsonl`, `.json` or `.parquet` file, in order.

    Args:
        repositories: Folder with clones named `owner__name`; the folder `repositories` beside the file where
            absent. A row whose repository is not there starts from its container image.
        split: Only these. SWE-bench rows are held out, rows of the data sets for training are `train`, unless
            a row says it itself.

    Raises ConfigurationError: the file cannot be read, or a row lacks what it needs: file, record and field
        are named.
    """
    path = Path(path)
    clones = repositories or path.parent / "repositories"
    wanted = None if split is None else Split(split)
    tasks: dict[str, Task] = {}
    for record in read_records(path):
        task = read_task(record, clones)
        if task.instance_id in tasks:
            raise record.error("instance_id", f"is that of {tasks[task.instance_id].origin} too")
        tasks[task.instance_id] = task
    return tuple(task for task in tasks.values() if wanted is None or task.split is wanted)


def read_task(record: Record, clones: Path) -> Task:
    """The task of one row of any kind. ConfigurationError as `load_tasks`."""
    if not record.has("patch") and not record.has("expected_output_json"):
        nested = _nested(record)
        if nested is None and not record.has("instance_id"):
            raise record.error("instance_id", "is missing, and no field holds a row as JSON")
        record = nested or record
    try:
        if record.has("expected_output_json"):
            task = _r2e(record, clones)
        elif record.text("repo").startswith("swesmith/") or "swesmith." in record.text("image_name", ""):
            task = _smith(record, clones)
        else:
            task = _bench(_upper(record), clones)
    except MalformedPatch as error:
        raise ConfigurationError(f"{record.origin}: a patch cannot be read: {error}") from None
    if isinstance(task.source, ImageSource):
        return replace(task, looked_for=str(_clone(task.repo, clones)))
    return task


def _bench(record: Record, clones: Path) -> Task:
    """SWE-bench, SWE-Gym and made rows."""
    made = record.mapping("envsdk")
    gold, test_patch = record.text("patch"), record.text("test_patch", "")
    parse(gold)
    setup = ""
    if "tree" in made:
        # The tree is the solved one, with all tests.
        tree = Path(record.origin.rpartition(":record")[0]).parent / str(made["tree"])
        source: RepoSource = TreeSource(folder=tree)
        setup = render((*reverse(parse(gold)), *reverse(parse(test_patch))))
    else:
        source = _source(
            record, record.text("repo"), record.text("base_commit"), clones, _bench_image(record)
        )
    paths = [patch.new_path for patch in parse(test_patch) if patch.new_path is not None]
    tests = [path for path in paths if path.endswith(".py") and not path.endswith("conftest.py")]
    # Of other languages there is nothing that runs them here; such tasks can be played and exported.
    listed = [path for path in _files_of_ids(record) if path.endswith(".py")]
    tests = [*tests, *listed] or _files_of_ids(record) or paths
    return _task(
        record,
        source=source,
        gold_patch=gold,
        test_patch=test_patch,
        setup_patch=setup,
        tests=_plan(record, source, tests, _bench_python(record)),
        split=Split.TRAIN if _is_for_training(record) else Split.HELD_OUT,
    )


def _upper(record: Record) -> Record:
    """SWE-bench Pro names its lists of tests in small letters."""
    lists = {name: record.values.get(name.lower()) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    return record.inner(
        {**{name: value for name, value in lists.items() if value is not None}, **record.values}
    )


def _is_for_training(record: Record) -> bool:
    """SWE-Gym's rows and SWE-rebench's; those of SWE-bench and of its other followers are for evaluation."""
    if record.has("install_config"):
        return True
    return not any(record.has(name) for name in ("environment_setup_commit", "test_cmds", "dockerhub_tag"))


def _smith(record: Record, clones: Path) -> Task:
    """SWE-smith: its patch makes the bug, and what undoes it is the gold patch."""
    bug = parse(record.text("patch"))
    try:
        gold = render(reverse(bug))
    except ValueError as error:
        raise record.error("patch", str(error)) from None
    image = record.text("image_name", "")
    if image.startswith("swesmith."):
        image = f"swebench/{image}"
    source = _source(record, record.text("repo"), record.text("base_commit", "HEAD"), clones, image)
    hidden = tuple(dict.fromkeys(test.split("::")[0] for test in record.names("FAIL_TO_PASS")))
    return _task(
        record,
        source=source,
        gold_patch=gold,
        setup_patch=render(bug),
        hidden_tests=hidden,
        tests=_plan(record, source, _files_of_ids(record), _CONDA_PYTHON),
    )


def _r2e(record: Record, clones: Path) -> Task:
    """R2E-Gym: tests in a folder of their own and the outcome of each."""
    expected = {}
    for colored, outcome in record.mapping("expected_output_json").items():
        name = _COLOR.sub("", colored).split(" - ")[0]
        if not name:
            continue  # of a file that could not be collected
        try:
            expected[name] = Outcome(str(outcome).lower())
        except ValueError:
            raise record.error("expected_output_json", f"{name!r}: unknown outcome {outcome!r}") from None
    commit = record.mapping("parsed_commit_content")
    repo = record.text("repo_name")
    fixed = record.text("commit_hash")
    base = str(commit.get("old_commit_hash") or f"{fixed}^")
    source = _source(record, repo, base, clones, record.text("docker_image", ""))
    values = {
        **record.values,
        "instance_id": record.text("instance_id", f"{repo}__{fixed[:12]}"),
        "repo": repo,
        "base_commit": base,
        "FAIL_TO_PASS": [],
        "PASS_TO_PASS": [],
    }
    return _task(
        record.inner(values),
        source=source,
        gold_patch=_commit_patch(record, commit),
        hidden_tests=(_R2E_TESTS,),
        expected=expected,
        tests=_plan(record, source, [_R2E_TESTS], _R2E_PYTHON),
    )


def _commit_patch(record: Record, commit: Mapping[str, Any]) -> str:
    """The source part of a commit as R2E-Gym stores it: the content of every file before and after."""
    old, new = {}, {}
    for entry in commit.get("file_diffs") or []:
        try:
            path = entry["header"]["file"]["path"]
            before, after = entry.get("old_file_content"), entry.get("new_file_content")
        except (KeyError, TypeError):
            raise record.error("parsed_commit_content", "a file without its path") from None
        if is_protected(path) or entry.get("is_binary_file"):
            continue
        if before:
            old[path] = before
        if after:
            new[path] = after
    return diff(old, new)


def _task(record: Record, *, source: RepoSource, gold_patch: str, tests: TestPlan, **fields: Any) -> Task:
    made = record.mapping("envsdk")
    known = {"split": Split.TRAIN, **fields}
    try:
        if "split" in made:
            known["split"] = Split(made["split"])
        limits = TaskLimits(**made.get("limits", {}))
    except (TypeError, ValueError) as error:
        raise record.error("envsdk", str(error)) from None
    return Task(
        instance_id=record.text("instance_id"),
        repo=record.text("repo"),
        source=source,
        problem_statement=record.text("problem_statement"),
        gold_patch=gold_patch,
        fail_to_pass=record.names("FAIL_TO_PASS"),
        pass_to_pass=record.names("PASS_TO_PASS"),
        tests=tests,
        limits=limits,
        base_commit=record.text("base_commit", ""),
        version=str(record.values.get("version") or ""),
        created_at=str(record.values.get("created_at") or ""),
        hints_text=record.text("hints_text", ""),
        environment_setup_commit=record.text("environment_setup_commit", ""),
        licence=str(made.get("licence") or record.values.get("license") or ""),
        origin=record.origin,
        metadata=dict(made.get("metadata", {})),
        **known,
    )


def _plan(record: Record, source: RepoSource, paths: list[str], image_python: str) -> TestPlan:
    """How the tests run: as the row says, else pytest over `paths`."""
    said = dict(record.mapping("envsdk").get("tests", {}))
    if site := said.pop("site", None):
        said["site"] = Path(record.origin.rpartition(":record")[0]).parent / site
    lists = {name: tuple(value) for name, value in said.items() if isinstance(value, list)}
    python = image_python if isinstance(source, ImageSource) else None
    usual = _PLANS.get(record.text("repo", ""), {})
    known = {"paths": tuple(dict.fromkeys(paths)), "python": python, **usual, **said, **lists}
    if not known["paths"]:
        raise record.error("test_patch", "names no test file, and neither do FAIL_TO_PASS and PASS_TO_PASS")
    try:
        return TestPlan(**{**known, "runner": Runner(known.get("runner", Runner.PYTEST))})
    except (TypeError, ValueError) as error:
        raise record.error("envsdk", f"tests: {error}") from None


def _files_of_ids(record: Record) -> list[str]:
    ids = (*record.names("FAIL_TO_PASS"), *record.names("PASS_TO_PASS"))
    return [test.split("::")[0] for test in ids if "::" in test]


def _source(record: Record, repo: str, commit: str, clones: Path, image: str) -> RepoSource:
    """A clone where there is one, else the container image."""
    clone = _clone(repo, clones)
    for folder in (clone, clone.with_name(f"{clone.name}.git")):
        if folder.is_dir():
            return GitSource(repository=folder, commit=commit)
    if not image:
        raise record.error("image_name", f"is missing, and there is no clone {clone}")
    workdir = _PRO_WORKDIR if record.has("dockerhub_tag") else WORKDIR
    return ImageSource(image=image, workdir=record.text("patch_workdir", workdir))


def _clone(repo: str, clones: Path) -> Path:
    return clones / repo.replace("/", "__")


def _bench_image(record: Record) -> str:
    """The image that the row names, else the one that its data set publishes for it."""
    for name in ("docker_image", "image_name", "image"):
        if record.has(name):
            return record.text(name)
    if record.has("dockerhub_tag"):
        return f"jefzda/sweap-images:{record.text('dockerhub_tag')}"
    instance = record.text("instance_id").lower()
    owner, separator = "xingyaoww", "_s_"
    if record.has("install_config"):
        owner, separator = "swerebench", "_1776_"
    elif record.has("test_cmds"):
        owner, separator = "starryzhang", "_1776_"
    elif record.has("environment_setup_commit"):
        owner, separator = "swebench", "_1776_"
    return f"{owner}/sweb.eval.x86_64.{instance.replace('__', separator)}:latest"


def _bench_python(record: Record) -> str:
    """The interpreter in the row's image. SWE-bench's and SWE-Gym's have one of conda's, SWE-bench-Live's and
    SWE-bench Pro's the one on the search path."""
    return "python" if record.has("test_cmds") or record.has("dockerhub_tag") else _CONDA_PYTHON


def _nested(record: Record) -> Record | None:
    """The row that some field holds, at any depth, as JSON or as an object."""
    objects = list(_objects(record.values))
    around = {
        name: values[name] for values in reversed(objects) for name in _BESIDE if values.get(name) is not None
    }
    for values in objects:
        for name in NESTED:
            inner = values.get(name)
            if isinstance(inner, str):
                try:
                    inner = json.loads(inner)
                except ValueError as error:
                    raise record.error(name, f"is no JSON: {error}") from None
            if isinstance(inner, dict):
                return record.inner({**around, **inner})
    return None


def _objects(values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield values
    for value in values.values():
        if isinstance(value, dict):
            yield from _objects(value)
