"""Apply another project's table to a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import KeyPath, Problem, dotted
from envsdk.base.settings.validation import shown
from envsdk.config.foreign.dialect import Dialect
from envsdk.config.foreign.row import NULL, Place, Row, filled, value_at

OurKeys = Callable[[KeyPath], Collection[str] | None]


@dataclass(slots=True)
class Translation:
    """A file in our keys."""

    data: dict[str, Any]
    sources: dict[KeyPath, KeyPath] = field(default_factory=dict)
    """Our key -> the key that the user wrote."""
    defaults: list[KeyPath] = field(default_factory=list)
    """Keys that the project's files may leave out and mean something else then than ours."""
    remarks: dict[KeyPath, str] = field(default_factory=dict)
    """The key that the user wrote -> what its translation does."""
    ignored: dict[KeyPath, str] = field(default_factory=dict)
    """Keys that have no effect, and why."""
    pending: dict[KeyPath, str] = field(default_factory=dict)
    """Keys that training needs and the file lacks, while it can be explained without: what to do."""
    problems: list[Problem] = field(default_factory=list)


def translate(
    data: Mapping[str, Any],
    dialect: Dialect,
    *,
    is_theirs: bool,
    variables: Collection[str],
    known: Collection[str],
    our_keys: OurKeys,
    is_override: Callable[[KeyPath], bool],
) -> Translation:
    """The file in our keys.

    Args:
        data: The file, interpolated, its types not checked.
        dialect: The project whose keys are translated.
        is_theirs: Whether the file is that project's. In others, rows that are marked so do not hold.
        variables: Top-level keys that are there for `${...}` to read.
        known: Our own top-level keys.
        our_keys: Our keys in a section; None where it takes any.
        is_override: Whether the user gave a key of ours on top of the file; it then replaces the file's.
    """
    data = dialect.renamed(data) if is_theirs else data
    result = Translation(deepcopy(dict(data)))
    result.problems = list(_malformed(data, dialect)) or dialect.kind_problems(data)
    if result.problems:
        return result
    result.pending = dict(dialect.pending(data))
    values: dict[KeyPath, tuple[KeyPath, Any]] = {}
    for path, value, row, found in list(_rows_of(data, dialect, is_theirs=is_theirs)):
        place = Place(path, data, is_theirs)
        remove(result.data, path)
        if row.is_refused:
            result.problems.append(Problem(path, row.reason))
            continue
        if row.convert is None:
            result.ignored[path] = row.reason
            continue
        try:
            ours = row.convert(value, place)
        except ValueError as error:
            result.problems += _failed(error, path)
            continue
        if row.reason:
            result.remarks[path] = row.reason
        values |= {filled(key, found): (path, converted) for key, converted in ours.items()}
    if is_theirs:
        result.problems += _unknown(result.data, dialect, our_keys)
        for name in dialect.sections & result.data.keys():
            if _is_blank(result.data[name]):
                del result.data[name]
            else:
                _strip(result.data[name], (name,), our_keys)
    for path, (source, value) in values.items():
        _put(result, path, value, source, is_override)
    for name in [name for name in result.data if name not in known and name in variables]:
        result.ignored[(name,)] = "is there for ${...} to read"
        del result.data[name]
    if is_theirs:
        for key, default in dialect.table().defaults.items():
            path = tuple(key.split("."))
            try:
                value = default(Place(path, data, is_theirs))
            except ValueError as error:
                result.problems += _failed(error, path)
                continue
            if value is not None and _set(result.data, path, None if value is NULL else value):
                result.defaults.append(path)
    # Keys that are converted together have one problem together.
    result.problems = list({problem.message: problem for problem in reversed(result.problems)}.values())[::-1]
    return result


def _failed(error: ValueError, path: KeyPath) -> list[Problem]:
    """What a conversion says; what it says of another key is said there, where it says the same."""
    return [Problem(path, str(error))] if getattr(error, "key", path[-1]) == path[-1] else []


