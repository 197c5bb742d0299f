"""The commits of a clone that change source and tests: what tasks are made of.

commit --> parent (base), source part (gold patch), test part (test patch), message (issue)
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.evaluator.stripping import is_protected
from envsdk.envs.swe.tasks.patches import FilePatch, MalformedPatch, parse, render

_FIELDS = "%H%x00%P%x00%cI%x00%B%x01"
_TRAILER = re.compile(r"(?im)^(co-authored-by|signed-off-by|reviewed-by|change-id|cc): .*$\n?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit with one parent."""

    id: str
    parent: str
    time: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A commit that changes source and tests, taken apart."""

    commit: Commit
    gold: str
    """The patch of everything but tests and what configures them."""
    tests: str
    """The patch of files in folders of tests, and of test files elsewhere."""
    test_files: tuple[str, ...]
    """Those with tests that it adds or changes."""
    num_lines: int
    """Lines of Python source that it changes."""


class Clone:
    """A git repository on this machine, with or without a work tree.

    Raises ConfigurationError: there is none at `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        if not self.folder.is_dir():
            raise ConfigurationError(f"--commits {folder}: there is no such folder")
        try:
            self._git("rev-parse", "--git-dir")
        except subprocess.CalledProcessError:
            raise ConfigurationError(f"--commits {folder}: is no git repository") from None

    @property
    def repo(self) -> str:
        """`owner/name` of the remote, else `local/name` by the folder."""
        try:
            url = self._git("config", "--get", "remote.origin.url").strip()
        except subprocess.CalledProcessError:
            url = ""
        found = re.search(r"([\w.-]+)[/:]([\w.-]+?)(\.git)?/?$", url) if "://" in url or "@" in url else None
        if found:
            return f"{found[1]}/{found[2]}"
        folder = self.folder.parent if self.folder.name in (".git", "repo") else self.folder
        return f"local/{re.sub(r'[^a-zA-Z0-9._-]', '-', folder.name.removesuffix('.git'))}"

    def candidates(self) -> Iterator[Candidate]:
        """The newest first."""
        for commit in self._commits():
            found = self._taken_apart(commit)
            if found is not None:
                yield found

    def _commits(self) -> Iterator[Commit]:
        """Those with one parent that change files which are named like tests."""
        log = self._git("log", "--no-merges", f"--format={_FIELDS}", "HEAD", "--", "*test*")
        for record in log.split("\x01\n"):
            if not record.strip():
                continue
            commit, parents, time, message = record.split("\0")
            if parents and " " not in parents:
                yield Commit(id=commit, parent=parents, time=time, message=message)

    def _taken_apart(self, commit: Commit) -> Candidate | None:
        """None: it does not change both source and tests, or not as text."""
        text = self._git(
            *("-c", "core.quotePath=true", "diff", "--no-color", "--no-ext-diff", "--no-renames"),
            *(commit.parent, commit.id),
        )
        try:
            patches = [patch for patch in parse(text) if patch.regular]
        except MalformedPatch:
            return None
        gold = [patch for patch in patches if not any(map(is_protected, patch.paths))]
        tests = [patch for patch in patches if any(map(_is_of_tests, patch.paths))]
        files = tuple(
            patch.new_path for patch in tests if patch.new_path is not None and _has_tests(patch.new_path)
        )
        num_lines = sum(_num_changed(patch) for patch in gold if _is_python(patch))
        if not files or not num_lines:
            return None
        return Candidate(
            commit=commit, gold=render(gold), tests=render(tests), test_files=files, num_lines=num_lines
        )

    def python_path(self, commit: str = "HEAD") -> tuple[str, ...]:
        """Folders of packages: `src` or `lib` where it has one, and the root."""
        names = self._git("ls-tree", "-r", "--name-only", commit).splitlines()
        below = {
            name.split("/")[0] for name in names if re.fullmatch(r"(src|lib)/[^/]+(/__init__)?\.py", name)
        }
        return (*sorted(below), ".")

    def top_modules(self, roots: Sequence[str]) -> set[str]:
        """Names of the modules and packages right below `roots`."""
        found = set()
        for name in self._git("ls-tree", "-r", "--name-only", "HEAD").splitlines():
            for root in roots:
                if name.endswith(".py") and PurePosixPath(name).is_relative_to(root):
                    found.add(PurePosixPath(name).relative_to(root).parts[0].removesuffix(".py"))
        return found

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", *arguments], cwd=self.folder, check=True, capture_output=True
        )
        return done.stdout.decode("utf-8", "surrogateescape")


def issue_of(commit: Commit) -> str:
    """The message of a commit, as the issue that it resolves."""
    return _TRAILER.sub("", commit.message.encode("utf-8", "replace").decode()).strip() + "\n"


def _is_python(patch: FilePatch) -> bool:
    return any(path.endswith(".py") and not path.startswith(("docs/", "doc/")) for path in patch.paths)


def _is_of_tests(path: str) -> bool:
    """Whether it is a test or data of one, not the configuration of a project."""
    folders = PurePosixPath(path).parts[:-1]
    return is_protected(path) and (path.endswith(".py") or is_protected("/".join((*folders, "x"))))


def _has_tests(path: str) -> bool:
    return re.fullmatch(r"test_.*\.py|.*_tests?\.py|tests?\.py", PurePosixPath(path).name) is not None


def _num_changed(patch: FilePatch) -> int:
    return sum(line[:1] in ("+", "-") for hunk in patch.hunks for line in hunk.lines)
