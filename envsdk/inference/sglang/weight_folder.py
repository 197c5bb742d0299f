"""New weights as a folder of safetensors files, for a server that reads them from disk.

given weights -> checked against the model's own shapes -> files of at most SHARD_BYTES
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsdk.failures import EngineError
from envsdk.inference.weight_buckets import as_bytes
from envsdk.inference.weight_shapes import Shapes, checked

SHARD_BYTES = 1 << 30
"""Bytes of weights held in memory before they are written; a larger tensor is held alone."""
_HEAD = "lm_head.weight"
_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float16": "F16", "bfloat16": "BF16",
    "float32": "F32", "float64": "F64",
}  # fmt: skip
"""The format's names of element types, by NumPy's and PyTorch's."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def heads_that_may_be_left_out(model: Path, expected: Shapes) -> frozenset[str]:
    """The head's weight where it is the embeddings': some writers leave it out, and some do not."""
    config = json.loads((model / "config.json").read_text())
    is_tied = config.get("tie_word_embeddings") is True or _HEAD not in expected
    return frozenset({_HEAD}) if is_tied else frozenset()


def write_folder(
    weights: Iterable[tuple[str, Any]], folder: Path, expected: Shapes, *, optional: frozenset[str]
) -> None:
    """Write the `expected` ones among `weights`, see `checked`, into the empty `folder`.

    Each is read before the next is asked for. EngineError for one that is not as expected or cannot be
    written.
    """
    shard: list[_Tensor] = []
    num_bytes = num_shards = 0
    for name, array in checked(weights, expected, optional=optional):
        tensor = _tensor(name, array)
        if shard and num_bytes + len(tensor.data) > SHARD_BYTES:
            _write(shard, folder / f"model-{num_shards:05}.safetensors")
            shard, num_bytes, num_shards = [], 0, num_shards + 1
        shard.append(tensor)
        num_bytes += len(tensor.data)
    _write(shard, folder / f"model-{num_shards:05}.safetensors")


def _tensor(name: str, array: Any) -> _Tensor:
    try:
        data, dtype, shape = as_bytes(array)
        return _Tensor(name, _DTYPES[dtype], tuple(shape), data.tobytes())
    except (AttributeError, KeyError, TypeError) as error:
        raise EngineError(f"weight `{name}` cannot be written: {error}") from error


def _write(tensors: Sequence[_Tensor], file: Path) -> None:
    """The format: length of the header (8 bytes, little endian), the header as JSON, the tensors' bytes."""
    header: dict[str, Any] = {}
    end = 0
    for tensor in tensors:
        start, end = end, end + len(tensor.data)
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)
    try:
        with file.open("wb") as out:
            out.write(len(told).to_bytes(8, "little"))
            out.write(told)
            for tensor in tensors:
                out.write(tensor.data)
    except OSError as error:
        raise EngineError(f"the new weights cannot be written to {file}: {error}") from error
