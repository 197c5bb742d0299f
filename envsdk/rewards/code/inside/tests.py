"""Runs tests against a program in another process, and tells which passed.

    fork the program's processes -> read the job -> closed to others -> ready -> tests, one by one -> done

What the tests expect is in this process alone: the program's processes are forked before it is read, no other
process may look into this one afterwards, and every line of the report stands behind its keyed hash.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import io
import json
import marshal
import os
import resource
import signal
import sys
import types
from hashlib import blake2b

from envsdk.rewards.code.inside import program as programs
from envsdk.rewards.code.inside import servant
from envsdk.rewards.code.inside.collected import Test, collected
from envsdk.rewards.code.inside.link import Link, LinkClosed
from envsdk.rewards.code.inside.remote import Program, Unsupported, end

# Only what is there anyway is imported: each program starts this anew.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PR_SET_DUMPABLE = 4
_TICKS = os.sysconf("SC_CLK_TCK")


class Late(BaseException):
    """A test took too long."""


class Report:
    """Lines that only this process can have written."""

    def __init__(self, descriptor: int, key: bytes) -> None:
        self._descriptor, self._key = descriptor, key
        self._count = 0

    def tell(self, *record: Any) -> None:
        payload = json.dumps([self._count, *record]).encode("ascii").hex()
        self._count += 1
        mark = blake2b(payload.encode("ascii"), key=self._key, digest_size=16).hexdigest()
        line = f"\n{mark} {payload}\n".encode("ascii")
        while line:
            line = line[os.write(self._descriptor, line) :]


def run(num_processes: int) -> None:
    """Read the job and run its tests; `num_processes` wait to be the program's, one after the other."""
    memory_mb = int(sys.argv[3])
    waiting = [_start(memory_mb) for _ in range(num_processes)]
    job = marshal.loads(sys.stdin.buffer.read())
    # Now no process of this user may read its memory or take its descriptors.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    report = Report(os.dup(1), job["key"])
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        if number != signal.SIGALRM:
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _late)
    sys.meta_path.append(programs.AllPackages())
    report.tell("ready")
    try:
        for block in job["blocks"]:
            _Block(job, block, waiting, report).run()
        report.tell("done")
    except LinkClosed as error:
        report.tell("test", "the program", f"it {error}")
        report.tell("done")
    except BaseException as error:  # noqa: BLE001 - what is wrong with the tests themselves
        report.tell("broken", programs.described(error))
    os._exit(0)


def _late(*_: object) -> None:
    raise Late


def _start(memory_mb: int) -> tuple[int, Link]:
    """Fork a process that will be the program's."""
    (to_program, from_tests), (to_tests, from_program) = os.pipe()[::-1], os.pipe()[::-1]
    pid = os.fork()
    if pid == 0:
        os.close(to_program)
        os.close(from_program)
        servant.serve(from_tests, to_tests, memory_mb)
    os.close(from_tests)
    os.close(to_tests)
    return pid, Link(from_program, to_program)


class _Block:
    """One text with tests, and the program that it tests."""

    def __init__(
        self, job: dict[str, Any], block: dict[str, str], waiting: list[tuple[int, Link]], report: Report
    ) -> None:
        self.job, self.block, self.waiting, self.report = job, block, waiting, report
        self.program: Program | None = None

    def run(self) -> None:
        tree = ast.parse(self.block["code"])
        code = compile(tree, "tests.py", "exec", dont_inherit=True)
        names = programs.names_in(code) | {self.block["entry"], "Solution"}
        names |= {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        if self.job["program"] is not None:
            failure = self._load(names)
            if failure:
                self.report.tell("test", "the program", failure)
                return
        namespace = types.ModuleType("tests").__dict__
        namespace["__builtins__"] = builtins
        programs.lend(names, namespace)
        if self.program is not None:
            namespace.update(self.program.names)
            solution = types.ModuleType("solution")
            solution.__dict__.update(self.program.names)
            sys.modules["solution"] = solution
        candidate = self._candidate(namespace)
        broken = ""
        for test in collected(tree, namespace, candidate):
            why = broken or self._outcome(test)
            if test.counts or why:
                self.report.tell("test", test.name[:300], why)
            if not test.counts:
                broken = why
        if self.program is not None:
            end(self.program)

    def _candidate(self, namespace: dict[str, Any]) -> Callable[..., Any] | None:
        entry = self.block["entry"]
        if not entry or self.program is None:
            return None

        def missing(*_: Any) -> Any:
            raise AttributeError(f"the program defines no {entry}")

        try:
            found: Callable[..., Any] = programs.function_named(namespace, entry)
        except AttributeError:
            return missing
        return found

    def _load(self, names: set[str]) -> str:
        """Start the program; what is wrong with it, if anything."""
        if not self.waiting:
            return "it has ended its process too often"
        pid, link = self.waiting.pop()
        self.program = Program(pid, link, names)
        source = self.job["program"]
        loaded = self.program
        return self._outcome(Test("the program", lambda: loaded.load(source)))

    def _outcome(self, test: Test) -> str:
        """Why a test fails; empty: it passes."""
        self._allow_cpu_time()
        printed = sys.stdout
        sys.stdout = io.StringIO()
        why = ""
        try:
            signal.setitimer(signal.ITIMER_REAL, self.job["wall_s"])
            test.function()
        except Late:
            why = f"took more than {self.job['wall_s']:g} s"
        except LinkClosed:
            why = self._ended()
        except AssertionError as error:
            why = f"fails {error}".strip()[:300].replace("\n", " ")
        except ModuleNotFoundError as error:
            if error.name and error.name.split(".")[0] != "solution":
                raise
            why = programs.described(error)
        except Unsupported as error:
            why = str(error)
        except BaseException as error:  # noqa: BLE001 - a test that raises fails
            why = programs.described(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.stdout = printed
        if self.program is not None and self.program.link.closed and not why:
            why = self._ended()
        if why.startswith("took more") and self.program is not None:
            self.program.link.closed = why
        return why

    def _allow_cpu_time(self) -> None:
        if self.program is None:
            return
        try:
            with open(f"/proc/{self.program.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            used = (int(fields[11]) + int(fields[12])) // _TICKS
            _, hard = resource.prlimit(self.program.pid, resource.RLIMIT_CPU)
            resource.prlimit(self.program.pid, resource.RLIMIT_CPU, (used + self.job["cpu_s"], hard))
        except (OSError, ValueError, LookupError):
            pass

    def _ended(self) -> str:
        """What became of the program's process."""
        assert self.program is not None
        if self.program.link.closed != "ended":
            return f"the program {self.program.link.closed}"
        end(self.program)
        try:
            _, status = os.waitpid(self.program.pid, 0)
        except ChildProcessError:
            return "the program has ended"
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGXCPU:
            return f"took more than {self.job['cpu_s']} s of CPU time"
        return f"the program ended itself ({'signal' if code < 0 else 'exit code'} {abs(code)})"
