"""The files of a patch before and after it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from envsdk.envs.swe.tasks.patches import parse
from envsdk.envs.swe.tasks.trees import apply_patch


@lru_cache(maxsize=1024)
def solution_of(base: Path, gold_patch: str) -> Mapping[str, tuple[str, str]]:
    """Text before and after by path, "" for a file that is not there; what is not text is left out.

    Raises PatchDoesNotApply with what git says.
    """
    found = {}
    for path, versions in changed_files(base, gold_patch).items():
        try:
            before, after = (version.decode() for version in versions)
        except UnicodeDecodeError:
            continue
        found[path] = (before, after)
    return found


def changed_files(base: Path, patch: str) -> Mapping[str, tuple[bytes, bytes]]:
    """Content before and after by path, empty for a file that is not there.

    Raises PatchDoesNotApply with what git says.
    """
    patches = parse(patch)
    with tempfile.TemporaryDirectory(prefix="swe-gold-") as temporary:
        folder = Path(temporary)
        for path in {changed.old_path for changed in patches if changed.old_path is not None}:
            if (base / path).is_file():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes((base / path).read_bytes())
        if patches:
            apply_patch(folder, patch)
        paths = dict.fromkeys(path for changed in patches for path in changed.paths)
        return {path: (_content(base / path), _content(folder / path)) for path in paths}


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
