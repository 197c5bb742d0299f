"""The decision about each mutation, line by line: a run that was killed resumes where it stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from envsdk.contracts.failures import ConfigurationError


class Journal:
    """Appends JSON records; a last line that was cut off is dropped when the file is opened again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: list[dict[str, Any]] = []
        data = path.read_bytes() if path.is_file() else b""
        whole = data[: data.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self.records.append(json.loads(line))
            except ValueError as error:
                raise ConfigurationError(f"{path}:{number}: damaged: {error}; delete the file") from None
        self._file = path.open("r+b" if path.is_file() else "w+b")
        self._file.truncate(len(whole))
        self._file.seek(len(whole))

    def append(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records.append(record)

    def close(self) -> None:
        self._file.close()
