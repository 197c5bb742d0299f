"""One row of a table of another project's keys, and the place of a key in its file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from envsdk.base.settings.problems import KeyPath

ANY = "*"
NULL = object()
"""Stands for null among a dialect's defaults, where None stands for nothing."""


class AtKey(ValueError):
    """What is wrong with one of the keys that are converted together, by its last name."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True)
class Place:
    """A key in its file, for rows that depend on other keys."""

    path: KeyPath
    """Where the key stands."""
    data: Mapping[str, Any]
    """The file as it was written, interpolated."""
    is_theirs: bool
    """Whether the file is one of the other project's."""

    def get(self, *path: str, default: Any = None) -> Any:
        """The value at `path`; `default` where the file has none."""
        return value_at(self.data, path, default)

    def mapping(self, *path: str) -> Mapping[str, Any]:
        """The section at `path`; empty where the file has none, or something else there."""
        found = self.get(*path)
        return found if isinstance(found, Mapping) else {}

    def beside(self, *names: str, default: Any = None) -> Any:
        """The value of a key in the same section."""
        return self.get(*map(str, self.path[:-1]), *names, default=default)

    def section(self, depth: int) -> Mapping[str, Any]:
        """The section that the first `depth` parts of the path name."""
        return self.mapping(*map(str, self.path[:depth]))

    @property
    def has_prompts(self) -> bool:
        """Whether the file trains on prompts with rewards."""
        return "rewards" in self.data or bool(self.get("actor_train", "data_args", "file_name"))


def read_data(package: str, name: str) -> dict[str, Any]:
    """A TOML file in the folder of a package."""
    return tomllib.loads(files(package).joinpath(name).read_text(encoding="utf-8"))


def value_at(data: Any, path: KeyPath, default: Any = None) -> Any:
    """The value at `path` of nested mappings; `default` where they have none."""
    for part in path:
        if not isinstance(data, Mapping) or part not in data:
            return default
        data = data[part]
    return data


Convert = Callable[[Any, Place], Mapping[str, Any]]
"""Our keys, dotted, for a value of theirs; ValueError says why there are none. `*` in a key stands for what
the row's own `*` matched."""
Applies = Callable[[Any, Place], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What becomes of one key of the other project's."""

    key: str
    """Dotted; `*` is any name, `a|b` one of two."""
    to: str = ""
    """Our keys, as the docs name them; empty where there are none."""
    reason: str = ""
    """Why it has no effect or is refused; or what the conversion does, where the names do not say it."""
    convert: Convert | None = None
    """None: without effect, or refused."""
    is_refused: bool = False
    applies: Applies | None = None
    """When the row holds; the next row that matches is tried otherwise. None: always."""
    condition: str = ""
    """`applies`, in words."""
    only_their_files: bool = False
    """Whether the name means something else in files of ours."""

    @property
    def is_without_effect(self) -> bool:
        return self.convert is None and not self.is_refused

    def match(self, path: KeyPath) -> tuple[str, ...] | None:
        """What the pattern's `*` and `a|b` stand for; None where the key is another."""
        parts = self.key.split(".")
        return _found(parts, path) if len(parts) == len(path) else None

    def matches_section(self, path: KeyPath) -> bool:
        """Whether the key can stand in this section, at any depth."""
        parts = self.key.split(".")
        return len(parts) > len(path) and _found(parts[: len(path)], path) is not None


def _found(patterns: Sequence[str], path: KeyPath) -> tuple[str, ...] | None:
    found: list[str] = []
    for pattern, part in zip(patterns, path, strict=True):
        if pattern == ANY or ("|" in pattern and part in pattern.split("|")):
            found.append(str(part))
        elif pattern != part:
            return None
    return tuple(found)


def filled(key: str, found: tuple[str, ...]) -> KeyPath:
    """The path of a dotted key whose `*` are filled in.

    >>> filled("custom_envs.*.max_steps", ("A.b",))
    ('custom_envs', 'A.b', 'max_steps')
    """
    names: Iterator[str] = iter(found)
    return tuple(next(names) if part == ANY else part for part in key.split("."))
