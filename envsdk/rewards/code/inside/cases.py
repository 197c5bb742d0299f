"""Runs a program once per case and tells what it printed, or what its function returned.

What is expected is not here: nothing inside knows it, and so nothing inside can forge a right answer. That is
why this process needs no protection from the program.
"""

from __future__ import annotations

import binascii
import marshal
import os
import select
import sys
import time

from envsdk.rewards.code.inside import program

# Only what is there anyway is imported: each program starts this anew.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READY = "ready"
SIGKILL = 9
KEPT_STDERR = 1000


def run() -> None:
    """Read the job, and print a line per case: `outcome`, milliseconds, output and last error in base64."""
    job = marshal.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    tell(out, READY)
    ends = time.monotonic() + job["total_s"]
    # The first call makes the classes of syntax trees, 2 ms that each case would pay.
    compile("", "program.py", "exec")
    if job["function"]:
        import json  # noqa: F401 - once, for all cases

        from envsdk.rewards.code.inside import values  # noqa: F401
    outcome = ""
    for given, max_output in job["cases"]:
        left = ends - time.monotonic()
        # What waits, or is too many, does so again.
        if left <= 0 or outcome == "wall":
            tell(out, "skipped 0  ")
            continue
        outcome, took_s, printed, said = one(job, given, max_output, min(job["wall_s"], left))
        tell(out, f"{outcome} {took_s * 1000:.0f} {_base64(printed)} {_base64(said)}")


def tell(out: int, line: str) -> None:
    content = f"{line}\n".encode("ascii")
    while content:
        content = content[os.write(out, content) :]


def one(job: dict[str, Any], given: bytes, max_output: int, wall_s: float) -> tuple[str, float, bytes, bytes]:
    """One case: outcome, seconds, output, last error."""
    stdin = os.memfd_create("stdin")
    content = b"" if job["function"] else given
    while content:
        content = content[os.write(stdin, content) :]
    os.lseek(stdin, 0, os.SEEK_SET)
    output, errors = os.pipe(), os.pipe()
    began = time.monotonic()
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid == 0:
        _play(job, given, stdin, output[1], errors[1])
    for descriptor in (stdin, output[1], errors[1]):
        os.close(descriptor)
    if pid < 0:
        outcome, printed, said = "processes", b"", b""
    else:
        outcome, printed, said = _watched(pid, output[0], errors[0], max_output, began + wall_s)
    os.close(output[0])
    os.close(errors[0])
    return outcome, time.monotonic() - began, printed, said


def _watched(pid: int, output: int, errors: int, max_output: int, until: float) -> tuple[str, bytes, bytes]:
    printed, said = bytearray(), bytearray()
    ended = os.pidfd_open(pid)
    poll = select.poll()
    for descriptor in (output, errors, ended):
        poll.register(descriptor, select.POLLIN)
    why = ""
    while not why:
        ready = dict(poll.poll(max(0, until - time.monotonic()) * 1000))
        if not ready:
            why = "wall"
        for descriptor, kept in ((output, printed), (errors, said)):
            if descriptor in ready:
                chunk = os.read(descriptor, 1 << 16)
                kept += chunk
                if not chunk:
                    poll.unregister(descriptor)
        del said[:-KEPT_STDERR]
        if len(printed) > max_output:
            why = "output"
        elif ended in ready and not ready.keys() & {output, errors}:
            why = "ended"
    os.close(ended)
    try:
        os.killpg(pid, SIGKILL)
    except ProcessLookupError:
        os.kill(pid, SIGKILL)
    _, status = os.waitpid(pid, 0)
    if why != "ended":
        return why, bytes(printed[:max_output]), bytes(said)
    code = os.waitstatus_to_exitcode(status)
    return (f"exit:{code}" if code >= 0 else f"signal:{-code}"), bytes(printed), bytes(said)


def _play(job: dict[str, Any], given: bytes, stdin: int, stdout: int, stderr: int) -> None:
    """The program, in its process; does not return."""
    code = 1
    try:
        os.setsid()
        # What a function returns goes where a program prints; what it prints goes nowhere.
        os.dup2(stdout, 3)
        program.standard_streams(stdin, os.open(os.devnull, os.O_WRONLY) if job["function"] else 3, stderr)
        program.limit(cpu_s=job["cpu_s"], memory_mb=job["memory_mb"])
        if job["function"]:
            _call(job, given)
        else:
            os.close(3)
            program.execute(job["program"], name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # noqa: BLE001 - whatever the program raises is said
        os.write(2, program.described(error).encode("utf-8", "replace"))
    finally:
        program.leave(code & 255)


def _call(job: dict[str, Any], given: bytes) -> None:
    import json

    from envsdk.rewards.code.inside import values

    function = program.function_named(program.execute(job["program"], name="solution"), job["function"])
    result = function(*values.decode(json.loads(given)))
    content = json.dumps(values.as_json(result)).encode("ascii")
    while content:
        content = content[os.write(3, content) :]


def _base64(content: bytes) -> str:
    return binascii.b2a_base64(content, newline=False).decode("ascii") or "="
