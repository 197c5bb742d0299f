"""The trainer's checkpoint on disk: `weights.safetensors`, `optimizer.safetensors`, `trainer.json`.

`trainer.json` is written last and holds a digest of the others, so a folder with it is complete and a
damaged file is noticed and named. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from envsdk.failures import StorageError

FORMAT = 1
_STATE_FILE = "trainer.json"


def sync_to_disk(path: Path) -> None:
    """Force a file, or a folder's list of names, onto the disk. OSError when the disk is full."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_checkpoint(
    folder: Path, files: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> None:
    """Write tensors by file name, then `state`, each synced. StorageError names what could not be written."""
    path = folder
    try:
        digests: dict[str, str] = {}
        for name, tensors in files.items():
            path = folder / name
            save_file({key: value.contiguous() for key, value in tensors.items()}, path)
            sync_to_disk(path)
            digests[name] = _digest(path)
        path = folder / _STATE_FILE
        path.write_text(json.dumps({"format": FORMAT, "digests": digests, **state}, indent=1) + "\n")
        sync_to_disk(path)
        sync_to_disk(folder)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot write {path}: {error}") from error


def read_checkpoint(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """What `write_checkpoint` wrote, on the CPU. StorageError names a missing or damaged file."""
    path = folder / _STATE_FILE
    try:
        state = json.loads(path.read_text())
        if state["format"] != FORMAT:
            raise StorageError(f"{path} has format {state['format']}; this version reads format {FORMAT}")
        files: dict[str, dict[str, Tensor]] = {}
        for name, digest in state["digests"].items():
            path = folder / name
            if _digest(path) != digest:
                raise StorageError(
                    f"{path} is damaged: its content is not what was saved; use an older checkpoint"
                )
            files[name] = load_file(path)
        return files, state
    except FileNotFoundError as error:
        raise StorageError(f"{path} is missing: the checkpoint is not complete; use an older one") from error
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise StorageError(f"{path} cannot be read: {error}; use an older checkpoint") from error


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()
