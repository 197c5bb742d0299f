"""What a Hugging Face folder holds: whether it is one, whether its weights are all there, and which."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from envsdk.failures import ConfigurationError

_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000
_DIGEST_BYTES = 1 << 20


def is_model_folder(folder: Path) -> bool:
    """Whether it is a Hugging Face folder."""
    return (folder / "config.json").is_file()


def require_model_folder(folder: Path) -> None:
    """ConfigurationError when it is none."""
    if not is_model_folder(folder):
        raise ConfigurationError(
            f"pretrain: {folder} is no Hugging Face model folder: it holds no config.json"
        )


def weights_problem(folder: Path) -> str | None:
    """What is wrong with the `*.safetensors` files of a folder; None when they are whole or there are none.

    Only headers are read, so that large models take no time.
    """
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or header_bytes > min(size - _LENGTH_BYTES, _LONGEST_HEADER):
                return f"{path} is damaged: no safetensors file of {size} bytes begins like this"
            text = file.read(header_bytes)
        try:
            tensors = json.loads(text)
            ends = (entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__")
            whole = _LENGTH_BYTES + header_bytes + max(map(int, ends), default=0)
        except (ValueError, AttributeError, KeyError, IndexError, TypeError):
            return f"{path} is damaged: its header cannot be read"
        if size < whole:
            return f"{path} is cut short: {size} of {whole} bytes"
    return None


def content_digest(folder: Path) -> str:
    """Changes when the model does; reads only the ends of large files. Of a folder that is not there, too."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix not in (".json", ".safetensors", ".jinja"):
            continue
        size = path.stat().st_size
        with path.open("rb") as file:
            digest.update(f"{path.name}:{size}:".encode())
            digest.update(file.read(_DIGEST_BYTES))
            if size > _DIGEST_BYTES:
                file.seek(-min(size - _DIGEST_BYTES, _DIGEST_BYTES), os.SEEK_END)
                digest.update(file.read())
    return digest.hexdigest()[:32]
