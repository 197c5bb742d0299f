"""Which files grading lays, read-only, over the patched tree."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from envsdk.base.store.atomic import made_once
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.evaluator.canaries import Canary
from envsdk.envs.swe.evaluator.stripping import gold_paths, is_protected
from envsdk.envs.swe.tasks.patches import parse
from envsdk.envs.swe.tasks.runtime import cached
from envsdk.envs.swe.tasks.task import Task
from envsdk.envs.swe.tasks.trees import PatchDoesNotApply, apply_patch, hidden_folder


def tests_folder(task: Task, base: Path) -> Path:
    """A folder with what grading lays over the base tree: hidden tests and all that decides how tests run.

    Made once per base tree, of it with hidden tests back and the test patch applied.

    Raises ConfigurationError: the test patch does not apply.
    """
    key = f"{base.name}\n{sorted(gold_paths(task))}\n{task.hidden_tests}\n{task.test_patch}"
    target = cached("tests", key)
    if target.is_dir():
        return target
    hidden = hidden_folder(base)
    with made_once(target) as kept:
        whole = kept.with_name("whole")
        # Links cost no room, and git replaces a file that it changes.
        shutil.copytree(base, whole, symlinks=True, ignore=shutil.ignore_patterns(".git"), copy_function=link)
        if hidden.is_dir():
            shutil.copytree(hidden, whole, symlinks=True, dirs_exist_ok=True)
        try:
            if task.test_patch:
                apply_patch(whole, task.test_patch)
        except PatchDoesNotApply as error:
            raise ConfigurationError(f"{task.instance_id}: test_patch: {error}") from None
        for path in laid_paths(task, whole):
            (kept / path).parent.mkdir(parents=True, exist_ok=True)
            if (whole / path).is_dir():
                shutil.copytree(whole / path, kept / path, symlinks=True)
            else:
                shutil.copy2(whole / path, kept / path)
    return target


def link(source: str, target: str) -> None:
    """A hard link, or a copy where there can be none."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def laid_paths(task: Task, folder: Path, own: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Files and entire folders of `folder`, relative to it, that hold only tests and their configuration.

    `folder` is the tree with the test patch applied. Files of the gold patch are source and never among them,
    nor those of `own`, as `Stripped` has them.
    """
    source = gold_paths(task) | own
    tested = {patch.new_path for patch in parse(task.test_patch) if patch.new_path is not None}
    return tuple(sorted(_cover(folder, "", source, (tested | set(task.hidden_tests)) - source)))


def _cover(folder: Path, prefix: str, source: frozenset[str], tested: set[str]) -> Iterable[str]:
    for entry in sorted(os.scandir(folder / prefix), key=lambda entry: entry.name):
        path = f"{prefix}/{entry.name}" if prefix else entry.name
        if entry.name == ".git" or entry.is_symlink():
            continue
        if entry.is_dir():
            decides = is_protected(f"{path}/x") or path in tested
            whole = decides and not any(name.startswith(f"{path}/") for name in source)
            yield from [path] if whole else _cover(folder, path, source, tested)
        elif is_protected(path, source) or path in tested:
            yield path


def copy_laid(
    tests: Path, paths: Iterable[str], canaries: Iterable[Canary], scratch: Path
) -> dict[str, Path]:
    """Copies of `paths` of the folder `tests` in `scratch`, with the canaries in their folders.

    What each path relative to the root is to show: a folder that gets a canary is the copy, everything else
    the original.
    """
    laid = {path: tests / path for path in paths}
    for canary in canaries:
        inside = next((path for path in laid if canary.path.startswith(f"{path}/")), None)
        copy = scratch / (inside or canary.path)
        if inside is None:
            laid[canary.path] = copy
        elif laid[inside] != copy:
            shutil.copytree(tests / inside, copy, symlinks=True)
            laid[inside] = copy
        target = scratch / canary.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(canary.text)
    return laid
