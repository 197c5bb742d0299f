"""Writing a Hugging Face folder: config, safetensors and the tokenizer of the folder it came from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from envsdk.base.store.atomic import fsync_tree
from envsdk.contracts.failures import StorageError
from envsdk.weights.folders import tensors_in

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*processor_config.json",
)


def write_pretrained(
    folder: Path, *, model: Any, state: Mapping[str, Tensor], source: Path, dtype: str
) -> None:
    """`model` gives the config, `state` the weights, the folder `source` the tokenizer files to copy.

    The config names `dtype`, the type to compute in: weights may be stored in more bits, as rounding would
    take back what was learned. StorageError names what could not be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _has_towers(source):
            _write_with_towers(folder, model, state, source)
        else:
            model.save_pretrained(folder, state_dict=state)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        for section in (config, config.get("text_config") or {}):
            section["dtype"] = dtype
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for pattern in TOKENIZER_FILES:
            for file in sorted(source.glob(pattern)):
                if file.is_file() and file.resolve().parent != folder.resolve():
                    shutil.copyfile(file, folder / file.name)
        fsync_tree(folder)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot write a model into {folder}: {error}") from error


def _has_towers(folder: Path) -> bool:
    config = folder / "config.json"
    return config.is_file() and "text_config" in json.loads(config.read_text(encoding="utf-8"))


def _write_with_towers(folder: Path, model: Any, state: Mapping[str, Tensor], source: Path) -> None:
    """The whole model of the folder `source`, in which `model` is the language model."""
    trained = revert_weight_conversion(model, dict(state))
    # Copies, because of two names for one tensor only one would be written.
    whole = {name: trained.get(name, kept).clone() for name, kept in tensors_in(source)}
    save_torch_state_dict(whole, folder)
    for name in ("config.json", "generation_config.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
