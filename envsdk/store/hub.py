"""Models by their names on the Hugging Face hub, such as `Qwen/Qwen2.5-0.5B-Instruct`.

    folder, or name in the hub's cache  ->  as it is, without the network
    other name                          ->  downloaded into that cache, where `huggingface_hub` is installed

The hub's own variables say where it and its cache are, and whether the network may be used: `HF_ENDPOINT`,
`HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE`.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from envsdk.failures import ConfigurationError, describe_error
from envsdk.store.model_files import is_model_folder, weights_problem

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
"""What a policy is loaded from: no second copy of the weights in other formats."""


def is_hub_name(name: str) -> bool:
    """Whether `name` is one of the hub's, and no path of this machine's."""
    return _NAME.fullmatch(name) is not None and not Path(name).exists()


def known_folder(name: str) -> Path | None:
    """The folder of a model on this machine: the one that `name` is, or its copy in the hub's cache."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if not is_hub_name(name) or find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import snapshot_download

    try:
        found = Path(snapshot_download(name, allow_patterns=_FILES, local_files_only=True))
    except Exception:  # noqa: BLE001 - boundary: the library has an error for each way in which it can lack
        return None
    return found if is_model_folder(found) and weights_problem(found) is None else None


def model_folder(name: str) -> Path:
    """The folder of the model that `name` is or names; downloaded where it is not on this machine.

    Raises ConfigurationError where it cannot be had.
    """
    if (folder := known_folder(name)) is not None:
        return folder
    if not is_hub_name(name):
        raise ConfigurationError(f"there is no folder {Path(name).expanduser()}")
    if find_spec("huggingface_hub") is None:
        raise _unavailable(name, "huggingface_hub is not installed: pip install huggingface_hub")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # boundary: the library raises its own errors and those of its HTTP client
        raise _unavailable(name, f"the hub says: {_first_line(error)}") from error


def _unavailable(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name} is no folder, not in the hub's cache, and cannot be downloaded ({why}). Give the folder of "
        f"a model, or run `hf download {name}` where the network is, and set HF_HOME to its cache"
    )


def _first_line(error: Exception) -> str:
    return next(iter(describe_error(error).splitlines()), "")
