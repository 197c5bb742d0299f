"""How much CPU this process uses, and its machine."""

from __future__ import annotations

import time
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
        self._own_s = time.process_time()
        self._at_s = time.monotonic()
        self._node = psutil.cpu_times()

    def read(self) -> CpuUse:
        own_s, at_s, node = time.process_time(), time.monotonic(), psutil.cpu_times()
        spent_s = own_s - self._own_s
        passed_s = at_s - self._at_s
        node_s = sum(node) - sum(self._node)
        idle_s = _idle_s(node) - _idle_s(self._node)
        self._own_s, self._at_s, self._node = own_s, at_s, node
        return CpuUse(
            own_cores=spent_s / passed_s if passed_s > 0 else 0.0,
            node_share=min(1.0, max(0.0, 1.0 - idle_s / node_s)) if node_s > 0 else 0.0,
        )


def _idle_s(times: object) -> float:
    return float(times.idle + getattr(times, "iowait", 0.0))  # type: ignore[attr-defined]
