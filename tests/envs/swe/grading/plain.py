"""Grading as it is done elsewhere: apply the patch as it is, put the hidden tests back, read pytest's log.

Nothing of the evaluator takes part. It says which patches are honest (their tests pass for the right reason,
as whoever wrote them knows) and which cheats are alive (their tests pass, and for no good reason).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envsdk.envs.swe.tasks.images import prepare_image
from envsdk.envs.swe.tasks.task import Task
from envsdk.rewards.sandbox import ExecEnd, Limits, SandboxBackend
from tests.envs.swe.grading.subjects import hidden_tests

_APPLY = "git -c core.hooksPath=/dev/null apply --whitespace=nowarn /tmp/patch && rm /tmp/patch"
_TEST = "python -m pytest -rA --tb=no -p no:cacheprovider --color=no --continue-on-collection-errors"


@dataclass(frozen=True, kw_only=True)
class Plain:
    """What pytest's log says."""

    resolved: bool
    passed: frozenset[str]
    """Node ids."""
    elapsed_s: float
    """Of the command that ran the tests."""
    output: str
    ended: ExecEnd = ExecEnd.EXIT


async def grade_plainly(task: Task, patch: str, backend: SandboxBackend, *, timeout_s: float = 60.0) -> Plain:
    """Run the tests of `task` after `patch`, in a sandbox only because cheats are no guests for a machine."""
    image = await prepare_image(task, backend)
    sandbox = await backend.start(image, limits=Limits(memory_mb=task.limits.memory_mb))
    try:
        if patch:
            await sandbox.write("/tmp/patch", patch.encode(errors="surrogateescape"))
            applied = await sandbox.exec(_APPLY, timeout_s=60)
            if not applied.ok:
                return Plain(resolved=False, passed=frozenset(), elapsed_s=0.0, output=applied.output)
        for path, text in hidden_tests(task).items():
            await sandbox.exec(f"rm -rf '{path}'", timeout_s=60)
            await sandbox.write(path, text.encode())
        done = await sandbox.exec(f"{_TEST} {' '.join(task.tests.paths)}", timeout_s=timeout_s)
    finally:
        await sandbox.close()
    passed = frozenset(re.findall(r"^PASSED (.+?)$", done.output, re.MULTILINE))
    wanted = {*task.fail_to_pass, *task.pass_to_pass}
    return Plain(
        resolved=bool(wanted) and wanted <= passed,
        passed=passed,
        elapsed_s=done.elapsed_s,
        output=done.output,
        ended=done.reason,
    )
