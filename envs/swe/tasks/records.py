"""Records of a data set, one by one, from JSONL or Parquet, and their fields with their type."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.syntax import literal
from envsdk.rewards.prompt_data.files import parquet_rows


@dataclass(frozen=True, slots=True)
class Record:
    """One record and where it stands, for errors that name file, record and field."""

    values: Mapping[str, Any]
    origin: str
    """`FILE:record 3`, counted from 1."""

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """The field as text; ConfigurationError where it is missing and there is no default."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise self.error(name, "is missing")
            return default
        if not isinstance(value, str):
            raise self.error(name, f"must be a text, not {type(value).__name__}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """The field as a list of texts, given as a list, or as one in JSON or as Python writes it."""
        value = self.values.get(name)
        if isinstance(value, str):
            value = self._parsed(name, value, or_python=True) if value.strip() else []
        if value is None:
            raise self.error(name, "is missing")
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, "must be a list of texts, or the JSON of one")
        return tuple(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """The field as an object, given as one or as the JSON of one; empty where it is missing."""
        value = self.values.get(name)
        if isinstance(value, str):
            value = self._parsed(name, value)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(name, "must be an object, or the JSON of one")
        return value

    def inner(self, values: Mapping[str, Any]) -> Record:
        """Another record at the same place."""
        return Record(values, self.origin)

    def error(self, name: str, problem: str) -> ConfigurationError:
        return ConfigurationError(f"{self.origin}: field {name!r}: {problem}")

    def _parsed(self, name: str, text: str, *, or_python: bool = False) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            with contextlib.suppress(ValueError, SyntaxError):
                if or_python:
                    return literal(text)
            raise self.error(name, f"is no JSON: {error}") from None


def read_records(path: Path) -> Iterator[Record]:
    """The records of a `.jsonl`, `.json` or `.parquet` file, in order.

    Raises ConfigurationError: the file is missing or of another kind, or a record cannot be read.
    """
    if not path.is_file():
        raise ConfigurationError(f"{path}: there is no such file")
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        rows = parquet_rows(path)
    elif suffix in (".jsonl", ".json", ".ndjson"):
        rows = _json_lines(path)
    else:
        raise ConfigurationError(f"{path}: must be a .jsonl, .json or .parquet file")
    for number, values in enumerate(rows, 1):
        origin = f"{path}:record {number}"
        if not isinstance(values, dict):
            raise ConfigurationError(f"{origin}: must be an object, not {type(values).__name__}")
        yield Record(values, origin)


def _json_lines(path: Path) -> Iterator[Any]:
    """One JSON value per line, or one list of all."""
    first = ""
    with path.open(encoding="utf-8") as file:
        try:
            first = file.read(1)
            file.seek(0)
            if first == "[":
                yield from json.load(file)
                return
            number = 0
            for line in file:
                if line.strip():
                    number += 1
                    yield json.loads(line)
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path}: is not UTF-8: {error}") from None
        except json.JSONDecodeError as error:
            where = "" if first == "[" else f":record {number}"
            raise ConfigurationError(f"{path}{where}: is no JSON: {error}") from None
