"""Sandboxes for environments, which are not asynchronous: one event loop per process, on a thread of its own.

    workshop = shared_workshop("bubblewrap", {})
    workspace = workshop.open(task, limits)        # nothing is started yet
    result = workspace.run("pytest -q", timeout_s=60)
    verdict = workshop.grade(task, workspace.changes(), strict=True)
    workspace.close()

    workspace:  open -> first command starts the sandbox -> commands -> closed

Safe for threads; one workspace is used by one at a time.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import contextlib
import hashlib
import json
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from envsdk.envs.swe.evaluator import Evaluation, Verdict, evaluate
from envsdk.envs.swe.evaluator.validation import validate
from envsdk.envs.swe.sandbox import (
    ExecEnd,
    ExecResult,
    Limits,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxFileError,
    open_backend,
)
from envsdk.envs.swe.tasks import Task
from envsdk.envs.swe.tasks.images import prepare_image
from envsdk.failures import ConfigurationError

T = TypeVar("T")

KEPT_OUTPUT_BYTES = 1 << 20
"""Of a command's output: room for a patch that is submitted by printing it."""
_VERDICTS_KEPT = 4096
_CLOSE_TIMEOUT_S = 20.0
NOTHING_CHANGED = Evaluation(resolved=False, reason=Verdict.TESTS_FAILED, detail="the patch is empty")
"""On an empty patch: tasks of which it is the solution are refused when they are loaded."""

