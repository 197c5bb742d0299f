"""What of a task's folders goes into a box: of `tests` and `solution` all but what `.harborignore` names.

    tests/.harborignore     steps/NAME/solution/data/.harborignore

Its lines are Git's patterns for the folder that it is in. Elsewhere the file has no effect, as in Harbor.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from envsdk.base.settings.extras import require
from envsdk.contracts.failures import ConfigurationError

IGNORE_FILE = ".harborignore"
MAX_BYTES = 1 << 30
_SCOPES = ("tests", "solution")


def inputs(folder: Path) -> Iterator[Path]:
    """The files and folders below `folder`, which is one of a task's, in order."""
    return _inputs(folder, () if folder.name in _SCOPES else None)


def _inputs(folder: Path, rules: Sequence[tuple[Path, Any]] | None) -> Iterator[Path]:
    """`rules` are those from above; None: there are none."""
    if rules is not None and (file := folder / IGNORE_FILE).is_file():
        require(IGNORE_FILE, "pathspec")
        from pathspec import GitIgnoreSpec

        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{file}: it is no UTF-8: {error}") from None
        rules = [*rules, (folder, GitIgnoreSpec.from_lines(lines))]
    for path in sorted(folder.iterdir()):
        name = path.name + "/" * path.is_dir()
        said = [spec.check_file(f"{path.parent.relative_to(top)}/{name}") for top, spec in rules or ()]
        if path.name == IGNORE_FILE or next((e.include for e in said[::-1] if e.include is not None), False):
            continue
        yield path
        if path.is_dir():
            yield from _inputs(path, rules)


def packed(folder: Path, *, runs: str = "") -> bytes:
    """The inputs of a folder as a tar archive; with `runs`, a file that may be executed, without times."""

    def noted(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = 0 if runs else entry.mtime
        entry.mode |= 0o111 if entry.name.rpartition("/")[2] == runs else 0
        return entry

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", dereference=True) as tar:
        for path in (folder, *inputs(folder)):
            tar.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=noted)
    if out.tell() > MAX_BYTES:
        raise ConfigurationError(f"{folder}: larger than {MAX_BYTES >> 20} MB")
    return out.getvalue()
