"""The reward `code`.

    response -> program -> sandbox: every case -> what was printed or returned | which tests passed -> Reward

What the program does to itself or to its sandbox is a wrong answer. RewardError: the row has no test cases
that can be used, or the sandbox failed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from envsdk.base.settings.strict import StrictSettings
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.answer_text import program_in
from envsdk.rewards.code.rows import RowError, Task, solution_of, task_of
from envsdk.rewards.code.runs import Limits, Outcome, run_task
from envsdk.rewards.reward import AsyncRewardFunction, Reward, RewardError, Sample
from envsdk.rewards.sandbox import SandboxError, open_backend


class CodeReward(AsyncRewardFunction):
    """Judges a program by the row's test cases.

    Parts: `passed` and `cases`, their numbers, and `share`, the one over the other.
    """

    keeps_deadline = True

    class Args(StrictSettings):
        """Settings of the reward `code`."""

        reward_type: Literal["hard", "soft"] = "hard"
        """`hard`: 1 where every case passes, else 0; `soft`: the share of cases that pass."""
        cpu_time_s: PositiveInt = 10
        """CPU time of one case, in seconds."""
        total_time_s: PositiveFloat = 120.0
        """Seconds by the clock for all cases of a program; those that it does not come to are not passed."""
        program_memory_mb: PositiveInt = 1024
        """Memory of one process of the program."""
        processes: PositiveInt = 64
        """Processes and threads at once in one sandbox."""
        float_tolerance: PositiveFloat = 1e-6
        """Amount by which numbers with a fraction may differ, relative and absolute."""
        programs_at_once: PositiveInt = Field(default_factory=lambda: os.cpu_count() or 1)
        """How many programs run at the same time, for each process that plays; further ones wait. Absent, the
        number of cores."""
        backend: str = "bubblewrap"
        """Sandbox, by name or dotted name."""
        backend_settings: dict[str, Any] = Field(default_factory=dict)
        """Settings of the sandbox's backend."""

    def __init__(self, args: Args) -> None:
        if args.backend == "unsandboxed":
            raise ConfigurationError(
                "programs that a policy writes are judged in a sandbox only: set `backend` to bubblewrap, "
                "docker or podman (docs/swe-sandbox.md)"
            )
        self.args = args
        settings = {"commands_at_once": args.programs_at_once, **args.backend_settings}
        self._backend = open_backend(args.backend, settings)
        self._slots = asyncio.Semaphore(args.programs_at_once)

    async def score_async(self, sample: Sample) -> Reward:
        try:
            # Rows with many megabytes of test cases take a while to read.
            task = await asyncio.to_thread(task_of, sample.row)
        except RowError as error:
            raise RewardError(f"the row cannot be used: {error}") from error
        program = sample.response if task.of_text else program_in(sample.response, task.needs)
        if program is None:
            return self.unscorable("there is no Python program in it")
        if not task.of_text:
            program = f"{task.prefix}\n{program}" if task.prefix else program
        limits = Limits(
            cpu_time_s=self.args.cpu_time_s,
            total_time_s=self.args.total_time_s,
            memory_mb=self.args.program_memory_mb,
            processes=self.args.processes,
        )
        async with self._slots:
            try:
                outcome = await run_task(self._backend, task, program, limits, self.args.float_tolerance)
            except SandboxError as error:
                raise RewardError(f"the sandbox failed: {error}") from error
        return self._reward(task, outcome)

    def _reward(self, task: Task, outcome: Outcome) -> Reward:
        share = outcome.passed / outcome.total
        correct = outcome.passed == outcome.total
        what = "tests" if task.tests else "cases"
        verdict = f"{outcome.passed} of {outcome.total} {what} pass"
        if outcome.first_failure:
            verdict += f"; {outcome.first_failure}"
        return Reward(
            value=share if self.args.reward_type == "soft" else float(correct),
            verdict=verdict,
            correct=correct,
            parts={"passed": float(outcome.passed), "cases": float(outcome.total), "share": share},
        )

    def reference(self, sample: Sample) -> str | None:
        solution = solution_of(sample.row)
        if solution is None or "```" in solution:
            return solution
        return f"```python\n{solution}\n```"

    def problem(self, row: Mapping[str, Any]) -> str | None:
        try:
            task_of(row)
        except RowError as error:
            return str(error)
        return None

    async def close(self) -> None:
        await self._backend.aclose()
