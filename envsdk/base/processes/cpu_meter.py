"""How much CPU this process uses, and its machine."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Since the last reading of the same meter."""

    own_cores: float
    """CPU cores that this process uses, without its children."""
    node_share: float
    """Share of the machine's CPU that all processes use, 0 to 1."""


class CpuMeter:
    """meter = CpuMeter(); ...; meter.read()"""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.read()

    def read(self) -> CpuUse:
        return CpuUse(
            own_cores=self._process.cpu_percent() / 100, node_share=min(1.0, psutil.cpu_percent() / 100)
        )
