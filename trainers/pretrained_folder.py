"""Writing a Hugging Face folder: config, safetensors and the tokenizer of the folder it came from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from envsdk.contracts.failures import StorageError
from envsdk.trainers.torch_checkpoint import sync_to_disk

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.*",
    "merges.txt",
    "*.model",
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
        model.save_pretrained(folder, state_dict=state)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        for section in (config, config.get("text_config") or {}):
            section["dtype"] = dtype
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for pattern in TOKENIZER_FILES:
            for file in sorted(source.glob(pattern)):
                if file.is_file() and file.resolve().parent != folder.resolve():
                    shutil.copyfile(file, folder / file.name)
        for path in folder.iterdir():
            sync_to_disk(path)
        sync_to_disk(folder)
    except OSError as error:
        raise StorageError(f"cannot write a model into {folder}: {error}") from error
