"""The folder of a run: where a run continues, and with which settings it was last started.

folder = RunFolder.open(config)
folder.first_step, folder.batches
"""

from __future__ import annotations

import atexit
import gc
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from envsdk.base.settings.problems import dotted, leaves
from envsdk.base.settings.validation import shown
from envsdk.base.store.atomic import make_folder, remove_leftovers, write_atomically
from envsdk.base.store.file_lock import locked
from envsdk.base.store.trajectories import read_metadata
from envsdk.config.loading import LoadedConfig
from envsdk.config.models import RunConfig
from envsdk.contracts.failures import ConfigurationError
from envsdk.managers.ledger_types import LedgerState
from envsdk.runs.checkpoints import FOLDER as CHECKPOINTS
from envsdk.runs.checkpoints import Checkpoint, RunState, find_checkpoint
from envsdk.runs.rollout_metrics import validation_problem
from envsdk.runs.run_origin import check_seed, model_of_run
from envsdk.runs.selection import Selection
from envsdk.tracking import read_metrics
from envsdk.tracking.jsonl import FILE_NAME as METRICS_FILE

TRAJECTORIES = "trajectories"
CONFIG_FILE = "config.yaml"


@dataclass(slots=True)
class RunFolder:
    """`runs/<exp_name>/`: the checkpoint and the batches that a run continues with."""

    path: Path
    checkpoint: Checkpoint | None
    has_begun: bool = False
    """Whether it holds a checkpoint of this run, or batches."""
    batches: dict[int, Path] = field(default_factory=dict)
    """Batches on disk that the checkpoint has not trained, by step."""
    state: LedgerState | None = None
    """The ledger's state after the newest batch on disk or, where none is left, in the checkpoint."""

    @property
    def first_step(self) -> int:
        return self.checkpoint.state.step if self.checkpoint else 0

    @classmethod
    def open(cls, config: RunConfig) -> Self:
        """Find where to continue.

        ConfigurationError when `resume: never` would overwrite a run, or the run has another `seed`.
        """
        path = config.run_folder
        checkpoint = find_checkpoint(path, config.resume)
        trajectories = path / TRAJECTORIES
        left = itertools.chain(trajectories.glob("step_*.parquet"), (path / CHECKPOINTS).glob("step_*"))
        if config.resume == "never" and any(left):
            raise ConfigurationError(
                f"resume: never, but {path} already holds a run; choose another exp_name, "
                f"set resume: auto to continue it, or remove the folder"
            )
        is_own = checkpoint is not None and checkpoint.folder.resolve().is_relative_to(path.resolve())
        if checkpoint is not None and is_own:
            check_seed(config, checkpoint.state.seed)
        return cls._with_batches(path, checkpoint, has_begun=is_own)

    @classmethod
    def of_batches(cls, config: RunConfig, state: Mapping[str, Any] | None) -> Self:
        """The folder of rollouts for another trainer, from the `step` and the `ledger` of its `state` on.

        ConfigurationError when the folder holds a run of `envsdk train`, or `resume: never` a run at all.
        """
        path = config.run_folder
        if any((path / CHECKPOINTS).glob("step_*")):
            raise ConfigurationError(
                f"{path} holds checkpoints of envsdk train; choose another exp_name for your trainer"
            )
        if state is None and config.resume == "never" and any((path / TRAJECTORIES).glob("step_*.parquet")):
            raise ConfigurationError(
                f"resume: never, but {path} already holds batches; choose another exp_name, give the `state` "
                "to continue from, or remove the folder"
            )
        if state is None:
            return cls._with_batches(path, None, has_begun=False)
        began = RunState(step=state["step"], seed=state["seed"], ledger=state["ledger"])
        return cls._with_batches(path, Checkpoint(folder=path, state=began), has_begun=True)

    @classmethod
    def _with_batches(cls, path: Path, checkpoint: Checkpoint | None, *, has_begun: bool) -> Self:
        trajectories = path / TRAJECTORIES
        make_folder(trajectories)
        # Not those of evaluations: another program of the job may be writing one.
        for names in ("step_*", "discarded_step_*"):
            remove_leftovers(trajectories, names)
        folder = cls(path=path, checkpoint=checkpoint, has_begun=has_begun)
        step = folder.first_step
        while (batch := trajectories / f"step_{step:06d}.parquet").is_file():
            folder.batches[step] = batch
            folder.has_begun = True
            step += 1
        newest = folder.ledger_before(step)
        folder.state = None if newest is None else LedgerState.from_dict(newest)
        return folder

    def ledger_before(self, step: int) -> Mapping[str, Any] | None:
        """`LedgerState.to_dict` after the batch before this step, from its file or else the checkpoint.

        None before the first, and in a job whose ledger is the buffer.
        """
        batch = self.path / TRAJECTORIES / f"step_{step - 1:06d}.parquet"
        if batch.is_file():
            state = read_metadata(batch).get("ledger_state")
            return None if state is None else dict(json.loads(state))
        if self.checkpoint is not None and step == self.first_step:
            return self.checkpoint.state.ledger
        return None


