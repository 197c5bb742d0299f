"""Apply the table of `keys.py` to a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from envsdk.config.roll.environments import pending_keys
from envsdk.config.roll.keys import NULL, ROLL_DEFAULTS, ROWS
from envsdk.config.roll.kinds import is_roll_file, kind_problems
from envsdk.config.roll.row import Place, Row, filled
from envsdk.settings.problems import KeyPath, Problem, dotted


@dataclass(frozen=True, slots=True)
class Ignored:
    """A key that has no effect."""

    path: KeyPath
    reason: str


@dataclass(slots=True)
class Translation:
    """A file in our keys."""

    data: dict[str, Any]
    sources: dict[KeyPath, KeyPath] = field(default_factory=dict)
    """Our key -> the key that the user wrote."""
    defaults: list[KeyPath] = field(default_factory=list)
    """Keys that ROLL's files may leave out and mean something else then than ours."""
    remarks: dict[KeyPath, str] = field(default_factory=dict)
    """The key that the user wrote -> what its translation does."""
    ignored: list[Ignored] = field(default_factory=list)
    pending: dict[KeyPath, str] = field(default_factory=dict)
    """Keys that training needs and the file lacks, while it can be explained without: what to do."""
    problems: list[Problem] = field(default_factory=list)


def translate(data: Mapping[str, Any], *, variables: Collection[str], known: Collection[str]) -> Translation:
    """The file in our keys.

    Args:
        data: The file, interpolated, its types not checked.
        variables: Top-level keys that are there for `${...}` to read.
        known: Our own top-level keys.
    """
    is_roll = is_roll_file(data)
    result = Translation(deepcopy(dict(data)))
    result.problems = kind_problems(data)
    if result.problems:
        return result
    result.pending = pending_keys(data)
    values: dict[KeyPath, tuple[KeyPath, Any]] = {}
    for path, value, row, found in list(_rows_of(data, is_roll=is_roll)):
        place = Place(path, data, is_roll)
        if row.is_refused:
            result.problems.append(Problem(path, row.reason))
            continue
        _remove(result.data, path)
        if row.convert is None:
            result.ignored.append(Ignored(path, row.reason))
            continue
        try:
            ours = row.convert(value, place)
        except ValueError as error:
            result.problems.append(Problem(path, str(error)))
            continue
        if row.reason:
            result.remarks[path] = row.reason
        values |= {filled(key, found): (path, converted) for key, converted in ours.items()}
    for path, (source, value) in values.items():
        _put(result, path, value, source)
    for name in [name for name in result.data if name not in known and name in variables]:
        result.ignored.append(Ignored((name,), "is there for ${...} to read"))
        del result.data[name]
    if is_roll:
        for key, default in ROLL_DEFAULTS.items():
            path = tuple(key.split("."))
            value = default(Place(path, data, is_roll))
            if value is not None and _set(result.data, path, None if value is NULL else value, replace=False):
                result.defaults.append(path)
    return result


def is_without_effect(path: KeyPath) -> bool:
    """Whether nobody reads the key, or a section around it, in any file."""
    ends = range(1, len(path) + 1)
    return any(
        row.is_without_effect and row.applies is None and row.match(path[:end]) is not None
        for end in ends
        for row in ROWS
    )


def _rows_of(
    data: Mapping[str, Any], *, is_roll: bool
) -> Iterator[tuple[KeyPath, Any, Row, tuple[str, ...]]]:
    def visit(section: Mapping[str, Any], prefix: KeyPath) -> Iterator[Any]:
        for name, value in section.items():
            path = (*prefix, name)
            for row in ROWS:
                if row.only_roll_files and not is_roll:
                    continue
                found = row.match(path)
                if found is None:
                    continue
                if row.applies is None or row.applies(value, Place(path, data, is_roll)):
                    yield path, value, row, found
                    break
            else:
                if isinstance(value, Mapping):
                    yield from visit(value, path)

    return visit(data, ())


def _put(result: Translation, path: KeyPath, value: Any, source: KeyPath) -> None:
    if _set(result.data, path, value, replace=False):
        result.sources[path] = source
    elif _at(result.data, path) != value:
        message = f"means the same as {dotted(path)}, which the file has too, with another value; keep one"
        result.problems.append(Problem(source, message))


def _set(data: dict[str, Any], path: KeyPath, value: Any, *, replace: bool) -> bool:
    section: Any = data
    for part in path[:-1]:
        if section.get(part) is None:
            section[part] = {}
        section = section[part]
        if not isinstance(section, dict):
            return False
    if not replace and path[-1] in section:
        return False
    section[path[-1]] = value
    return True


def _at(data: Mapping[str, Any], path: KeyPath) -> Any:
    value: Any = data
    for part in path:
        value = value[part] if isinstance(value, Mapping) and part in value else None
    return value


def _remove(data: dict[str, Any], path: KeyPath) -> None:
    section: Any = data
    for part in path[:-1]:
        section = section[part]
    del section[path[-1]]
