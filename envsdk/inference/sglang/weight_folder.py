"""New weights as a folder of safetensors files, for a server that reads them from disk.

given weights -> checked against the model's own shapes -> files of at most SHARD_BYTES
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envsdk.failures import EngineError
from envsdk.inference.lora import A_SUFFIX, B_SUFFIX, Adapter
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


def copies(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Arrays that stay when the next one is asked for."""
    for name, array in weights:
        yield name, array.clone() if hasattr(array, "clone") else np.array(array)


def write_adapter(adapter: Adapter, folder: Path) -> None:
    """In PEFT's format, into the empty `folder`. EngineError where ranks differ: SGLang takes one."""
    ranks = sorted({len(half_a) for half_a, _ in adapter.pairs.values()})
    if len(ranks) > 1:
        raise EngineError(f"the adapter has ranks {ranks}; SGLang takes adapters of one rank")
    tensors = [
        _tensor(f"base_model.model.{module}{suffix}", half)
        for module, pair in adapter.pairs.items()
        for suffix, half in zip((A_SUFFIX, B_SUFFIX), pair, strict=True)
    ]
    _write(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": adapter.rank,
        "lora_alpha": adapter.rank,  # the scaling is in B
        "target_modules": sorted({module.rpartition(".")[2] for module in adapter.pairs}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


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
