"""Which part of a patch is graded: no tests, no configuration of tests, no leftovers, nothing outside the
repository.

    text -> within limits? -> parts -> leftovers out -> parse -> tests and configuration out

Bounded in time and memory whatever the text; it uses a core meanwhile, so call it in a thread.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from envsdk.envs.swe import syntax
from envsdk.envs.swe.tasks.patches import FilePatch, MalformedPatch, Section, parse, render, sections
from envsdk.envs.swe.tasks.task import Task
from envsdk.envs.swe.tasks.trees import PatchDoesNotApply, changed_files
from envsdk.rewards.sandbox.contract import (
    BULK_FILES,
    ENVIRONMENT_FILE,
    INSTALLED_FOLDERS,
    MAX_ADDED_BYTES,
    MAX_ADDED_FILES,
)

_TEST_FOLDERS = {"test", "tests", "testing", "__pycache__"}
_FILES = re.compile(
    r"conftest\.py|(site|user)customize\.py|tests?\.py|test_.*\.py|.*_tests?\.py|.*\.(pth|pyc|pyo|so|egg-link)"
    r"|\.?pytest\.(ini|toml)|tox\.(ini|toml)|setup\.cfg|pyproject\.toml|\.coveragerc|noxfile\.py|[Mm]akefile"
    r"|\.gitattributes|\.gitmodules|run_tests\.sh"
)
_RUNS_TESTS = re.compile(r"conftest\.py|(site|user)customize\.py|test_.*\.py|.*_test\.py")
"""What a runner finds by its name."""
_METADATA = re.compile(r".*\.(egg-info|dist-info)")
_RUNNER_MODULES = {"pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "hypothesis"}
_SHADOWED = frozenset(sys.stdlib_module_names | _RUNNER_MODULES)

MAX_TEXT_CHARS = 64 << 20
MAX_PARTS = 50_000
"""Size of a patch as it comes, leftovers included."""
MAX_CHANGED_CHARS = 16 << 20
MAX_CHANGED_LINES = 500_000
"""Size of what is left to read once leftovers are out."""
_MAX_OWN_FILES, _MAX_OWN_CHARS = 200, 1 << 20
"""Number and size of new files that are named like tests, and may be modules of the package."""


@dataclass(frozen=True, slots=True)
class Stripped:
    """A patch without what is not graded."""

    files: tuple[FilePatch, ...]
    removed: tuple[str, ...]
    """Paths of tests and configuration that were taken out, sorted."""
    left_out: tuple[str, ...] = ()
    """Added files that count as leftovers, sorted."""
    own: frozenset[str] = frozenset()
    """Those of `files` that are named like tests, but are modules that the package imports itself."""

    @property
    def text(self) -> str:
        return render(self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """Modules that a patch must not put others in the place of, which the repository's folders could do:
    they come first on `sys.path`."""

    modules: frozenset[str]
    base: Path | None
    """The base tree: what it has itself under such a name is its own. None: nobody looks."""
    tests: Path | None = None
    """The folder with all tests and their configuration, hidden ones included."""

    def is_replaced_by(self, root: str, inner: PurePosixPath) -> bool:
        """Whether a new file `inner` in the folder `root` of `sys.path` takes the place of one."""
        name = inner.parts[0].split(".")[0]
        if name not in self.modules:
            return False
        if self.base is None:
            return True
        own = self.base / root / name
        if own.with_name(f"{name}.py").is_file() or (own / "__init__.py").is_file():
            return False
        # A folder without `__init__.py` gives way to what is installed, until it gets one.
        return len(inner.parts) == 1 or not own.is_dir() or inner.parts[1].startswith("__init__.")


def installed_for(
    task: Task, base: Path | None, of_image: frozenset[str] = frozenset(), tests: Path | None = None
) -> Installed:
    """What is installed where the tests of `task` run: the standard library, the runner, `TestPlan.site`, and
    in an image `of_image`."""
    site = frozenset[str]() if task.tests.site is None else _modules_in(task.tests.site)
    return Installed(modules=_SHADOWED | site | of_image, base=base, tests=tests)


class RefusedPatch(ValueError):
    """The patch is not one that an honest agent can have made; the message says why."""


def is_protected(path: str, allowed: Iterable[str] = ()) -> bool:
    """Whether `path` decides which tests run or how they come out, as a file name tells it.

    `allowed` are paths that count as source all the same: those of the gold patch.
    """
    if path in allowed:
        return False
    parts = PurePosixPath(path).parts
    folders, name = parts[:-1], parts[-1]
    return (
        any(part.lower() in _TEST_FOLDERS for part in folders)
        or any(_METADATA.fullmatch(part) for part in parts)
        or _FILES.fullmatch(name) is not None
    )


def may_be_source(path: str) -> bool:
    """Whether a protected `path` may be a module that a package imports itself: no runner looks for it."""
    *folders, name = PurePosixPath(path).parts
    return (
        name.endswith(".py")
        and bool(folders)
        and folders[0].lower() not in _TEST_FOLDERS
        and _RUNS_TESTS.fullmatch(name) is None
        and not any(folder == "__pycache__" or _METADATA.fullmatch(folder) for folder in folders)
    )


def gold_paths(task: Task) -> frozenset[str]:
    """The files that the gold patch touches."""
    return frozenset(path for patch in parse(task.gold_patch) for path in patch.paths)


def strip(text: str, task: Task, installed: Installed | None = None) -> Stripped:
    """What of the patch `text` is graded against `task`.

    Args:
        installed: What modules must not be replaced by files at the root, where that is known.

    Raises:
        RefusedPatch: It is malformed or over the limits, or a path in it leaves the repository or goes into
            `.git`.
    """
    allowed = gold_paths(task)
    installed = installed or installed_for(task, None)
    parts = _parts(text)
    for part in parts:
        if part.added is not None:
            _check_path(part.added)
    protected = {part.added for part in parts if part.added is not None and is_protected(part.added, allowed)}
    in_question = _in_question(part for part in parts if part.added in protected)
    leftovers = left_out(
        AddedFile(path=part.added, num_bytes=len(part.text), num_lines=part.text.count("\n"))
        for part in parts
        if part.added is not None and part.added not in allowed | protected
    )
    unread = (protected - in_question) | leftovers
    patches = _read("".join(part.text for part in parts if part.added is None or part.added not in unread))
    for path in (path for patch in patches for path in patch.paths):
        _check_path(path)
    own = _own(patches, task, installed, allowed)
    allowed |= own
    kept, removed = [], protected - own
    for patch in patches:
        if (
            not patch.regular
            or any(is_protected(path, allowed) for path in patch.paths)
            or _shadows(patch, task, allowed, installed)
        ):
            removed.update(patch.paths)
        else:
            kept.append(patch)
    return Stripped(tuple(kept), tuple(sorted(removed)), tuple(sorted(leftovers)), own - removed)


def _in_question(protected: Iterable[Section]) -> set[str]:
    """New files that have to be read to tell whether they are tests."""
    found = [part for part in protected if part.added is not None and may_be_source(part.added)]
    if len(found) > _MAX_OWN_FILES or sum(len(part.text) for part in found) > _MAX_OWN_CHARS:
        return set()
    return {part.added for part in found if part.added is not None}


def _own(
    patches: Sequence[FilePatch], task: Task, installed: Installed, allowed: frozenset[str]
) -> frozenset[str]:
    """Files of `patches` that are named like tests, but that the package itself imports, and no test."""
    asked = {
        patch.new_path
        for patch in patches
        if patch.new_path is not None
        and patch.old_path in (None, patch.new_path)
        and is_protected(patch.new_path, allowed)
        and may_be_source(patch.new_path)
    }
    if not asked or installed.base is None or installed.tests is None:
        return frozenset()
    decides = {patch.new_path for patch in parse(task.test_patch)} | set(task.hidden_tests)
    python = [patch for patch in patches if patch.regular and (patch.new_path or "").endswith(".py")]
    try:
        changed = changed_files(installed.base, render(python))
    except PatchDoesNotApply:
        return frozenset()
    texts = {path: after.decode("utf-8", "replace") for path, (_, after) in changed.items()}
    tree = Imports(installed.base, task.tests.python_path, texts)
    own = tree.own_modules(installed.tests, lambda path: is_protected(path, allowed), may_be_source)
    return frozenset(asked & own - decides)


def _parts(text: str) -> list[Section]:
    """Raises RefusedPatch: there are too many, or too much text."""
    if len(text) > MAX_TEXT_CHARS:
        raise RefusedPatch(f"the patch has {len(text):,} characters; at most {MAX_TEXT_CHARS:,} are read")
    if (found := text.count("\ndiff --git ")) > MAX_PARTS:
        raise RefusedPatch(f"the patch is of {found:,} files; at most {MAX_PARTS:,} are read")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise RefusedPatch("malformed patch: a lone surrogate, which no file can hold") from None
    return list(sections(text))


def _read(text: str) -> tuple[FilePatch, ...]:
    """Raises RefusedPatch: it is malformed, or too long."""
    if len(text) > MAX_CHANGED_CHARS or text.count("\n") > MAX_CHANGED_LINES:
        lines = text.count("\n")
        raise RefusedPatch(
            f"the patch changes {lines:,} lines of {len(text):,} characters; at most {MAX_CHANGED_LINES:,} "
            f"lines of {MAX_CHANGED_CHARS:,} characters are graded"
        )
    try:
        patches = parse(text)
    except MalformedPatch as error:
        raise RefusedPatch(f"malformed patch: {error}") from None
    if text.strip() and not patches:
        raise RefusedPatch("malformed patch: no file header in it")
    return patches


@lru_cache(maxsize=256)
def _modules_in(site: Path) -> frozenset[str]:
    return frozenset(path.name.split(".")[0] for path in site.iterdir())


def _check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise RefusedPatch(f"{path!r} leaves the repository")
    if any(part.rstrip(". ").lower() in {".git", "git~1"} for part in parts):
        raise RefusedPatch(f"{path!r} is part of git's own data")


def _shadows(patch: FilePatch, task: Task, allowed: frozenset[str], installed: Installed) -> bool:
    """Whether it adds a module that would be imported in place of one that is installed: the standard
    library's, the runner's, or what the tests import besides."""
    path = patch.new_path
    if path is None or path == patch.old_path or path in allowed:
        return False
    for root in task.tests.python_path:
        try:
            inner = PurePosixPath(path).relative_to(root)
        except ValueError:
            continue
        if inner.parts and installed.is_replaced_by(root, inner):
            return True
    return False


MAX_LINES = 200_000
"""Lines of all added files together; MAX_ADDED_FILES and MAX_ADDED_BYTES limit them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """A file that a patch adds."""

    path: str
    num_bytes: int
    num_lines: int


