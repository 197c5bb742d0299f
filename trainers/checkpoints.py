"""Checkpoints of a run: written beside, synced, renamed; complete or not there.

    checkpoints/.step_000010.partial/ --fsync, rename--> checkpoints/step_000010/

A checkpoint holds the trainer (weights, optimizer, schedule, random state), the model as a Hugging
Face folder, and `run.json`. The ledger and the data cursor are in the batch files of
`trajectories/`, which are written before a batch is trained: resuming from step N trains the
batches N, N+1, ... that are already on disk, in order, and then goes on with new ones.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from envsdk.atomic import fsync_folder, make_folder, storage_error
from envsdk.failures import ConfigurationError, StorageError

FOLDER = "checkpoints"
RUN_FILE = "run.json"
KEEP_LAST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What `run.json` holds."""

    step: int
    """Batches trained: the number of the next one."""
    seed: int
    model: str
    """Folder the run began with."""
    kl_coef: float | None = None
    """Weight of the KL penalty in the next batch's rewards; None: `init_kl_coef`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One complete checkpoint."""

    folder: Path
    state: RunState


def write_checkpoint(run_dir: Path, state: RunState, save: Callable[[Path], None]) -> Path:
    """Let `save` fill a folder and make it the newest checkpoint. Older ones beyond a few are removed.

    Raises StorageError when the disk is full; nothing half-written is left.
    """
    folder = run_dir / FOLDER
    make_folder(folder)
    final = folder / f"step_{state.step:06d}"
    partial = folder / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        save(partial)
        (partial / RUN_FILE).write_text(json.dumps(asdict(state), indent=2) + "\n")
        _fsync_tree(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        fsync_folder(folder)
    except OSError as error:
        raise storage_error("write the checkpoint", final, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for old in sorted(folder.glob("step_*"))[:-KEEP_LAST]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def find_checkpoint(run_dir: Path, resume: str) -> Checkpoint | None:
    """What a run continues from: `auto`, `never` or a checkpoint's folder."""
    if resume == "never":
        return None
    if resume != "auto":
        folder = Path(resume)
        if not (folder / RUN_FILE).is_file():
            raise ConfigurationError(
                f"resume: {folder} is no complete checkpoint (it has no {RUN_FILE}); name a folder "
                f"such as {run_dir / FOLDER}/step_000010, or use auto or never"
            )
        return _read(folder)
    found = sorted((run_dir / FOLDER).glob("step_*"))
    return _read(found[-1]) if found else None


def _read(folder: Path) -> Checkpoint:
    try:
        state = RunState(**json.loads((folder / RUN_FILE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(
            f"checkpoint {folder} is damaged ({error}); remove it to use the one before"
        ) from error
    return Checkpoint(folder=folder, state=state)


def _fsync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        else:
            fsync_folder(path)
    fsync_folder(folder)
