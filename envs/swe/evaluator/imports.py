"""Modules that a package imports itself: source, even where they are named like tests.

    stencil/defaults.py: from .tests import TESTS   -> stencil/tests.py is source
    tests/test_a.py: from stencil.testing import is_close   -> stencil/testing.py decides how tests come out

A test that imports such a module keeps it from being source.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from envsdk.envs.swe.syntax import parse


class Imports:
    """What the Python files of a tree import.

    Args:
        tree: A folder with packages.
        roots: Its folders that are on `sys.path`.
        changed: What files of it say instead, by path.
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
            tree = parse(text)
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
