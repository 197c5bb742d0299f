"""What the parts of the GPU benchmark share: the device, the time that is left, and the form of a result."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.model_shapes import HALF_BILLION, QUICKSTART, SMALL, ModelShape, write_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    what: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def is_missed(self) -> bool:
        """Whether it is not as it has to be. What is no number misses every bound."""
        too_large = self.at_most is not None and not self.value <= self.at_most
        too_small = self.at_least is not None and not self.value >= self.at_least
        return too_large or too_small


class Skipped(Exception):
    """A part, or the rest of it, cannot be measured here; the text says why."""


class Broken(Exception):
    """Pieces of a part broke; the text has the traceback of each. What the others found is kept."""


class TimeUp(KeyboardInterrupt):
    """A part has used up its time.

    It arrives as Ctrl-C does, because event loops, pytest and `except Exception` let only that through.
    """


@dataclass(kw_only=True)
class Bench:
    """Where and how large."""

    device: str
    is_small: bool
    """Sizes that a CPU can do in seconds."""
    folder: Path
    """For models and what else a part writes; removed at the end."""
    ends_at: float = float("inf")
    """Of the part that runs, on `time.monotonic`."""
    models: dict[ModelShape, Path] = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def left_s(self) -> float:
        """Seconds that the part has left."""
        return self.ends_at - time.monotonic()

    def model(self, shape: ModelShape) -> Path:
        """The folder of a random model of this shape, written once."""
        if shape not in self.models:
            dtype = "float32" if self.is_small else "bfloat16"
            folder = self.folder / f"model{len(self.models)}"
            self.models[shape] = write_model(folder, shape, device=self.device, dtype=dtype)
        return self.models[shape]

    @property
    def shapes(self) -> dict[str, ModelShape]:
        """Models whose speed is measured, by the name that the report gives them."""
        if self.is_small:
            return {"tiny": QUICKSTART}
        return {"0.5B": HALF_BILLION, "1.5B": BILLION_AND_A_HALF}

    @property
    def parity_shape(self) -> ModelShape:
        return QUICKSTART if self.is_small else SMALL

    def synchronize(self) -> None:
        """Wait for the device, so that a clock shows what was computed."""
        if self.is_cuda:
            import torch

            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """Wall seconds, the device's work included."""
        self.synchronize()
        began = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - began

    def median_s(self, work: Callable[[], object], *, repeats: int = 5, warm_ups: int = 2) -> float:
        """The median of several; fewer where time runs out."""
        for _ in range(warm_ups):
            work()
        times: list[float] = []
        while len(times) < repeats and (not times or self.left_s > 2 * times[-1]):
            times.append(self.seconds(work))
        return sorted(times)[len(times) // 2]


BILLION_AND_A_HALF = ModelShape(
    hidden_size=1536,
    intermediate_size=8960,
    num_layers=28,
    num_heads=12,
    num_key_value_heads=2,
    vocab_size=151_936,
)
"""The sizes of Qwen2.5-1.5B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the benchmark."""

    name: str
    title: str
    share: float
    """Of the benchmark's time."""
    run: Callable[[Bench], Iterable[Row]]
    needs: tuple[str, ...] = ()
    """Packages."""
    is_asked_for: bool = False
    """It runs only where it is named."""


@dataclass(kw_only=True)
class Result:
    """What a part found."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    skipped: str = ""
    """Why it, or the rest of it, is missing."""
    is_cut: bool = False
    """Its time was over."""
    error: str = ""
    """The traceback of what broke it."""
    seconds: float = 0.0


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TimeUp in the main thread when the time is over, at the next Python instruction."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def missing(packages: Iterable[str]) -> list[str]:
    """Those that are not installed; a module of a package, such as `megatron.core`, may be asked for too."""
    return [package for package in packages if not _is_installed(package)]


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a package that a dotted name is in
        return False


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Installed versions by package; a missing one is left out."""
    found: dict[str, str] = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def host(device: str) -> dict[str, Any]:
    """The machine in words, for the report."""
    import os
    import platform

    import torch

    described: dict[str, Any] = {
        "device": device,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "packages": versions(
            ("envsdk", "torch", "transformers", "triton", "megatron-core", "vllm", "sglang")
        ),
    }
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        described |= {
            "gpu": properties.name,
            "gpu_gib": round(properties.total_memory / 2**30, 1),
            "gpus": torch.cuda.device_count(),
            "cuda": torch.version.cuda,
        }
    return described
