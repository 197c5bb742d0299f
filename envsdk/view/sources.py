"""The runs and data sets in a folder.

    FOLDER                       a run, or a data set
    FOLDER/*, FOLDER/*/*         if FOLDER is neither: its subfolders that are

A run is what `envsdk train` leaves behind; a data set is any folder with Parquet files that hold
trajectories (`envsdk collect`, `envsdk serve --out`, or `write_trajectories` of your own).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import yaml

from envsdk.base.store.shards import FORMAT, MANIFEST
from envsdk.buffer.contract import BUFFER_FILE
from envsdk.contracts.failures import ConfigurationError
from envsdk.tracking import jsonl, timeline

CONFIG_FILE = "config.yaml"
TRAJECTORY_FOLDER = "trajectories"
_RUN_FILES = (CONFIG_FILE, jsonl.FILE_NAME, timeline.FILE_NAME)
_SHARD_PREFIX = "part-"
_MAX_SOURCES = 500
_SAMPLED_FILES = 200
_SAMPLED_BYTES = 64 * 1024**2

T = TypeVar("T")


class Kind(StrEnum):
    """What a source is."""

    RUN = "run"
    DATA = "data"


class Use(StrEnum):
    """The use of the trajectories in one file."""

    TRAIN = "train"
    """Delivered to a training step."""
    VALIDATION = "validation"
    DISCARDED = "discarded"
    """Played and not used: failed, stale, filtered out, or more than a group needs."""
    DATA = "data"
    """An episode of a data set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One run or data set."""

    source_id: str
    """Short, stable for a folder, fit for a URL."""
    name: str
    """The folder's path below the requested one."""
    kind: Kind
    folder: Path
    """Absolute."""
    is_sampled: bool = False
    """Only some of the trajectory files are read: see `spread_files`."""

    @property
    def trajectory_folder(self) -> Path:
        return self.folder / TRAJECTORY_FOLDER if self.kind is Kind.RUN else self.folder

    def trajectory_files(self) -> list[Path]:
        """The Parquet files to read, in the order they were written, as far as their names tell."""
        return spread_files(self._all_files()) if self.is_sampled else self._all_files()

    def num_files_left_out(self) -> int:
        """Trajectory files that are not read."""
        files = self._all_files() if self.is_sampled else []
        return len(files) - len(spread_files(files))

    def _all_files(self) -> list[Path]:
        files = list(self.trajectory_folder.glob("*.parquet"))
        if self.kind is Kind.DATA:
            # A collection may hold the same episodes in other formats as well.
            files = [path for path in files if path.name.startswith(_SHARD_PREFIX)] or files
        return sorted(files, key=lambda path: file_order(path.name))


def spread_files(files: Sequence[Path]) -> list[Path]:
    """Some of the files at even distances, with the first and the last: at most `_SAMPLED_FILES`.

    Fewer where files are large: together they have about `_SAMPLED_BYTES`, but for at least two.
    """
    sizes = [path.stat().st_size for path in files]
    fitting = int(len(files) * _SAMPLED_BYTES / max(1, sum(sizes)))
    return spread(files, min(_SAMPLED_FILES, max(2, fitting)))