def left_out(added: Iterable[AddedFile]) -> frozenset[str]:
    """The paths of `added` that are not graded.

    These are virtual environments, installed packages, and of the rest what is over the limits. Files are
    kept in this order: those of folders with few added files, Python source, small files.

    `Sandbox.diff` goes by the same rules, so that a submission is small; patches from elsewhere come here
    uncut. An agent leaves scripts, data, builds and environments in the repository. Few and small, they do no
    harm and stay. What is left out is never held against the patch.
    """
    files = list(added)
    parts = [file.path.rpartition("/") for file in files]
    environments = {folder for folder, _, name in parts if name == ENVIRONMENT_FILE}
    candidates = [file for file in files if not _is_installed(file.path, environments)]
    in_folder = Counter(_top(file.path) for file in candidates)

    def rank(file: AddedFile) -> tuple[bool, bool, int, str]:
        is_bulk = in_folder[_top(file.path)] > BULK_FILES
        return is_bulk, not file.path.endswith(".py"), file.num_bytes, file.path

    kept = set[str]()
    num_bytes = num_lines = 0
    for file in sorted(candidates, key=rank):
        fits = num_bytes + file.num_bytes <= MAX_ADDED_BYTES and num_lines + file.num_lines <= MAX_LINES
        if fits and len(kept) < MAX_ADDED_FILES:
            kept.add(file.path)
            num_bytes += file.num_bytes
            num_lines += file.num_lines
    return frozenset(file.path for file in files) - kept


