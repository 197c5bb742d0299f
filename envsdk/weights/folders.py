"""Weights as tensors, and as folders of safetensors files, for servers that read them from disk.

given weights -> checked against the model's own shapes -> files of at most SHARD_BYTES
a LoRA adapter -> a folder in PEFT's format
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envsdk.contracts.failures import EngineError
from envsdk.weights.lora import A_SUFFIX, B_SUFFIX, Adapter
from envsdk.weights.shapes import Shapes, checked

if TYPE_CHECKING:
    from torch import Tensor

SHARD_BYTES = 1 << 30
"""Bytes of weights held in memory before they are written; a larger tensor is held alone."""
_HEAD = "lm_head.weight"


def optional_head(model: Path, expected: Shapes) -> frozenset[str]:
    """The head's weight where it is tied to the embeddings: some writers leave it out, and some do not.

    EngineError when the model's configuration cannot be read.
    """
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{model / 'config.json'} cannot be read: {error}") from error
    # A configuration may omit its architecture's default; the files show it.
    is_tied = bool(config.get("tie_word_embeddings")) or _HEAD not in expected
    return frozenset({_HEAD}) if is_tied else frozenset()


def write_folder(
    weights: Iterable[tuple[str, Any]], folder: Path, expected: Shapes, *, optional: frozenset[str]
) -> None:
    """Write the `expected` ones among `weights`, see `checked`, into the empty `folder`.

    Each is read before the next is asked for. The files have the names under which `transformers` looks for
    them. EngineError for a weight that is not as expected or cannot be written.
    """
    shard: dict[str, Tensor] = {}
    num_bytes = total_bytes = num_shards = 0
    places: dict[str, str] = {}
    for name, tensor in copies(checked(weights, expected, optional=optional)):
        if shard and num_bytes + tensor.nbytes > SHARD_BYTES:
            _write(shard, folder / _shard_name(num_shards))
            shard, num_bytes, num_shards = {}, 0, num_shards + 1
        shard[name] = tensor
        num_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
        places[name] = _shard_name(num_shards)
    if num_shards == 0:
        _write(shard, folder / "model.safetensors")
        return
    _write(shard, folder / _shard_name(num_shards))
    index = {"metadata": {"total_size": total_bytes}, "weight_map": places}
    try:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    except OSError as error:
        raise EngineError(f"the new weights cannot be written to {folder}: {error}") from error


def _shard_name(number: int) -> str:
    return f"model-{number:05}.safetensors"


def write_adapter(adapter: Adapter, folder: Path) -> None:
    """Write the adapter in PEFT's format, over one that is in `folder`. EngineError when that fails."""
    ranks = {module: len(half_a) for module, (half_a, _) in adapter.pairs.items()}
    pattern = ranks if len(set(ranks.values())) > 1 else {}
    tensors = {
        f"base_model.model.{module}{suffix}": half.contiguous()
        for module, pair in adapter.pairs.items()
        for suffix, half in zip((A_SUFFIX, B_SUFFIX), pair, strict=True)
    }
    _write(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": adapter.rank,
        "lora_alpha": adapter.rank,
        "target_modules": sorted({module.rpartition(".")[2] for module in adapter.pairs}),
        # The scaling is in B: alpha / r is 1 for each.
        "rank_pattern": pattern,
        "alpha_pattern": pattern,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


def _write(tensors: Mapping[str, Tensor], file: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), file, metadata={"format": "pt"})  # transformers asks for it
    except (SafetensorError, OSError, KeyError) as error:
        raise EngineError(f"the new weights cannot be written to {file}: {error}") from error


def as_tensors(weights: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """NumPy arrays or tensors; those of a stream are copied, for they are gone when the next one comes."""
    import torch

    is_mapping = isinstance(weights, Mapping)
    for name, value in weights.items() if isinstance(weights, Mapping) else weights:
        if isinstance(value, torch.Tensor):
            yield name, value if is_mapping else value.clone()
            continue
        try:
            # PyTorch wants writable memory, which an object store's is not.
            is_kept = is_mapping and value.flags.writeable
            yield name, torch.from_numpy(value) if is_kept else torch.tensor(value)
        except (AttributeError, TypeError, ValueError) as error:
            raise EngineError(f"weight `{name}` cannot be read: {error}") from error


def copies(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """Tensors in main memory that stay when the next one is asked for. EngineError for what is none."""
    import torch

    for name, array in weights:
        try:
            if isinstance(array, torch.Tensor):
                tensor = array.detach().to("cpu", copy=True)
            else:
                tensor = torch.from_numpy(np.array(array))
            yield name, tensor.contiguous()
        except (TypeError, ValueError, RuntimeError) as error:
            raise EngineError(f"weight `{name}` cannot be written: {error}") from error


def finite(name: str, weight: Any) -> Any:
    """`weight` as it is. EngineError where a tensor or an array has values that are NaN or infinite."""
    import torch

    # One pass without a copy: a sum is finite where all values are, but for an overflow that no weights have.
    total = 0.0
    if isinstance(weight, np.ndarray) and weight.dtype.kind == "f":
        total = float(weight.sum(dtype=np.float64))
    elif isinstance(weight, torch.Tensor) and weight.dtype in (torch.float32, torch.bfloat16, torch.float16):
        total = weight.sum(dtype=torch.float32 if weight.dtype == torch.float16 else None).item()
    if not math.isfinite(total):
        raise EngineError(
            f"weight `{name}` has values that are NaN or infinite: nothing can be sampled by it"
        )
    return weight


def tensors_in(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a Hugging Face folder's safetensors files, one at a time.

    EngineError when there is none, or a file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder} holds no *.safetensors file; save the model with save_pretrained")
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                    yield name, tensors.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise EngineError(f"{file} cannot be read: {error}") from error
