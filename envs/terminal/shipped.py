"""The tasks that ship with envsdk, one file each in `tasks/SPLIT/`: the files of a Harbor task by path.

They are written once into the cache, as folders that Harbor itself can run.
"""

from __future__ import annotations

import hashlib
import tomllib
from functools import cache
from pathlib import Path

from envsdk.base.store.atomic import made_once
from envsdk.base.store.cache import cache_folder

TASKS = Path(__file__).parent / "tasks"


@cache
def shipped_folder() -> Path:
    """The folder with a folder of each shipped task."""
    files = sorted(TASKS.glob("*/*.toml"))
    digest = hashlib.sha256(b"\0".join(file.name.encode() + file.read_bytes() for file in files))
    target = cache_folder() / "terminal" / f"tasks-{digest.hexdigest()[:16]}"
    if not target.is_dir():
        with made_once(target) as made:
            for file in files:
                write_task(file, made / file.parent.name / file.stem)
    return target


def write_task(file: Path, folder: Path) -> None:
    """Write the task of one file into a folder; every script may be executed."""
    for path, text in tomllib.loads(file.read_text(encoding="utf-8")).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
        if path.endswith(".sh"):
            (folder / path).chmod(0o755)
