"""Runs one program in a sandbox of its own, and counts what it passes."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import marshal
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from envsdk.rewards.code.compare import Unreadable, read_value, same_output, same_value
from envsdk.rewards.code.inside import cases as cases_inside
from envsdk.rewards.code.inside import values
from envsdk.rewards.code.rows import Case, Task
from envsdk.rewards.sandbox import ExecEnd, ExecResult, Image, SandboxBackend, SandboxError
from envsdk.rewards.sandbox import Limits as SandboxLimits

_INSIDE = "/opt/envsdk/envsdk/rewards/code/inside"
"""The package inside, so that its modules have their own names there."""
_IMAGE = Image(
    binds={_INSIDE: Path(__file__).parent / "inside"},
    # Libraries that start a thread per core would pass the limits of a large machine.
    env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
)
_SCRIPT = """\
command -v python > /dev/null && exec python {arguments}
exec python3 {arguments}
"""
"""Debian has no `python`. The shell is replaced, so that nobody else holds the pipe with the tests."""
_MAX_PROCESSES = 4
"""How often a program that ends its own process is started again for further tests."""
_ROOM_FOR_OUTPUT = 10_000
_WALL_FACTOR = 6
"""A case may take so many times its CPU time: other work may hold the processor."""
_START_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program may use; as in the reward's settings."""

    cpu_time_s: int
    total_time_s: float
    memory_mb: int
    processes: int

    @property
    def wall_s(self) -> float:
        return min(_WALL_FACTOR * self.cpu_time_s + 10.0, self.total_time_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How many cases a program passes."""

    passed: int
    total: int
    first_failure: str = ""
    """Which case fails first and why; empty when none does."""


async def run_task(
    backend: SandboxBackend, task: Task, program: str, limits: Limits, tolerance: float
) -> Outcome:
    """Raises SandboxError: the sandbox failed, or the tests themselves did."""
    if task.cases:
        return await _run_cases(backend, task, program, limits, tolerance)
    return await _run_tests(backend, task, program, limits)


async def _run_cases(
    backend: SandboxBackend, task: Task, program: str, limits: Limits, tolerance: float
) -> Outcome:
    rooms = [4 * len(str(case.expected)) + _ROOM_FOR_OUTPUT for case in task.cases]
    job = {
        **_job(program, limits),
        "function": task.function,
        "cases": [(_given(task, case), room) for case, room in zip(task.cases, rooms, strict=True)],
    }
    result = await _run(backend, "cases", job, limits, 2 * sum(rooms) + 5000 * len(rooms))
    lines = result.output.split("\n")
    if lines[0] != cases_inside.READY and (fault := _did_not_start(result)):
        raise SandboxError(fault)
    # Long outputs take a while to compare; the loop has others to serve.
    return await asyncio.to_thread(_judged, task, lines[1:], rooms, _why(result, limits), limits, tolerance)


def _judged(
    task: Task, told: Sequence[str], rooms: Sequence[int], unsaid: str, limits: Limits, tolerance: float
) -> Outcome:
    """The outcome by the lines of the report; `unsaid`: why a case has none."""
    failures = []
    for number, (case, room) in enumerate(zip(task.cases, rooms, strict=True)):
        why = unsaid
        if number < len(told) and told[number].count(" ") == 3:
            why = _case_failure(task, case, told[number], room, limits, tolerance)
        if why:
            failures.append(f"case {number + 1} {why}")
    total = len(task.cases)
    return Outcome(passed=total - len(failures), total=total, first_failure=failures[0] if failures else "")


def _given(task: Task, case: Case) -> bytes:
    if task.function:
        return json.dumps(values.encode(case.given)).encode("ascii")
    return str(case.given).encode("utf-8", "surrogatepass")


def _case_failure(task: Task, case: Case, line: str, room: int, limits: Limits, tolerance: float) -> str:
    """Why a case is not passed; empty when it is."""
    outcome, _, printed_64, said_64 = line.split(" ")
    try:
        printed = base64.b64decode(printed_64.strip("=") and printed_64, validate=True)
        said = base64.b64decode(said_64.strip("=") and said_64, validate=True).decode("utf-8", "replace")
    except binascii.Error:
        return "cannot be judged: the program wrote into the report"
    # A program that writes into the report has only the report's own limit.
    if len(printed) > room:
        outcome = "output"
    if outcome != "exit:0":
        return _ending(outcome[:50], said, limits)
    if not task.function:
        text = printed.decode("utf-8", "replace")
        return (
            ""
            if same_output(text, case.expected, tolerance)
            else f"printed {_short(text)}, not {_short(case.expected)}"
        )
    try:
        value = read_value(printed)
        if same_value(value, case.expected, tolerance):
            return ""
        return f"returned {_short(value)}, not {_short(case.expected)}"
    except Unreadable as error:
        return f"returned {error}"
    except Exception as error:  # noqa: BLE001 - boundary: what a program made up
        return f"returned what cannot be compared: {type(error).__name__}"


def _ending(outcome: str, said: str, limits: Limits) -> str:
    kind, _, number = outcome.partition(":")
    if outcome == "signal:24":
        return f"took more than {limits.cpu_time_s} s of CPU time"
    if outcome == "signal:9":
        return "was killed, as for more memory than there is"
    if kind == "exit":
        last = said.strip().split("\n")[-1]
        return f"ended with {last[:300] or f'exit code {number}'}"
    return {
        "signal": f"was ended by signal {number}",
        "wall": f"took more than {limits.wall_s:g} s",
        "output": "printed much more than is expected",
        "processes": "found no process left to run in",
        "skipped": "was not reached: those before it took too long",
    }.get(kind, f"ended with {outcome!r}")


async def _run_tests(backend: SandboxBackend, task: Task, program: str, limits: Limits) -> Outcome:
    key = secrets.token_bytes(32)
    blocks = [
        {"code": t.code.replace("{response}", repr(program)) if task.of_text else t.code, "entry": t.entry}
        for t in task.tests
    ]
    job = {**_job(None if task.of_text else program, limits), "key": key, "blocks": blocks}
    processes = 0 if task.of_text else min(len(blocks), _MAX_PROCESSES)
    mode = f"tests {processes} {limits.memory_mb}"
    result = await _run(backend, mode, job, limits, 4 << 20)
    records = list(_records(result.output, key))
    kinds = [record[0] for record in records]
    if "ready" not in kinds and (fault := _did_not_start(result)):
        raise SandboxError(fault)
    if broken := next((record[1] for record in records if record[0] == "broken"), None):
        raise SandboxError(f"the row's tests cannot be run: {broken}")
    tests = [(str(name), str(why)) for kind, name, why in (r for r in records if r[0] == "test")]
    failures = [f"{name}: {why}" for name, why in tests if why]
    if "done" not in kinds:
        return Outcome(
            passed=0, total=max(1, len(tests)), first_failure=f"the tests did not end: {_why(result, limits)}"
        )
    if not tests:
        raise SandboxError("the row's tests hold no test")
    return Outcome(
        passed=len(tests) - len(failures), total=len(tests), first_failure=failures[0] if failures else ""
    )


def _records(output: str, key: bytes) -> Iterator[Sequence[Any]]:
    """The report's records, in order; lines that somebody else wrote are passed over."""
    number = 0
    for line in output.split("\n"):
        mark, _, payload = line.partition(" ")
        expected = blake2b(payload.encode("utf-8", "replace"), key=key, digest_size=16).hexdigest()
        if secrets.compare_digest(mark.encode("utf-8", "replace"), expected.encode("ascii")):
            count, *record = json.loads(bytes.fromhex(payload))
            if count == number:
                number += 1
                yield record


def _job(program: str | None, limits: Limits) -> dict[str, Any]:
    return {
        "program": program,
        "cpu_s": limits.cpu_time_s,
        "wall_s": limits.wall_s,
        "total_s": limits.total_time_s,
        "memory_mb": limits.memory_mb,
    }


async def _run(
    backend: SandboxBackend, mode: str, job: dict[str, Any], limits: Limits, max_output: int
) -> ExecResult:
    """Run the program inside. Raises SandboxError."""
    sandbox = await backend.start(
        _IMAGE,
        limits=SandboxLimits(
            processes=limits.processes,
            memory_mb=2 * limits.memory_mb + 256,
            file_mb=64,
            disk_mb=256,
            files=5000,
            open_files=256,
            shm_mb=16,
            output_bytes=max_output,
            kept_output_bytes=2 * max_output,
        ),
    )
    try:
        result = await sandbox.exec(
            _SCRIPT.format(arguments=f"-I -S {_INSIDE}/start.py {mode}"),
            timeout_s=limits.total_time_s + _START_S,
            stdin=marshal.dumps(job, 2),
        )
    finally:
        await sandbox.close()
    if result.reason is ExecEnd.INFRASTRUCTURE:
        raise SandboxError(result.output[-500:])
    return result


def _did_not_start(result: ExecResult) -> str:
    """Why there is no interpreter inside; empty where only the program can be the reason.

    A program could take the first line away; it cannot end the first process with such a code.
    """
    if result.reason is ExecEnd.EXIT and 0 < (result.returncode or 0) < 128:
        return f"Python does not start inside (exit code {result.returncode}): {result.output[-500:]}"
    return ""


def _why(result: ExecResult, limits: Limits) -> str:
    """Why the run as a whole ended before its end."""
    return {
        ExecEnd.TIMEOUT: f"did not end within {limits.total_time_s:g} s",
        ExecEnd.OUTPUT_LIMIT: "printed much more than is expected",
        ExecEnd.DISK_LIMIT: "wrote more files than it may",
        ExecEnd.OUT_OF_MEMORY: "used more memory than it may",
    }.get(result.reason, "was not run: the program ended what runs it")


def _short(value: Any) -> str:
    text = value.strip() if isinstance(value, str) else repr(value)
    text = text if len(text) <= 80 else f"{text[:60]} ... {text[-15:]}"
    return repr(text) if isinstance(value, str) else text
