"""`dtype: auto`: a checkpoint's own precision, where the processor multiplies it."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

DType = Literal["auto", "float32", "bfloat16"]


Device = Annotated[str, Field(pattern=r"^(cpu|cuda|hpu|mps|xpu)(:[0-9]+)?$")]
"""PyTorch's name of one."""

_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Products of bfloat16 in /proc/cpuinfo, on x86 and ARM. Without them PyTorch is slower than in float32."""


class Precision(NamedTuple):
    """The type that a model is computed in."""

    dtype: Literal["float32", "bfloat16"]
    why: str

    def __str__(self) -> str:
        return f"{self.dtype}: {self.why}"


def precision(dtype: DType, *, stored: str, device: str) -> Precision:
    """`stored` is the type that the model's folder names; `auto` takes bfloat16 or float32."""
    if dtype != "auto":
        return Precision(dtype, "as the settings say")
    if stored != "bfloat16":
        return Precision("float32", f"the checkpoint names {stored}, not bfloat16")
    if not multiplies_bfloat16(device):
        return Precision("float32", f"the checkpoint names bfloat16, but {device} here has no products of it")
    return Precision("bfloat16", "the checkpoint's own")


@cache
def multiplies_bfloat16(device: str) -> bool:
    """Whether the device has instructions for products of bfloat16. A GPU that is not here is taken to."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return bool(_CPU_FLAGS & _cpu_flags())
    if kind != "cuda" or find_spec("torch") is None:
        return kind == "cuda"
    import torch

    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(flags, "").split())
