"""Opens prompt data."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.failures import ConfigurationError
from envsdk.prompt_data.arithmetic import SCHEME, generated_file
from envsdk.prompt_data.prompts import PromptRow, PromptSource


class NoRows(ConfigurationError):
    """The files are there, and none of their rows is asked for or can be used."""


class Prompts:
    """The rows of a source that can be used, by number."""

    def __init__(self, source: PromptSource) -> None:
        self.source = source
        self.counts: Counter[str] = Counter()
        """Rows by tag."""
        self.unusable: list[tuple[str, str]] = []
        """Place and reason."""
        places: list[tuple[int, int, int]] = []
        self._files = [
            str(generated_file(name)) if name.startswith(SCHEME) else name for name in source.files
        ]
        for number, name in enumerate(self._files):
            if not Path(name).is_file():
                raise ConfigurationError(f"there is no file of prompts {name}")
            with open(name, "rb") as file:
                offset = 0
                for line_number, line in enumerate(file, 1):
                    row = json.loads(line) if line.strip() else None
                    if row is not None and (not source.tags or _tag(row) in source.tags):
                        places.append((number, offset, line_number))
                        self.counts[_tag(row)] += 1
                    offset += len(line)
        if not places:
            raise NoRows(f"no row of {', '.join(source.files)} can be used")
        self._places: NDArray[np.int64] = np.array(places, np.int64)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> PromptRow:
        number, offset, line_number = self._places[index].tolist()
        name = self._files[number]
        with open(name, "rb") as file:
            file.seek(offset)
            fields: dict[str, Any] = json.loads(file.readline())
        for standard, column in self.source.columns.items():
            fields[standard] = fields.get(column)
        messages = fields.get("messages") or [{"role": "user", "content": fields["prompt"]}]
        if isinstance(messages, str):
            messages = json.loads(messages)
        return PromptRow(messages=messages, fields=fields, place=f"{name}:{line_number}")

    def nth(self, number: int, *, seed: int | None) -> int:
        """Index of the row that is asked as number `number`.

        Each epoch asks all rows, in an order that `seed` decides; None keeps the order of the files.
        """
        epoch, position = divmod(number, len(self))
        if seed is None:
            return position
        return int(_order(len(self), seed, epoch)[position])


@cache
def _order(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(length)


def _tag(row: dict[str, Any]) -> str:
    return str(row.get("tag") or row.get("domain") or "")


@cache
def _opened(source: str) -> Prompts:
    return Prompts(PromptSource.model_validate_json(source))


_opening = Lock()
"""Environments start on threads, hundreds at once: one of them reads the files, the others wait for it."""


def open_prompts(source: PromptSource) -> Prompts:
    """The rows of `source`; equal sources share one. Raises ConfigurationError."""
    with _opening:
        return _opened(source.model_dump_json())
