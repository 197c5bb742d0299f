"""What a run begins with, or continues with: its folder for itself, its model, its configuration on disk."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envsdk.base.store.atomic import make_folder, write_atomically
from envsdk.base.store.file_lock import locked
from envsdk.config.loading import LoadedConfig
from envsdk.contracts.failures import ConfigurationError
from envsdk.runs.run_folder import CONFIG_FILE, RunFolder, changed_settings, keep_tokenizer
from envsdk.runs.run_origin import model_of_run

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
