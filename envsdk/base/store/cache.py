"""The cache folder: the tiny policy, translated games, built stores, indices."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$ENVSDK_CACHE`, else `envsdk` in `$XDG_CACHE_HOME` or `~/.cache`. It may not exist yet."""
    own = os.environ.get("ENVSDK_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "envsdk"
