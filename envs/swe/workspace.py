"""Sandboxes of episodes, and the verdicts that all of them share.

    workshop = shared_workshop("bubblewrap", {})
    workspace = workshop.open(task, limits)        # nothing is started yet
    result = await workspace.run("pytest -q", timeout_s=60)
    verdict = await workshop.grade(task, await workspace.changes(), strict=True)
    await workspace.close()

    workspace:  open -> first command starts the sandbox -> commands -> closed

One workspace is used by one task at a time, on one event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from envsdk.base.processes.loop_locks import lock_of
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.shell.commands import CommandResult, command_result
from envsdk.envs.swe.evaluator import Evaluation, Verdict, evaluate
from envsdk.envs.swe.evaluator.validation import known_hidden_bits, validate
from envsdk.envs.swe.tasks.images import prepare_image
from envsdk.envs.swe.tasks.task import Task
from envsdk.rewards.sandbox import (
    ExecEnd,
    Limits,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxFileError,
)
from envsdk.rewards.sandbox.shared import LazySandbox, LoopBackends, shared_backends

_VERDICTS_KEPT = 4096
_PIECE_CHARS = 1 << 20
NOTHING_CHANGED = Evaluation(resolved=False, reason=Verdict.TESTS_FAILED, detail="the patch is empty")
"""On an empty patch: tasks of which it is the solution are refused when they are loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What is to be graded at the end of an episode."""

    patch: str
    refusal: Evaluation | None = None
    """The verdict where the policy has made its files such that no patch can be made of them."""


class Workshop:
    """The sandboxes of one kind of backend, and the verdicts on what was submitted in them."""

    def __init__(self, backends: LoopBackends) -> None:
        self._backends = backends
        self._problems: dict[str, str] = {}
        """What validating a task has found, by its content; empty for a sound one."""
        self._verdicts: OrderedDict[tuple[str, bytes, bool], Evaluation] = OrderedDict()
        self._lock = threading.Lock()

    def open(
        self,
        task: Task,
        limits: Limits,
        files: bytes | None = None,
        *,
        validates: bool = False,
        binds: Mapping[str, Path] | None = None,
    ) -> Workspace:
        """A workspace for `task`, with the files of `Workspace.snapshot` where they are given.

        `binds` are shown besides the task's own. With `validates` its first command first finds out, once,
        whether the task can be graded, and raises ConfigurationError for one that cannot.
        """
        start = partial(self._start, task, limits, files, validates=validates, binds=binds or {})
        return Workspace(task, files, LazySandbox(start))

    async def grade(self, task: Task, submitted: Submitted, *, strict: bool) -> Evaluation:
        """The verdict on a patch. The same patch of the same task is graded once, an empty one never.

        Raises SandboxError when the evaluation itself fails.
        """
        if submitted.refusal is not None:
            return submitted.refusal
        patch = submitted.patch
        if not patch or patch.isspace():
            return NOTHING_CHANGED
        key = await asyncio.to_thread(_verdict_key, task, patch, strict)
        with self._lock:
            known = self._verdicts.get(key)
        if known is not None:
            return known
        verdict = await evaluate(task, patch, await self._backends.probed(), strict=strict)
        if verdict.infrastructure:
            raise SandboxError(f"{task.instance_id}: the evaluation failed: {verdict.detail}")
        with self._lock:
            self._verdicts[key] = verdict
            if len(self._verdicts) > _VERDICTS_KEPT:
                self._verdicts.popitem(last=False)
        return verdict

    async def hidden_bits(self, task: Task, *, validates: bool) -> float | None:
        """How many bits the hidden tests of `task` hide. None where that is not known, and it is unsound or
        not to be found out."""
        known = await asyncio.to_thread(known_hidden_bits, task)
        if known is None and validates:
            await self._problem(task, await self._backends.probed())
            known = await asyncio.to_thread(known_hidden_bits, task)
        return known

    async def _start(
        self, task: Task, limits: Limits, files: bytes | None, *, validates: bool, binds: Mapping[str, Path]
    ) -> Sandbox:
        backend = await self._backends.probed()
        if validates and (problem := await self._problem(task, backend)):
            raise ConfigurationError(f"{task.instance_id} cannot be used: {problem}")
        image = await prepare_image(task, backend)
        sandbox = await backend.start(replace(image, binds={**image.binds, **binds}), limits=limits)
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

    async def _problem(self, task: Task, backend: SandboxBackend) -> str:
        """What validating `task` finds, once; empty for a sound one."""
        key = await asyncio.to_thread(task.content_hash)
        async with lock_of((self, key)):
            if key not in self._problems:
                (validation,) = await validate([task], backend)
                self._problems[key] = validation.problem
        return self._problems[key]


def _verdict_key(task: Task, patch: str, strict: bool) -> tuple[str, bytes, bool]:
    digest = hashlib.sha256()
    # Encoding holds Python's global lock, which other threads wait for.
    for start in range(0, len(patch), _PIECE_CHARS):
        digest.update(patch[start : start + _PIECE_CHARS].encode(errors="surrogatepass"))
    return task.content_hash(), digest.digest(), strict


class Workspace:
    """The sandbox of one episode."""

    def __init__(self, task: Task, files: bytes | None, sandbox: LazySandbox) -> None:
        """`files` are put into the sandbox when it is started."""
        self._task, self._files, self._sandbox = task, files, sandbox

    async def run(self, command: str, *, timeout_s: float, **how: Any) -> CommandResult:
        """Run a command in a new shell, as `Sandbox.exec`. Raises SandboxError when the sandbox fails."""
        script = command.encode(errors="replace").decode()
        result = await (await self._started()).exec(script, timeout_s=timeout_s, **how)
        if result.reason is ExecEnd.INFRASTRUCTURE:
            raise SandboxError(
                f"{self._task.instance_id}: the sandbox failed: {result.output.strip()[-300:]}"
            )
        return command_result(result, timeout_s)

    async def patch_in(self, path: str) -> str:
        """The text of a file that a program leaves; empty where it left none."""
        try:
            return (await (await self._started()).read(path)).decode(errors="replace")
        except SandboxFileError:
            return ""

    async def changes(self) -> Submitted:
        """What the files of the repository differ in from the start; leftovers do not count.

        Refused where the policy has left nothing to compare with (it removed the folder), or more than can be
        compared within the limits on time, memory and size.
        """
        try:
            return Submitted(patch=await (await self._started()).diff())
        except SandboxFileError as error:
            detail = f"the changed files cannot be compared with the original ones: {error}"
            refusal = Evaluation(resolved=False, reason=Verdict.PATCH_REFUSED, detail=detail)
            return Submitted(patch="", refusal=refusal)

    async def snapshot(self) -> bytes | None:
        """The files of the repository and of /tmp, with `.git`; None when nothing was run yet."""
        if not self._sandbox.is_started:
            return self._files
        try:
            return await (await self._started()).pack()
        except SandboxFileError as error:
            raise SandboxError(f"{self._task.instance_id}: its files could not be saved: {error}") from error

    async def close(self) -> None:
        """Remove the sandbox. Idempotent."""
        await self._sandbox.close()

    async def _started(self) -> Sandbox:
        sandbox = await self._sandbox.started()
        self._files = None
        return sandbox


_workshops: dict[LoopBackends, Workshop] = {}


def shared_workshop(backend: str, settings: Mapping[str, Any] | None = None) -> Workshop:
    """The workshop that all environments of this process with this backend share.

    Raises ConfigurationError: the backend, or a key of `settings`, is unknown.
    """
    backends = shared_backends(backend, settings)
    return _workshops.setdefault(backends, Workshop(backends))
