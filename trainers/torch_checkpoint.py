"""The trainer's checkpoint on disk: `weights*.safetensors`, `optimizer*.safetensors`, `trainer.json`.

One file of each kind, or one of each for every rank; each full tensor is in one file, so any number of ranks
reads what any other wrote. `trainer.json` is written last and holds a digest of the others, so a folder
with it is complete and a damaged file is noticed and named. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from envsdk.base.store.atomic import fsync_path
from envsdk.contracts.failures import StorageError

FORMAT = 1
_STATE_FILE = "trainer.json"
_WEIGHT = "weight/"


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], *, part: str = "") -> dict[str, str]:
    """Write what `Optimizer.state` gave, synced; returns the digest of each file.

    `part` sets the files of one rank apart. StorageError names what could not be written.
    """
    weights = {name: tensor for name, tensor in tensors.items() if name.startswith(_WEIGHT)}
    files = {
        f"weights{part}.safetensors": {name.removeprefix(_WEIGHT): value for name, value in weights.items()},
        f"optimizer{part}.safetensors": {
            name: value for name, value in tensors.items() if name not in weights
        },
    }
    digests: dict[str, str] = {}
    for name, content in files.items():
        path = folder / name
        try:
            save_file({key: value.contiguous() for key, value in content.items()}, path)
            fsync_path(path)
            digests[name] = _digest(path)
        except (OSError, SafetensorError) as error:
            raise StorageError(f"cannot write {path}: {error}") from error
    return digests


def write_state(folder: Path, digests: Mapping[str, str], *, num_optimizer_steps: int) -> None:
    """Complete the checkpoint. StorageError names what could not be written."""
    path = folder / _STATE_FILE
    state = {"format": FORMAT, "digests": digests, "num_optimizer_steps": num_optimizer_steps}
    try:
        path.write_text(json.dumps(state, indent=1) + "\n")
        fsync_path(path)
        fsync_path(folder)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error


class StoredCheckpoint(Mapping[str, Tensor]):
    """What `write_tensors` was given, by whatever ranks: open -> verify -> read.

    Tensors are read one by one as they are asked for, onto the CPU. StorageError names a missing or
    damaged file.
    """

    num_optimizer_steps: int
    files: list[str]
    """To be verified before the first tensor is read; ranks may divide them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with _reading(folder / _STATE_FILE) as path:
            state = json.loads(path.read_text())
            if state["format"] != FORMAT:
                raise StorageError(f"{path} has format {state['format']}; this version reads format {FORMAT}")
            self.num_optimizer_steps = int(state["num_optimizer_steps"])
            self._digests: dict[str, str] = dict(state["digests"])
        self.files = list(self._digests)
        self._sources: dict[str, tuple[Any, str]] | None = None

    def verify(self, files: Iterable[str]) -> None:
        """Compare the content of `files` with what was saved."""
        for name in files:
            with _reading(self.folder / name) as path:
                if _digest(path) != self._digests[name]:
                    raise StorageError(
                        f"{path} is damaged: its content is not what was saved; use an older checkpoint"
                    )

    def __getitem__(self, name: str) -> Tensor:
        file, key = self._opened()[name]
        tensor: Tensor = file.get_tensor(key)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened())

    def __len__(self) -> int:
        return len(self._opened())

    def _opened(self) -> dict[str, tuple[Any, str]]:
        """File and name in it of each tensor."""
        if self._sources is None:
            self._sources = {}
            for name in self.files:
                prefix = _WEIGHT if name.startswith("weights") else ""
                with _reading(self.folder / name) as path:
                    file: Any = safe_open(path, framework="pt")
                    keys: list[str] = file.keys()
                    self._sources |= {prefix + key: (file, key) for key in keys}
        return self._sources


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """StorageError names `path` when it is missing or cannot be read."""
    try:
        yield path
    except FileNotFoundError as error:
        raise StorageError(f"{path} is missing: the checkpoint is not complete; use an older one") from error
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise StorageError(f"{path} cannot be read: {error}; use an older checkpoint") from error


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()
