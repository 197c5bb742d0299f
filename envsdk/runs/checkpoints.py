"""Checkpoints of a run: written to a temporary folder, synced, renamed: complete or absent.

    checkpoints/.step_000010.partial/ --fsync, rename--> checkpoints/step_000010/
                                                         --rename--> .step_000010.removed/ --> deleted
    checkpoints/best                       a link to the checkpoint with the best held-out metric

A checkpoint holds the trainer (weights, optimizer, schedule, random state), the model as a Hugging
Face folder, and `run.json`. The ledger with the data cursor is in there and in the batch files of
`trajectories/`, which are written before a batch is trained: resuming from step N trains the
batches N, N+1, ... that are already on disk, in order, and then new ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from envsdk.base.store.atomic import fsync_tree, make_folder, remove_folder, replaced_folder, storage_error
from envsdk.base.store.file_digests import describe
from envsdk.contracts.failures import ConfigurationError, StorageError

FOLDER = "checkpoints"
RUN_FILE = "run.json"
BEST = "best"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The content of `run.json`."""

    step: int
    """Batches trained: the number of the next one."""
    seed: int
    kl_coef: float | None = None
    """Weight of the KL penalty in the next batch's rewards; None: `init_kl_coef`."""
    ledger: Mapping[str, Any] | None = None
    """`LedgerState.to_dict` after the newest batch that is trained; None before the first."""
    selection: Mapping[str, Any] | None = None
    """`Selection.state`: the evaluations that the best checkpoint is chosen by."""
    number: int = field(default=0, compare=False)
    """Counts the checkpoints of a run. The highest is the newest, whatever its step: a run may go back."""
    files: Mapping[str, str] = field(default_factory=dict, compare=False)
    """`file_digests.describe` of everything beside this file; empty until it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One complete checkpoint."""

    folder: Path
    state: RunState


def write_checkpoint(
    run_dir: Path,
    state: RunState,
    save: Callable[[Path], None],
    *,
    keep: int = 0,
    spared: Collection[int] = (),
) -> Path:
    """Let `save` fill a folder and make it the newest checkpoint. Of the others only the newest stay, `keep`
    with this one (0: all), and those of the steps `spared`.

    Raises StorageError when the disk is full; nothing half-written is left.
    """
    folder = run_dir / FOLDER
    make_folder(folder)
    earlier = _in_order(folder)
    number = earlier[-1].state.number + 1 if earlier else 1
    final = folder_of(run_dir, state.step)
    for leftover in folder.glob(".step_*.removed"):
        shutil.rmtree(leftover, ignore_errors=True)
    with replaced_folder(final, "write the checkpoint") as partial:
        save(partial)
        files = describe(partial)
        content = json.dumps(asdict(replace(state, number=number)) | {"files": files}, indent=2)
        (partial / RUN_FILE).write_text(content + "\n")
        fsync_tree(partial)
    others = [each for each in earlier if each.folder != final and each.state.step not in spared]
    for old in others[: max(0, len(others) + 1 - keep)] if keep else ():
        remove_folder(old.folder)
    return final


def link_best(run_dir: Path, step: int | None) -> None:
    """Let `checkpoints/best` lead to the checkpoint of `step`; without such a checkpoint there is no link.

    StorageError when the link cannot be made.
    """
    link = run_dir / FOLDER / BEST
    new = link.with_name(f".{BEST}.partial")
    try:
        if step is None or not folder_of(run_dir, step).is_dir():
            link.unlink(missing_ok=True)
            return
        new.unlink(missing_ok=True)
        new.symlink_to(folder_of(run_dir, step).name)
        new.replace(link)
    except OSError as error:
        raise storage_error("link", link, error) from error


def folder_of(run_dir: Path, step: int) -> Path:
    """The checkpoint of this step."""
    return run_dir / FOLDER / f"step_{step:06d}"


def find_checkpoint(run_dir: Path, resume: str) -> Checkpoint | None:
    """The checkpoint that a run continues from: `auto`, `never` or a checkpoint's folder."""
    if resume == "never":
        return None
    if resume != "auto":
        folder = Path(resume).expanduser()
        if not (folder / RUN_FILE).is_file():
            raise ConfigurationError(
                f"resume: {folder} is no complete checkpoint (it has no {RUN_FILE}); name a folder "
                f"such as {run_dir / FOLDER}/step_000010, or use auto or never"
            )
        return _read(folder)
    found = _in_order(run_dir / FOLDER)
    return found[-1] if found else None


def oldest_step(run_dir: Path) -> int:
    """The earliest step that a run can still go back to; 0 without checkpoints."""
    return min((each.state.step for each in _in_order(run_dir / FOLDER)), default=0)


def _in_order(folder: Path) -> list[Checkpoint]:
    """Oldest first."""
    found = [_read(each) for each in folder.glob("step_*")]
    return sorted(found, key=lambda each: (each.state.number, each.state.step))


def _read(folder: Path) -> Checkpoint:
    try:
        held = json.loads((folder / RUN_FILE).read_text())
        known = {each.name for each in fields(RunState)}
        state = RunState(**{name: value for name, value in held.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise StorageError(
            f"checkpoint {folder} is damaged ({error}); remove it, and the run continues from another"
        ) from error
    return Checkpoint(folder=folder, state=state)