_ENDED_BY = {
    ExecEnd.TIMEOUT: "The command was killed: it took longer than {timeout_s:g} s.",
    ExecEnd.OUTPUT_LIMIT: "The command was killed: it printed too much.",
    ExecEnd.DISK_LIMIT: "The command was killed: it wrote too much.",
    ExecEnd.OUT_OF_MEMORY: "The command was killed: it used too much memory.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What became of a command."""

    output: str
    returncode: int
    """-1 where the command was killed."""
    note: str
    """Why it was killed; empty where it was not."""
    elapsed_s: float
    num_bytes: int
    """Of all of the output; `output` may lack the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What is to be graded at the end of an episode."""

    patch: str
    refusal: Evaluation | None = None
    """The verdict where the policy has made its files such that no patch can be made of them."""


class LoopThread:
    """An event loop that runs on a thread until the process ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="envsdk-swe", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The result of `work`, waited for on the calling thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)


class Workshop:
    """The sandboxes of one backend, and the verdicts on what was submitted in them."""

    def __init__(self, backend: SandboxBackend, thread: LoopThread) -> None:
        self._backend = backend
        self._thread = thread
        self._probing: asyncio.Lock | None = None
        self._is_probed = False
        self._validating: dict[str, asyncio.Lock] = {}
        self._problems: dict[str, str] = {}
        """What validating a task has found, by its content; empty for a sound one."""
        self._verdicts: OrderedDict[tuple[str, bytes, bool], Evaluation] = OrderedDict()
        self._lock = threading.Lock()

    def open(
        self, task: Task, limits: Limits, files: bytes | None = None, *, validates: bool = False
    ) -> Workspace:
        """A workspace for `task`, with the files of `Workspace.snapshot` where they are given.

        With `validates` its first command first finds out, once, whether the task can be graded, and raises
        ConfigurationError for one that cannot.
        """
        return Workspace(self, task, limits, files, validates=validates)

    def grade(self, task: Task, submitted: Submitted, *, strict: bool) -> Evaluation:
        """The verdict on a patch. The same patch of the same task is graded once, an empty one never.

        Raises SandboxError when the evaluation itself fails.
        """
        if submitted.refusal is not None:
            return submitted.refusal
        patch = submitted.patch
        if not patch.strip():
            return NOTHING_CHANGED
        key = task.content_hash(), hashlib.sha256(patch.encode(errors="surrogatepass")).digest(), strict
        with self._lock:
            known = self._verdicts.get(key)
        if known is not None:
            return known
        verdict = self.run(self._evaluated(task, patch, strict))
        if verdict.infrastructure:
            raise SandboxError(f"{task.instance_id}: the evaluation failed: {verdict.detail}")
        with self._lock:
            self._verdicts[key] = verdict
            if len(self._verdicts) > _VERDICTS_KEPT:
                self._verdicts.popitem(last=False)
        return verdict

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def abandon(self, sandbox: Sandbox) -> None:
        """Close a sandbox without waiting for it."""
        asyncio.run_coroutine_threadsafe(sandbox.close(), self._thread.loop)

    def close(self) -> None:
        """Remove every sandbox."""
        with contextlib.suppress(TimeoutError):
            self._thread.run(self._backend.aclose(), _CLOSE_TIMEOUT_S)

    async def start(self, task: Task, limits: Limits, files: bytes | None, *, validates: bool) -> Sandbox:
        await self._probed()
        if validates:
            await self._demand_sound(task)
        sandbox = await self._backend.start(await prepare_image(task, self._backend), limits=limits)
        try:
            if files is not None:
                await sandbox.unpack(files)
        except SandboxFileError as error:
            await sandbox.close()
            raise SandboxError(f"sandbox {sandbox.id}: its files could not be restored: {error}") from error
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _demand_sound(self, task: Task) -> None:
        key = task.content_hash()
        async with self._validating.setdefault(key, asyncio.Lock()):
            if key not in self._problems:
                (validation,) = await validate([task], self._backend)
                self._problems[key] = validation.problem
        if problem := self._problems[key]:
            raise ConfigurationError(f"{task.instance_id} cannot be used: {problem}")

    async def _evaluated(self, task: Task, patch: str, strict: bool) -> Evaluation:
        await self._probed()
        return await evaluate(task, patch, self._backend, strict=strict)

    async def _probed(self) -> None:
        if self._probing is None:
            self._probing = asyncio.Lock()
        async with self._probing:
            if not self._is_probed:
                await self._backend.probe()
                self._is_probed = True


class Workspace:
    """The sandbox of one episode."""

    def __init__(
        self, workshop: Workshop, task: Task, limits: Limits, files: bytes | None, *, validates: bool
    ) -> None:
        self._validates = validates
        self._workshop = workshop
        self._task = task
        self._limits = limits
        self._files = files
        """To be put into the sandbox when it is started."""
        self._sandbox: Sandbox | None = None
        self._let_go: weakref.finalize[..., Any] | None = None

    def run(self, command: str, *, timeout_s: float) -> CommandResult:
        """Run a command in a new shell. Raises SandboxError when the sandbox fails."""
        script = command.encode(errors="replace").decode()
        result = self._workshop.run(self._exec(script, timeout_s))
        if result.reason is ExecEnd.INFRASTRUCTURE:
            raise SandboxError(
                f"{self._task.instance_id}: the sandbox failed: {result.output.strip()[-300:]}"
            )
        note = _ENDED_BY.get(result.reason, "").format(timeout_s=timeout_s)
        returncode = -1 if note or result.returncode is None else result.returncode
        return CommandResult(
            output=result.output,
            returncode=returncode,
            note=note,
            elapsed_s=result.elapsed_s,
            num_bytes=result.total_bytes,
        )

    def changes(self) -> Submitted:
        """What the files of the repository differ in from the start; leftovers do not count.

        Refused where the policy has left nothing to compare with (it removed the folder), or more than can be
        compared within the limits on time, memory and size.
        """
        try:
            return Submitted(patch=self._workshop.run(self._diff()))
        except SandboxFileError as error:
            detail = f"the changed files cannot be compared with the original ones: {error}"
            refusal = Evaluation(resolved=False, reason=Verdict.PATCH_REFUSED, detail=detail)
            return Submitted(patch="", refusal=refusal)

    def snapshot(self) -> bytes | None:
        """The files of the repository and of /tmp, with `.git`; None when nothing was run yet."""
        if self._sandbox is None:
            return self._files
        try:
            return self._workshop.run(self._sandbox.pack())
        except SandboxFileError as error:
            raise SandboxError(f"{self._task.instance_id}: its files could not be saved: {error}") from error

    def close(self) -> None:
        """Remove the sandbox. Idempotent."""
        sandbox, self._sandbox = self._sandbox, None
        if self._let_go is not None:
            self._let_go.detach()
        if sandbox is not None:
            self._workshop.run(sandbox.close())

    async def _exec(self, script: str, timeout_s: float) -> ExecResult:
        return await (await self._started()).exec(script, timeout_s=timeout_s)

    async def _diff(self) -> str:
        return await (await self._started()).diff()

    async def _started(self) -> Sandbox:
        if self._sandbox is None:
            sandbox = await self._workshop.start(
                self._task, self._limits, self._files, validates=self._validates
            )
            self._files = None
            # One that is dropped without `close` leaves nothing either.
            self._let_go = weakref.finalize(self, self._workshop.abandon, sandbox)
            self._let_go.atexit = False
            self._sandbox = sandbox
        return self._sandbox


_thread: tuple[int, LoopThread] | None = None
_workshops: dict[tuple[int, str, str], Workshop] = {}
_table_lock = threading.Lock()


def shared_workshop(backend: str, settings: Mapping[str, Any] | None = None) -> Workshop:
    """The workshop that all environments of this process with this backend share.

    Raises ConfigurationError: the backend, or a key of `settings`, is unknown.
    """
    global _thread
    with _table_lock:
        # A forked child has a copy of the table, but neither the thread nor the sandboxes.
        pid = os.getpid()
        key = pid, backend, json.dumps(dict(settings or {}), sort_keys=True, default=str)
        if key not in _workshops:
            if _thread is None or _thread[0] != pid:
                _thread = pid, LoopThread()
            _workshops[key] = Workshop(open_backend(backend, settings), _thread[1])
        return _workshops[key]


def close_workshops() -> None:
    """Remove every sandbox of this process."""
    with _table_lock:
        own = [workshop for (pid, *_), workshop in _workshops.items() if pid == os.getpid()]
        _workshops.clear()
    for workshop in own:
        workshop.close()


# Closing needs executors, which take no work any more by `atexit`. The last registered is called first.
assert concurrent.futures.thread
getattr(threading, "_register_atexit", atexit.register)(close_workshops)
