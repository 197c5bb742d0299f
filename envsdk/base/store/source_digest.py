"""Digests of what decides how environments play: the sources of their packages, the data that they name."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from envsdk.base.settings.problems import leaves

_DOTTED = re.compile(r"([A-Za-z_][\w.]*):\S")
_PARSING = threading.Lock()
"""`ast.parse` in several threads at once may raise SystemError: python/cpython#106905."""
_ELSEWHERE = frozenset({"gymnasium", *sys.stdlib_module_names})
"""Bases of every environment are defined there."""
_INSTALLED = frozenset({"dist-packages", "site-packages"})
"""Folders where everything stands beside everything."""
_READ_BYTES = 256 << 20
"""So much of data is read."""


def source_digest(objects: Iterable[Any], named_in: Any = ()) -> str:
    """Changes with any `.py` or `.toml` file of the packages that define these classes, bases or functions.

    `named_in` holds nested lists and mappings: what texts such as `package.module:name` in it refer to counts
    as well, and so do modules beside the code that it imports. envsdk's own environments and adapters count
    one package at a time; its kernel does not count. Other data files, and other installed packages that the
    code imports, are not looked at.
    """
    parts = (part for each in objects for part in (each.__mro__ if isinstance(each, type) else (each,)))
    modules = {getattr(part, "__module__", "") for part in parts} | set(_named(named_in))
    waiting, found = [_root(module) for module in modules], dict[str, list[Path]]()
    while waiting:
        if (root := waiting.pop()) and root not in found:
            home, found[root] = _sources(root)
            if home is not None and not _INSTALLED & set(home.parts):
                names = {name for file in found[root] for name in _imported(file)}
                beside = (name for name in names if (home / name).is_dir() or (home / f"{name}.py").is_file())
                waiting += map(_root, beside)
    digest = hashlib.sha256()
    for root, files in sorted(found.items()):
        for file in files:
            digest.update(f"{root}:{file.name}:".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def data_digest(arguments: Mapping[str, Any]) -> str:
    """Changes with the files and folders that arguments called `data...` name; empty where none does.

    Contents count, and of files that would bring more than 256 MB to be read their sizes and times.
    """
    texts = [text for name, text in sorted(arguments.items()) if name.startswith("data")]
    roots = [Path(text).expanduser() for text in texts if isinstance(text, str | os.PathLike)]
    digest, to_read, is_found = hashlib.sha256(), _READ_BYTES, False
    for root in roots:
        for file in [root] if root.is_file() else sorted(root.rglob("*")):
            if not file.is_file():
                continue
            found, is_found = file.stat(), True
            to_read -= found.st_size
            digest.update(f"{file.relative_to(root)}\0{found.st_size}\0".encode(errors="surrogateescape"))
            digest.update(file.read_bytes() if to_read >= 0 else str(found.st_mtime_ns).encode())
    return digest.hexdigest()[:16] if is_found else ""


def _named(value: Any) -> Iterator[str]:
    texts = (text for _, text in leaves(value, in_lists=True) if isinstance(text, str))
    return (match[1] for text in texts if (match := _DOTTED.match(text)))


def _root(module: str) -> str:
    """The package whose sources count; empty for code that does not."""
    top, *rest = module.split(".")
    if top == "envsdk":
        return ".".join([top, *rest[:2]]) if rest[:1] in (["envs"], ["adapters"]) else ""
    return "" if top in _ELSEWHERE else top


def _sources(root: str) -> tuple[Path | None, list[Path]]:
    """The folder that a package or module stands in, and its files."""
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return None, []
    if spec is not None and spec.submodule_search_locations:
        folders = [Path(each) for each in spec.submodule_search_locations]
        files = (file for folder in folders for file in folder.rglob("*.*"))
        return folders[0].parent, sorted(file for file in files if file.suffix in (".py", ".toml"))
    if spec is not None and spec.origin and spec.origin.endswith(".py"):
        return Path(spec.origin).parent, [Path(spec.origin)]
    return None, []


def _imported(file: Path) -> set[str]:
    """Top-level modules that a source imports."""
    try:
        with _PARSING:
            nodes = list(ast.walk(ast.parse(file.read_bytes()))) if file.suffix == ".py" else []
    except (SyntaxError, ValueError):
        return set()
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names} - {""}
