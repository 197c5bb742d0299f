"""What every backend asks of an image before it starts anything."""

from __future__ import annotations

from pathlib import PurePosixPath

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.contract import Image


def check_image(image: Image, *, forbidden: str = "", network: bool = False, own_root: bool = False) -> None:
    """Raises ConfigurationError: a bind's source is not there, its place inside is no absolute path, or the
    image asks for what its backend has not.

    Args:
        forbidden: Characters that neither a source nor a place may have, because the backend's program
            reads them as its own.
        network: Whether the settings give images the network.
        own_root: Whether images have `root`.
    """
    if image.network and not network:
        raise ConfigurationError("the image asks for the network: the backend's `network: true` allows it")
    if image.root is not None and not own_root:
        raise ConfigurationError("the image has a `root`, which only backend `bubblewrap` shows")
    for inside, source in image.binds.items():
        bind = f"the image binds {source} at {inside!r}"
        if not source.exists():
            raise ConfigurationError(f"{bind}: the source is not there")
        if not inside.startswith("/") or ".." in PurePosixPath(inside).parts:
            raise ConfigurationError(f"{bind}, which is no absolute path")
        if any(character in f"{source.resolve()}{inside}" for character in forbidden):
            raise ConfigurationError(f"{bind}: this backend takes no path with one of {forbidden!r} in it")