def validations_of(run_dir: Path) -> dict[int, dict[str, float]]:
    """The evaluations that the metrics of a run hold, by step."""
    metrics = run_dir / METRICS_FILE
    rows = read_metrics(metrics) if metrics.is_file() else []
    return {
        int(row["step"]): {name: value for name, value in row.items() if name.startswith("val/")}
        for row in rows
        if "val/episodes" in row
    }


def lacks_last_evaluation(config: RunConfig, folder: RunFolder) -> bool:
    """Whether a run has all its steps, but not the evaluation after them, or one that counts for nothing.

    False where the run plays no evaluations, or keeps no metrics to see it by.
    """
    if folder.first_step != config.max_steps or config.mode != "both" or not config.val_batch_size:
        return False
    last = validations_of(folder.path).get(config.max_steps)
    if last is None:
        return (folder.path / METRICS_FILE).is_file()
    return bool(validation_problem(last, config.max_failed_share))


def stopped_early(config: RunConfig, folder: RunFolder) -> bool:
    """Whether the run ended at its checkpoint because evaluations no longer improved."""
    state = None if folder.checkpoint is None else folder.checkpoint.state.selection
    selection, last = Selection.of(config, state), validations_of(folder.path).get(folder.first_step, {})
    return selection.metric in last and selection.with_evaluation(folder.first_step, last).is_over


def changed_settings(folder: RunFolder, loaded: LoadedConfig) -> list[str]:
    """`key: before -> now` of what the run was last started with and is continued with."""
    file = folder.path / CONFIG_FILE
    before = dict(leaves(yaml.safe_load(file.read_text()))) if file.is_file() else {}
    now = dict(leaves(yaml.safe_load(loaded.resolved_yaml())))
    return [
        f"{dotted(path)}: {shown(before.get(path))} -> {shown(now.get(path))}"
        for path in dict.fromkeys([*before, *now])
        if before.get(path) != now.get(path) and before
    ]


def keep_tokenizer(model: Path, folder: Path) -> None:
    """Copy a model's `tokenizer.json`, if it has one: a run's tokens stay readable without the model."""
    tokenizer = model / "tokenizer.json"
    if tokenizer.is_file():
        write_atomically(folder / tokenizer.name, tokenizer.read_bytes())


LOCK_PATIENCE_S = 5.0
"""A process that was just killed may need a moment to end."""


@contextmanager
def only_run_in(
    folder: Path, *, taken: str = "another process is training in", key: str = "exp_name"
) -> Iterator[None]:
    """Keep a second process out of `folder`: its error says who is there by `taken`, and to change `key`."""
    make_folder(folder)
    problem = ConfigurationError(f"{taken} {folder}; wait for it, or choose another {key}")
    with locked(folder / ".lock", patience_s=LOCK_PATIENCE_S, taken=problem):
        yield


def begin(loaded: LoadedConfig, folder: RunFolder) -> tuple[Path, list[str]]:
    """The model of the run in `folder`, which is made where it is missing, and the settings that changed.

    Writes the configuration and the tokenizer into the folder.
    """
    # The interpreter's last searches for cycles take seconds where PyTorch and Ray are loaded.
    atexit.register(gc.freeze)
    model = model_of_run(loaded.config, has_begun=folder.has_begun)
    changes = changed_settings(folder, loaded) if folder.has_begun else []
    write_atomically(folder.path / CONFIG_FILE, loaded.resolved_yaml().encode())
    keep_tokenizer(model, folder.path)
    return model, changes
