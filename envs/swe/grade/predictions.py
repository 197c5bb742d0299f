"""Patches to grade: SWE-bench's predictions, a folder of patches, one patch, or the tasks' own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.tasks.records import Record, read_records
from envsdk.envs.swe.tasks.task import Task

GOLD = "gold"
"""In place of a file: the tasks' own patches."""
PATCH_SUFFIXES = (".patch", ".diff")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One patch for one task."""

    instance_id: str
    patch: str | None
    """None where nothing was predicted, which SWE-bench tells apart from an empty patch."""
    model: str
    """Who made it; "" where nobody says."""
    origin: str
    """`FILE:record 3`, or the file of the patch."""


def read_predictions(
    source: Path, tasks: Mapping[str, Task], *, instance_id: str | None = None
) -> list[Prediction]:
    """The patches of `source`, each of one of `tasks` (by id), no task twice.

    Args:
        source: A `.jsonl` or `.json` file of predictions (rows, a list, or an object by instance id), a
            folder with `INSTANCE.patch` files or such folders, a file with one patch, or `gold`.
        instance_id: The task of a file with one patch; absent, its name says, or there is one task only.

    Raises ConfigurationError: what is wrong, in which file and record.
    """
    found: dict[str, Prediction] = {}
    for prediction in _read(source, tasks, instance_id):
        if prediction.instance_id not in tasks:
            known = f"{len(tasks)} tasks, for example {next(iter(tasks))}"
            raise ConfigurationError(
                f"{prediction.origin}: there is no task {prediction.instance_id!r}; there are {known}"
            )
        if (other := found.get(prediction.instance_id)) is not None:
            raise ConfigurationError(
                f"{prediction.origin}: {prediction.instance_id} has a patch already, in {other.origin}; "
                "grade several samples of a task one file after another"
            )
        found[prediction.instance_id] = prediction
    if not found:
        raise ConfigurationError(f"{source}: there is no patch in it")
    return list(found.values())


def _read(source: Path, tasks: Mapping[str, Task], instance_id: str | None) -> Iterator[Prediction]:
    if str(source) == GOLD and not source.exists():
        for task in tasks.values():
            yield Prediction(
                instance_id=task.instance_id, patch=task.gold_patch, model=GOLD, origin=task.origin
            )
    elif source.is_dir():
        yield from _folder(source, tasks)
    elif source.suffix in (".jsonl", ".ndjson"):
        yield from (_prediction(record) for record in read_records(source))
    elif source.suffix == ".json":
        yield from (_prediction(record) for record in _json(source))
    else:
        yield _patch_file(source, instance_id or _named_by(source, tasks))


def _prediction(record: Record) -> Prediction:
    if "model_patch" not in record.values:
        raise record.error("model_patch", "is missing")
    return Prediction(
        instance_id=record.text("instance_id"),
        patch=record.text("model_patch") if record.has("model_patch") else None,
        model=record.text("model_name_or_path", ""),
        origin=record.origin,
    )


def _json(file: Path) -> Iterator[Record]:
    """Rows as a list, as an object by instance id, or one row."""
    try:
        values = json.loads(_text(file))
    except ValueError as error:
        raise ConfigurationError(f"{file}: is no JSON: {error}") from None
    if isinstance(values, dict) and "instance_id" in values:
        values = [values]
    rows = list(values.items()) if isinstance(values, dict) else list(enumerate(_listed(file, values), 1))
    for name, row in rows:
        origin = f"{file}:record {name}"
        if isinstance(values, dict) and isinstance(row, str | None):
            row = {"model_patch": row}
        if not isinstance(row, dict):
            raise ConfigurationError(f"{origin}: must be an object, not {type(row).__name__}")
        yield Record({**({"instance_id": name} if isinstance(values, dict) else {}), **row}, origin)


def _listed(file: Path, values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise ConfigurationError(f"{file}: must be a list or an object of predictions")
    return values


def _folder(folder: Path, tasks: Mapping[str, Task]) -> Iterator[Prediction]:
    """`INSTANCE.patch`, `INSTANCE/patch.diff` and the like."""
    for pattern in ("*", "*/*"):
        for file in sorted(folder.glob(pattern)):
            if file.suffix in PATCH_SUFFIXES and file.is_file():
                name = file.stem if pattern == "*" or file.stem in tasks else file.parent.name
                yield _patch_file(file, name)


def _patch_file(file: Path, instance_id: str) -> Prediction:
    return Prediction(instance_id=instance_id, patch=_text(file), model="", origin=str(file))


def _named_by(file: Path, tasks: Mapping[str, Task]) -> str:
    if file.stem in tasks or len(tasks) != 1:
        return file.stem
    return next(iter(tasks))


def _text(file: Path) -> str:
    try:
        # As git writes it: line ends are kept, and bytes that are not UTF-8.
        return file.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from None
