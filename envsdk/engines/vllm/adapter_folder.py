"""A LoRA adapter as vLLM reads one: a folder in PEFT's format, in memory where there is such a place."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from envsdk.contracts.failures import EngineError
from envsdk.weights.folders import write_adapter
from envsdk.weights.lora import Adapter
from envsdk.weights.shapes import Shapes

_MEMORY = Path("/dev/shm")
_ADAPTED = ("q_proj.weight", "qkv_proj.weight", "query_key_value.weight", "o_proj.weight")
"""Some of what vLLM adapts in every architecture that it adapts at all."""


class AdapterFolder:
    """Owner: one engine; `close` when vLLM has ended."""

    def __init__(self) -> None:
        place = _MEMORY if _MEMORY.is_dir() else None
        self.path = Path(tempfile.mkdtemp(prefix="envsdk-adapter-", dir=place))

    def write(self, adapter: Adapter) -> None:
        """In place of the earlier one, which vLLM must not be reading."""
        write_adapter(adapter, self.path)

    def close(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)


def no_adapter(expected: Shapes) -> Adapter:
    """One that adds nothing: of the first matrix among a model's weights that vLLM is able to adapt."""
    import torch

    for name, shape in expected.items():
        if name.endswith(_ADAPTED) and len(shape) == 2:
            halves = torch.zeros(1, shape[1]), torch.zeros(shape[0], 1)
            return Adapter({name.removesuffix(".weight"): halves})
    raise EngineError("enable_lora: the model has no matrix that is known to be adapted; leave it out")