def _rows_of(
    data: Mapping[str, Any], dialect: Dialect, *, is_theirs: bool
) -> Iterator[tuple[KeyPath, Any, Row, tuple[str, ...]]]:
    def visit(section: Any, prefix: KeyPath) -> Iterator[Any]:
        for name, value in _items(section):
            path = (*prefix, name)
            for row in dialect.rows:
                if row.only_their_files and not is_theirs:
                    continue
                found = row.match(path)
                if found is None:
                    continue
                if _holds(row, value, Place(path, data, is_theirs)):
                    yield path, value, row, found
                    break
            else:
                yield from visit(value, path)

    return visit(data, ())


def _holds(row: Row, value: Any, place: Place) -> bool:
    """Whether the row's condition is met; not where another key, whose own row says so, makes no sense."""
    try:
        return row.applies is None or row.applies(value, place)
    except ValueError:
        return False


def _items(section: Any) -> Iterator[tuple[Any, Any]]:
    """The keys of a mapping with their values, and the sections in a list with their numbers."""
    if isinstance(section, Mapping):
        yield from section.items()
    elif isinstance(section, list):
        yield from ((i, each) for i, each in enumerate(section) if isinstance(each, Mapping))


def _malformed(section: Any, dialect: Dialect, prefix: KeyPath = ()) -> Iterator[Problem]:
    """Values where sections belong, and numbers that make no sense: nothing is computed from either."""
    named = enumerate(section) if isinstance(section, list) else section.items()
    for name, value in named:
        path = (*prefix, name)
        is_list, is_number = isinstance(value, list), isinstance(value, bool | int | float)
        if isinstance(value, Mapping) or (is_list and all(isinstance(each, Mapping) for each in value)):
            yield from _malformed(value, dialect, path)
        elif (is_number or (value and path[0] in dialect.sections)) and dialect.is_section(path):
            what = "a list of sections" if is_list else "a section"
            yield Problem(path, f"must be {what} of keys, not {shown(value)}")
        elif problem := dialect.table().number_problem(path, value):
            yield Problem(path, problem)


def _unknown(data: Mapping[str, Any], dialect: Dialect, our_keys: OurKeys) -> Iterator[Problem]:
    """Keys in the project's sections that neither its table nor ours have."""

    def visit(section: Any, prefix: KeyPath) -> Iterator[Problem]:
        ours = our_keys(prefix)
        for name, value in _items(section):
            path, is_ours = (*prefix, name), ours is None or name in ours
            if is_ours and not isinstance(value, Mapping):
                continue
            if any(row.matches_section(path) for row in dialect.rows) or is_ours:
                yield from visit(value, path)
            else:
                hint = suggest(str(name), dialect.names_beside(path) | {*(ours or ())}, known="keys there")
                yield Problem(path, f"unknown key; {hint}")

    for name in dialect.sections & data.keys():
        yield from visit(data[name], (name,))


def _is_blank(value: Any) -> bool:
    """Whether all keys of a section are translated."""
    if isinstance(value, Mapping):
        return all(_is_blank(below) for below in value.values())
    return isinstance(value, list) and all(isinstance(each, Mapping) and _is_blank(each) for each in value)


def _strip(section: Any, prefix: KeyPath, our_keys: OurKeys) -> None:
    """Remove the project's sections that are translated."""
    ours = our_keys(prefix)
    for name, value in list(section.items()) if isinstance(section, dict) else []:
        path = (*prefix, name)
        if ours is not None and name not in ours and _is_blank(value):
            del section[name]
        else:
            _strip(value, path, our_keys)


def _put(
    result: Translation,
    path: KeyPath,
    value: Any,
    source: KeyPath,
    is_override: Callable[[KeyPath], bool],
) -> None:
    if _set(result.data, path, value):
        result.sources[path] = source
    elif value_at(result.data, path) != value and not is_override(path):
        message = f"means the same as {dotted(path)}, which the file has too, with another value; keep one"
        result.problems.append(Problem(source, message))


def _set(data: dict[str, Any], path: KeyPath, value: Any) -> bool:
    """Set a key that is not there, and return whether it was not."""
    section: Any = data
    for part in path[:-1]:
        if section.get(part) is None:
            section[part] = {}
        section = section[part]
        if not isinstance(section, dict):
            return False
    if path[-1] in section:
        return False
    section[path[-1]] = value
    return True


def remove(data: dict[str, Any], path: KeyPath) -> None:
    """Remove a key that is there."""
    section: Any = data
    for part in path[:-1]:
        section = section[part]
    del section[path[-1]]
