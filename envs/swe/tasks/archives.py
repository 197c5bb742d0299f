"""Unpacking of archives that others have made."""

from __future__ import annotations

import subprocess
from pathlib import Path

from envsdk.contracts.failures import ConfigurationError


def unpack_tar(archive: Path | bytes, folder: Path) -> None:
    """Unpack a tar archive, packed further or not, into `folder`, and nothing outside of it.

    GNU tar does that in every version; Python's `tarfile` does from 3.11.4 on, and Debian 12 has 3.11.2.

    Raises ConfigurationError: it is no archive, or has names that lead elsewhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named = "-" if isinstance(archive, bytes) else str(archive.resolve())
    command = ["tar", "--extract", "--no-same-owner", f"--file={named}", f"--directory={folder}"]
    given = archive if isinstance(archive, bytes) else b""
    done = subprocess.run(command, input=given, check=False, capture_output=True)
    if done.returncode:
        raise ConfigurationError(f"cannot unpack {named}: {done.stderr.decode(errors='replace').strip()}")
