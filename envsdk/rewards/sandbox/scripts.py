"""Shell scripts that read, write and compare files inside a sandbox, with the system's own tools."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from envsdk.rewards.sandbox.contract import (
    BULK_FILES,
    ENVIRONMENT_FILE,
    INSTALLED_FOLDERS,
    MAX_ADDED_BYTES,
    MAX_ADDED_FILES,
)

NOT_THERE, NOT_A_FILE, TOO_LARGE, FAILED = 61, 62, 63, 64
"""Exit codes of the scripts."""

PROBLEMS = {
    NOT_THERE: "there is no such file",
    NOT_A_FILE: "it is not a regular file",
    TOO_LARGE: "it is too large",
    FAILED: "it cannot be opened, or a limit was reached",
}

_FOLDER = Path(__file__).with_name("shell")
_EXIT_CODES = f"NOT_THERE={NOT_THERE} NOT_A_FILE={NOT_A_FILE} TOO_LARGE={TOO_LARGE} FAILED={FAILED}\n"


def script(name: str) -> str:
    """The text of `shell/NAME.sh`, which begins with what it does."""
    return _EXIT_CODES + (_FOLDER / f"{name}.sh").read_text(encoding="utf-8")


READ, WRITE, DIFF = script("read"), script("write"), script("diff")
PACK, UNPACK, PACK_TREE, UNPACK_TREE = map(script, ("pack", "unpack", "pack_tree", "unpack_tree"))


def diff_script(repository: str, scratch: str, hidden: Iterable[str] = ()) -> str:
    """Prints the patch from the commit of `repository` to the work tree in SANDBOX_WORKDIR.

    The index and new objects live in `scratch`, next to a configuration that names no command; nothing below
    the work tree's own `.git` is read. What lies in a repository nested in the tree is left out, and so are
    leftovers.

    Args:
        hidden: Paths in the tree that something else is laid over; they count as unchanged.
    """
    spared = " ".join(shlex.quote(f":(exclude,literal){path}") for path in hidden)
    variables = {
        "REPOSITORY": repository,
        "SCRATCH": scratch,
        "ENVIRONMENT_FILE": ENVIRONMENT_FILE,
        "INSTALLED": f"*/@({'|'.join(INSTALLED_FOLDERS)})/*",
        "BULK_FILES": BULK_FILES,
        "MAX_ADDED_FILES": MAX_ADDED_FILES,
        "MAX_ADDED_BYTES": MAX_ADDED_BYTES,
    }
    given = "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in variables.items())
    return f"{given}SPARED=({spared})\n{DIFF}"
