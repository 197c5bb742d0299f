"""The decision about each mutation, line by line: a run that was killed resumes where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envsdk.base.store.appendfile import AppendFile
from envsdk.contracts.failures import ConfigurationError


class Journal:
    """Appends JSON records; a last line that was cut off is dropped when the file is opened again."""

    def __init__(self, path: Path) -> None:
        self._file = AppendFile(path, durable=True)
        self.records: list[dict[str, Any]] = []
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self.records.append(json.loads(line))
            except ValueError as error:
                raise ConfigurationError(f"{path}:{number}: damaged: {error}; delete the file") from None
        self._file.truncate(len(whole))

    def append(self, record: dict[str, Any]) -> None:
        self._file.append(json.dumps(record).encode() + b"\n")
        self.records.append(record)

    def close(self) -> None:
        self._file.close()