def spread(values: Sequence[T], number: int) -> list[T]:
    """`number` of the values, or all, at even distances, the first and the last among them."""
    if number >= len(values):
        return list(values)
    if number <= 1:
        return list(values[:number])
    return [values[round(at * (len(values) - 1) / (number - 1))] for at in range(number)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRole:
    """What the name of a trajectory file tells about it."""

    use: Use
    step: int | None
    """The step that trained it, or before which it validated; None in data sets."""
    origin: str
    """Within one origin a group's number is unique."""


_RUN_FILE = re.compile(r"(?:(step|val)_(\d+)|discarded_(step|val)_(\d+)(?:_\d+)?)\.parquet")


def file_role(name: str, kind: Kind) -> FileRole:
    """Role of the file `name` of a source; what does not look like a run's file is data."""
    if kind is Kind.RUN and (match := _RUN_FILE.fullmatch(name)):
        step = int(match[2] or match[4])
        is_train = (match[1] or match[3]) == "step"
        use = Use.DISCARDED if match[3] else Use.TRAIN if is_train else Use.VALIDATION
        return FileRole(use=use, step=step, origin="train" if is_train else f"val_{step}")
    return FileRole(use=Use.DATA, step=None, origin="data")


def file_order(name: str) -> tuple[list[int], str]:
    """Sort key: by the numbers in the name, so that step 10 comes after step 9."""
    return [int(digits) for digits in re.findall(r"\d+", name)], name


def find_sources(folder: Path) -> list[Source]:
    """Everything to look at in `folder`, by name.

    Raises ConfigurationError, saying what was found instead, when there is nothing.
    """
    if not folder.exists():
        raise ConfigurationError(f"there is no folder {folder}. {_nearby(folder)}")
    if not folder.is_dir():
        raise ConfigurationError(
            f"{folder} is a file: give the folder of a run (runs/NAME), of several, or of a data set"
        )
    root = folder.resolve()
    own = kind_of(root)
    if own is not None:
        return [_source(root, root.name, own)]
    found = []
    for child in _folders(root):
        for each in _folders(child) if kind_of(child) is None else [child]:
            if (kind := kind_of(each)) is not None:
                found.append(_source(each, each.relative_to(root).as_posix(), kind))
    if not found:
        raise ConfigurationError(f"{folder} holds neither runs nor data sets{_contents(root)}")
    return found[:_MAX_SOURCES]


def run_source(folder: Path) -> Source:
    """The run in `folder`, sampled. Raises ConfigurationError, naming runs nearby, when there is none."""
    if not folder.is_dir():
        raise ConfigurationError(f"there is no run folder {folder}. {_runs_nearby(folder)}")
    known = (*_RUN_FILES, TRAJECTORY_FOLDER)
    if not any((folder / name).exists() for name in known):
        raise ConfigurationError(f"{folder} is not a run folder: it has none of {', '.join(known)}")
    root = folder.resolve()
    return replace(_source(root, root.name, Kind.RUN), is_sampled=True)


def kind_of(folder: Path) -> Kind | None:
    """What `folder` itself is; None when it is neither a run nor a data set."""
    # A job's trainer may come after its explorers: its folder then has the buffer alone.
    run_files = (*_RUN_FILES[1:], BUFFER_FILE)
    if (folder / TRAJECTORY_FOLDER).is_dir() or any((folder / name).is_file() for name in run_files):
        return Kind.RUN
    if _is_collection(folder / MANIFEST) or next(folder.glob("*.parquet"), None) is not None:
        return Kind.DATA
    return None


def _is_collection(manifest: Path) -> bool:
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """The settings of a run, and a sentence when there are none."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, f"{path.name}: there is none, so no settings are shown"
    except (OSError, ValueError, yaml.YAMLError) as error:
        return {}, f"{path.name} cannot be read ({' '.join(str(error).split())[:200]})"
    return ({str(name): value for name, value in content.items()} if isinstance(content, dict) else {}), ""


def _source(folder: Path, name: str, kind: Kind) -> Source:
    digest = hashlib.sha256(str(folder).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return Source(source_id=digest, name=name, kind=kind, folder=folder)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return []


def _contents(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())[:5]
    holds = f" (it has {', '.join(names)})" if names else " (it is empty)"
    return f"{holds}: a run has metrics.jsonl or trajectories/, a data set has Parquet files of trajectories"


def _nearby(folder: Path) -> str:
    if not folder.parent.is_dir():
        return "Give the folder that `envsdk train` or `envsdk collect` printed."
    names = [path.name for path in _folders(folder.parent)[:50] if kind_of(path) is not None]
    return (
        f"In {folder.parent} there are: {', '.join(names[:10])}" if names else f"{folder.parent} has no runs."
    )


def _runs_nearby(folder: Path) -> str:
    if not folder.parent.is_dir():
        return "Name the folder that the run printed when it started."
    runs = sorted(file.parent.name for file in folder.parent.glob(f"*/{CONFIG_FILE}"))
    if not runs:
        return f"There are no runs in {folder.parent.absolute()}."
    return f"Runs in {folder.parent.absolute()}: {', '.join(runs[:10])}"
