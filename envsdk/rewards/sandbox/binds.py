"""What every backend asks of an image's binds before it starts anything."""

from __future__ import annotations

from pathlib import PurePosixPath

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.contract import Image


def check_binds(image: Image, *, forbidden: str = "") -> None:
    """Raises ConfigurationError: a source is not there, or a place inside is no absolute path.

    Args:
        forbidden: Characters that neither a source nor a place may have, because the backend's program
            reads them as its own.
    """
    for inside, source in image.binds.items():
        bind = f"the image binds {source} at {inside!r}"
        if not source.exists():
            raise ConfigurationError(f"{bind}: the source is not there")
        if not inside.startswith("/") or ".." in PurePosixPath(inside).parts:
            raise ConfigurationError(f"{bind}, which is no absolute path")
        if any(character in f"{source.resolve()}{inside}" for character in forbidden):
            raise ConfigurationError(f"{bind}: this backend takes no path with one of {forbidden!r} in it")
