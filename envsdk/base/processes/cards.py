"""This machine's NVIDIA GPUs, asked without CUDA: processes forked of one that began it cannot use it."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

_PATIENCE_S = 30.0
_MIB = 2**20


def has_gpus() -> bool:
    """Whether there are any."""
    return Path("/dev/nvidiactl").exists()


@cache
def smallest_card_bytes() -> float | None:
    """Memory of the smallest that may be used; None where there is none, or the driver does not say."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = [] if visible is None else [f"--id={visible}"]
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", *chosen]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True).stdout
        return min(map(float, said.split())) * _MIB
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
