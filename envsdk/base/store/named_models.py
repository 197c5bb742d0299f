"""Folders of models that have a name: made once, kept in the cache folder, checked at each start.

    made_folder("smollm2")     # the folder if it is there and whole, else None
    make_model("smollm2")      # the same, made where it is not: by one process, while others wait

A folder is complete or absent. Its record holds size and CRC-32 of each file: a damaged folder is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from functools import lru_cache
from pathlib import Path

from envsdk.base.display.terminal import say
from envsdk.base.plugins import load_plugin, plugin_names
from envsdk.base.store.atomic import fsync_path, make_folder, storage_error, write_json_atomically
from envsdk.base.store.cache import cache_folder
from envsdk.base.store.file_digests import damaged, describe
from envsdk.base.store.file_lock import held_to_make
from envsdk.base.store.model_files import is_model_folder
from envsdk.contracts.failures import ConfigurationError, EnvsdkError, describe_error
from envsdk.contracts.named_model import NamedModel

GROUP = "envsdk.models"
RECORD = "named_model.json"
"""File beside the weights: the model, and what its files were when they were written."""


def is_named_model(name: str) -> bool:
    """Whether `name` is a registered model's, and no model folder of this machine's."""
    return name in plugin_names(GROUP) and not is_model_folder(Path(name))


def named_model(name: str) -> NamedModel:
    """The record of a registered name. ConfigurationError where its package cannot be imported."""
    model = load_plugin(GROUP, name)
    if not isinstance(model, NamedModel):
        raise ConfigurationError(f"{name!r} in {GROUP} is a {type(model).__name__}, not a NamedModel")
    return model


def made_folder(name: str) -> Path | None:
    """The folder of a registered name; None where it is not made yet, or damaged."""
    folder = _folder(name, named_model(name))
    return None if _fault(folder) else folder


def make_model(name: str) -> Path:
    """The folder of a registered name, made where `made_folder` has none. Prints one line when it is made.

    ConfigurationError and StorageError say why it cannot be made.
    """
    model = named_model(name)
    folder = _folder(name, model)
    make_folder(folder.parent)
    waiting = f"{name}: another process is making this model, waiting"
    with held_to_make(folder.parent / f".{folder.name}.lock", lambda: say(waiting, err=True, flush=True)):
        if fault := _fault(folder):
            _make(name, model, folder, fault)
    return folder


def _folder(name: str, model: NamedModel) -> Path:
    digest = hashlib.sha256(model.recipe.encode()).hexdigest()[:12]
    return cache_folder() / "models" / f"{name}-{digest}"


def _make(name: str, model: NamedModel, folder: Path, fault: str) -> None:
    again = f" again, because {fault}," if folder.is_dir() else ""
    facts = f"license {model.license}" + (f"; {model.caveat}" if model.caveat else "")
    say(f"{name}: making {model.title} from {model.source}{again} in {folder}; {facts}", err=True, flush=True)
    work = folder.with_name(f".{folder.name}.work")
    unfinished = work / name
    shutil.rmtree(work, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        model.make(unfinished)
        told = {key: getattr(model, key) for key in ("title", "license", "source", "caveat", "recipe")}
        write_json_atomically(unfinished / RECORD, {**told, "files": describe(unfinished)})
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(unfinished, folder)
        fsync_path(folder.parent)
    except EnvsdkError:
        raise
    except OSError as error:
        raise storage_error("write", folder, error) from error
    except Exception as error:  # boundary: the code of another package
        raise ConfigurationError(f"model {name} cannot be made: {describe_error(error)}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _fault(folder: Path) -> str:
    """What is wrong with a folder; empty where it is whole. A process reads files again if they changed."""
    try:
        record = (folder / RECORD).read_bytes()
        found = [(folder / name).stat() for name in json.loads(record)["files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it is not whole ({describe_error(error)})"
    return _damage(folder, record, tuple((each.st_size, each.st_mtime_ns) for each in found))


@lru_cache(maxsize=8)
def _damage(folder: Path, record: bytes, seen: tuple[tuple[int, int], ...]) -> str:
    return "; ".join(damaged(folder, json.loads(record)["files"]))
