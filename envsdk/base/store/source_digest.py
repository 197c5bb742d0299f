"""A digest of the sources of the packages that define some classes or functions."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_DOTTED = re.compile(r"([A-Za-z_][\w.]*):\S")
_ELSEWHERE = frozenset({"gymnasium", *sys.stdlib_module_names})
"""Bases of every environment are defined there."""


def source_digest(objects: Iterable[Any], named_in: Any = ()) -> str:
    """Changes with any `.py` or `.toml` file of the packages that define these classes, bases or functions.

    `named_in` holds nested lists and mappings: what texts such as `package.module:name` in it refer to counts
    as well. envsdk's own environments and adapters count one package at a time; its kernel does not count.
    Other data files, and other installed packages that the code imports, are not looked at.
    """
    modules = {module for each in objects for module in _modules_of(each)} | set(_named(named_in))
    digest = hashlib.sha256()
    for root in sorted({root for module in modules if (root := _root(module))}):
        for file in _sources(root):
            digest.update(f"{root}:{file.name}:".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _modules_of(each: Any) -> Iterator[str]:
    for part in each.__mro__ if isinstance(each, type) else (each,):
        yield getattr(part, "__module__", "")


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if match := _DOTTED.match(value):
            yield match[1]
    elif isinstance(value, Mapping):
        yield from _named(list(value.values()))
    elif isinstance(value, Sequence):
        for each in value:
            yield from _named(each)


def _root(module: str) -> str:
    """The package whose sources count; empty for code that does not."""
    top, *rest = module.split(".")
    if top == "envsdk":
        return ".".join([top, *rest[:2]]) if rest[:1] in (["envs"], ["adapters"]) else ""
    return "" if top in _ELSEWHERE else top


def _sources(root: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations:
        folders = map(Path, spec.submodule_search_locations)
        files = (file for folder in folders for file in folder.rglob("*.*"))
        return sorted(file for file in files if file.suffix in (".py", ".toml"))
    return [Path(spec.origin)] if spec.origin and spec.origin.endswith(".py") else []
