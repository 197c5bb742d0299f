"""Models and data sets by name: `Qwen/Qwen2.5-0.5B-Instruct` of the Hugging Face hub, or `smollm2`.

    folder, or name in a cache  ->  as it is, without the network
    other name of the hub's     ->  downloaded into that cache, where `huggingface_hub` is installed
    other registered model      ->  made (`named_models.py`); a model folder of the same name comes first

The hub's own variables say where it and its cache are, and whether the network may be used: `HF_ENDPOINT`,
`HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE`.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from envsdk.base.plugins import plugin_names
from envsdk.base.settings.nearest import did_you_mean
from envsdk.base.store.model_files import is_model_folder, weights_problem
from envsdk.base.store.named_models import GROUP, is_named_model, made_folder, make_model
from envsdk.contracts.failures import ConfigurationError, describe_error

Kind = Literal["model", "dataset"]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FILES: dict[Kind, list[str]] = {
    "model": ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"],
    "dataset": ["*.json", "*.jsonl", "*.jsonl.gz", "*.parquet"],
}
"""What is read: no second copy of the weights in other formats, no images."""


def is_model_name(name: str) -> bool:
    """Whether `name` is a registered model's or one of the hub's, and no model folder of this machine's."""
    return is_named_model(name) or is_hub_name(name)


def is_hub_name(name: str) -> bool:
    """Whether `name` is one of the hub's, and no path of this machine's."""
    return _NAME.fullmatch(name) is not None and not Path(name).exists()


def known_folder(name: str, kind: Kind = "model") -> Path | None:
    """The folder on this machine that `name` is, or that a cache has of it; without the network."""
    if kind == "model" and is_named_model(name):
        return made_folder(name)
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if not is_hub_name(name) or find_spec("huggingface_hub") is None:
        return None
    try:
        found = _snapshot(name, kind, local_files_only=True)
    except Exception:  # noqa: BLE001 - boundary: the library has an error for each way in which it can lack
        return None
    is_complete = kind != "model" or (is_model_folder(found) and weights_problem(found) is None)
    return found if is_complete else None


def hub_folder(name: str, kind: Kind = "model") -> Path:
    """The folder that `name` is or names; downloaded or made where it is not on this machine.

    Raises ConfigurationError where it cannot be had.
    """
    if (folder := known_folder(name, kind)) is not None:
        return folder
    if kind == "model" and is_named_model(name):
        return make_model(name)
    if not is_hub_name(name):
        hint = did_you_mean(name, plugin_names(GROUP)) if kind == "model" else ""
        raise ConfigurationError(f"there is no folder {Path(name).expanduser()}{hint and '.' + hint}")
    if find_spec("huggingface_hub") is None:
        raise unavailable(name, kind, "huggingface_hub is not installed: pip install huggingface_hub")
    try:
        return _snapshot(name, kind)
    except Exception as error:  # boundary: the library raises its own errors and those of its HTTP client
        raise unavailable(name, kind, f"the hub says: {describe_error(error)}") from error


def unavailable(name: str, kind: Kind, why: str) -> ConfigurationError:
    """What is said of a name that is not on this machine and cannot be downloaded."""
    shown = "model" if kind == "model" else "data set"
    option = "" if kind == "model" else " --repo-type dataset"
    return ConfigurationError(
        f"{name} is no folder, not in the hub's cache, and cannot be downloaded ({why}). Give the folder of "
        f"a {shown}, or run `hf download {name}{option}` where the network is, and set HF_HOME to its cache"
    )


def _snapshot(name: str, kind: Kind, **options: Any) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, repo_type=kind, allow_patterns=_FILES[kind], **options))
