"""Runs a command that ends when the process at the other end of standard input ends.

    python -m envsdk.engines.sglang.guard GRACE_S COMMAND...

A line on standard input asks the command to end and gives it GRACE_S; when it ends without one, its owner
died, and what the command holds is needed again at once. Must lead a session of its own: what is left of the
command's processes is killed by the session's group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def main(grace_s: float, command: list[str]) -> int:
    """The command's exit status. Does not return when the command had to be ended."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_stdin, args=(child, grace_s), daemon=True).start()
    return child.wait()


def _end_with_stdin(child: subprocess.Popen[bytes], grace_s: float) -> None:
    if os.read(0, 1):
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    os.killpg(0, signal.SIGKILL)  # its scheduler processes, and this one


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
