"""The first process of a namespace: `python holder.py [FOLDER ...]`. It takes in orphans.

Each folder gets a file system of its own, in memory. The process ends when its standard input does,
which the kernel closes however its starter ended; all processes and links of the namespace end with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress


def take_in(*_: object) -> None:
    """Without it, Ray would see processes that have ended as still there."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    for folder in sys.argv[1:]:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", folder], check=True)
    signal.signal(signal.SIGCHLD, take_in)
    os.write(1, b"ready\n")
    while os.read(0, 1):
        pass


if __name__ == "__main__":
    main()
