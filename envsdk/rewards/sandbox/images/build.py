"""Building an image: by the container program, or without one by bubblewrap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from envsdk.base.settings.extras import require
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.contract import Image, Limits, SandboxBackend

BUILD_LIMITS = Limits(memory_mb=4096, file_mb=4096, disk_mb=8192, files=500_000, processes=1024)
"""Limits of one RUN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What to build."""

    context: Path
    dockerfile: str = "Dockerfile"
    """Path, from `context`."""
    target: str | None = None
    """Stage; None is the last."""
    args: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0
    """Time for one instruction; for all of them where a container program builds."""
    limits: Limits = BUILD_LIMITS
    """Limits of one instruction, in bubblewrap."""

    @property
    def file(self) -> Path:
        return self.context / self.dockerfile


@runtime_checkable
class BuildsImages(Protocol):
    """A backend that builds images."""

    async def build(self, build: Build) -> Image:
        """As `build_image`."""
        ...

    async def named_image(self, name: str) -> Image:
        """As `named_image`."""
        ...


async def build_image(backend: SandboxBackend, context: Path, **how: Any) -> Image:
    """The image of a Dockerfile: built once for its content, and kept for later programs.

    What the image starts with is in its `workdir` and `env`. Nothing is run of CMD and ENTRYPOINT.

    Args:
        how: Other fields of `Build`.

    Raises ConfigurationError: the Dockerfile asks for what the backend has not, or an instruction failed;
    with file and line.
    Raises SandboxError: the machine's fault.
    """
    build = Build(context=context, **how)
    if not build.file.is_file():
        raise ConfigurationError(f"there is no Dockerfile {build.file}")
    require("a build", "e2b_dockerfile_utils")
    return await _builder(backend).build(build)


async def named_image(backend: SandboxBackend, name: str) -> Image:
    """The image of this name, as FROM in a Dockerfile means it.

    Raises ConfigurationError: the backend has none.
    """
    return await _builder(backend).named_image(name)


def _builder(backend: SandboxBackend) -> BuildsImages:
    if not isinstance(backend, BuildsImages):
        raise ConfigurationError(
            f"backend `{backend.name}` builds no images: use `bubblewrap`, `docker` or `podman`"
        )
    return backend