def _is_installed(path: str, environments: set[str]) -> bool:
    folders = PurePosixPath(path).parts[:-1]
    inside = any("/".join(folders[:depth]) in environments for depth in range(1, len(folders) + 1))
    return inside or any(folder in INSTALLED_FOLDERS for folder in folders)


def _top(path: str) -> str:
    """The first folder of `path`, "" for a file at the root."""
    return path.partition("/")[0] if "/" in path else ""


class Imports:
    """What the Python files of a tree import.

    Args:
        tree: A folder with packages.
        roots: Its folders that are on `sys.path`.
        changed: What files of it say instead, by path.

        stencil/defaults.py: from .tests import TESTS   -> stencil/tests.py is source tests/test_a.py: from
        stencil.testing import is_close   -> stencil/testing.py decides how tests come out

    A test that imports such a module keeps it from being source.
    """

    def __init__(self, tree: Path, roots: Iterable[str], changed: Mapping[str, str]) -> None:
        self._tree, self._changed = tree, changed
        self._roots = [PurePosixPath(root) for root in roots]

    def own_modules(
        self, tests: Path, is_protected: Callable[[str], bool], may_be_source: Callable[[str], bool]
    ) -> set[str]:
        """Paths named like tests that source of their own package imports, directly or through each other.

        Args:
            tests: The folder with all tests. What these import is none of them.
        """
        paths = set(self._changed) | set(_python_files(self._tree))
        source = [path for path in paths if not is_protected(path)]
        found = set[str]()
        waiting = source
        while waiting:
            named = {
                module
                for path in waiting
                for module in self._imported(path, self._text(self._tree, path))
                if module in paths and self._top(module) == self._top(path)
            }
            waiting = [path for path in named - found if is_protected(path) and may_be_source(path)]
            found.update(waiting)
        tested = set(_python_files(tests)) - found
        while tested:
            named = {module for path in tested for module in self._imported(path, self._text(tests, path))}
            tested = named & found
            found -= tested
        return found

    def _text(self, folder: Path, path: str) -> str:
        if folder == self._tree and path in self._changed:
            return self._changed[path]
        return (folder / path).read_bytes().decode("utf-8", "replace")

    def _inside(self, path: str) -> tuple[PurePosixPath, tuple[str, ...]]:
        """The root under which `path` is imported, and the parts of its module's name."""
        pure = PurePosixPath(path)
        roots = [root for root in self._roots if pure.is_relative_to(root)]
        root = max(roots, key=lambda root: len(root.parts), default=PurePosixPath("."))
        parts = pure.relative_to(root).with_suffix("").parts
        return root, parts[:-1] if parts[-1] == "__init__" else parts

    def _top(self, path: str) -> tuple[PurePosixPath, str]:
        root, parts = self._inside(path)
        return root, parts[0] if parts else ""

    def _imported(self, path: str, text: str) -> Iterator[str]:
        """Paths that the modules imported in `path` would have, packages around them included."""
        if "test" not in text.lower() and "test" not in path.lower():
            return
        root, parts = self._inside(path)
        package = parts if path.endswith("/__init__.py") else parts[:-1]
        yield from _paths(root, package)
        try:
            tree = syntax.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._of_name(tuple(alias.name.split(".")))
            elif isinstance(node, ast.ImportFrom):
                named = node.module.split(".") if node.module else []
                if node.level > len(package) + 1:
                    continue
                around = package[: len(package) - node.level + 1] if node.level else ()
                for alias in node.names:
                    inside = (*around, *named, alias.name)
                    yield from _paths(root, inside) if node.level else self._of_name(inside)

    def _of_name(self, name: tuple[str, ...]) -> Iterator[str]:
        for root in self._roots:
            yield from _paths(root, name)


def _paths(root: PurePosixPath, name: tuple[str, ...]) -> Iterator[str]:
    for length in range(1, len(name) + 1):
        module = root.joinpath(*name[:length])
        yield f"{module}.py"
        yield f"{module}/__init__.py"


def _python_files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*.py"):
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(folder).as_posix()
