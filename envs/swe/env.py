"""The SWE environment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from envsdk.contracts.agent_door import AgentDoor
from envsdk.contracts.env import Info
from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.tool_calls.formats import read_reply
from envsdk.engines.tool_calls.reading import attempt_metric
from envsdk.envs.arguments import keywords_of
from envsdk.envs.shell.commands import KEPT_OUTPUT_BYTES, CommandResult, submitted_text
from envsdk.envs.shell.env import ShellArguments, ShellEnv, ShellState
from envsdk.envs.shell.replies import SCHEMAS, TOOL_SCHEMA, ActionFormat, format_reply, parse_reply
from envsdk.envs.swe.harness import read_harness, staged
from envsdk.envs.swe.observations import SUBMIT_COMMAND, Ending, holds_diff, render_task, without_surrogates
from envsdk.envs.swe.task_list import WeakTasks, task_list, task_to_train_on
from envsdk.envs.swe.tasks.task import ImageSource, Outcome, Task
from envsdk.envs.swe.workspace import (
    Submitted,
    Workspace,
    shared_workshop,
)
from envsdk.rewards.sandbox import Limits
from envsdk.rewards.sandbox.contract import WORKDIR

HARNESS_BACKEND = "bubblewrap"
"""It runs programs of this machine, and gives each sandbox a socket of its own."""
SHOWN_END = 400
"""Characters at the end of what a harness printed."""
CANNOT_RUN = (126, 127)
"""Exit codes of a shell whose command cannot be run, or is not there."""


class SWEArguments(ShellArguments):
    """The keywords of `SWEEnv`."""

    data: str | None = None
    """A JSONL or Parquet file of SWE-bench, SWE-Gym, SWE-smith, R2E-Gym or NeMo; the tasks that ship with
    envsdk when None."""
    repositories: str | None = None
    """Folder with clones `owner__name` of the file's repositories; the folder `repositories` beside it when
    None. Rows without a clone start from their container image."""
    command_timeout_s: float = Field(60.0, gt=0)
    """A command that takes longer is killed."""
    time_limit_s: float = Field(1800.0, gt=0)
    """Seconds for all commands of an episode together."""
    action_format: ActionFormat = "bash"
    """`bash`: a fenced block; `tool`: a call of the tool `bash`, as Hermes and Qwen write it."""
    hints: bool = False
    """The first observation has the data set's hints too."""
    submission: Literal["auto", "output", "tree"] = "auto"
    """`output`: what the submitting command prints is the patch; `tree`: the changed files are; `auto`: the
    output where it holds a diff, else the files."""
    submit_at_limit: bool = False
    """What a truncated episode has changed is graded."""
    strict: bool = True
    """See `envsdk.envs.swe.evaluator.evaluate`."""
    validate_tasks: bool = Field(True, alias="validate")
    """Before a task of `data` is first played, its gold patch must solve it and an empty one must not; what
    was found is kept. The shipped tasks are known to be sound."""
    weak_tasks: WeakTasks = "refuse"
    """What training does with tasks of `data` that hide few bits: `refuse` plays others in their place,
    `down_weight` plays them as often as they hide bits, of 8; `pay` as any other. Elsewhere they are played
    and marked as `weak`."""
    harness: str | Mapping[str, Any] | None = None
    """An agent program that plays in the sandbox in place of single commands: its name, or a mapping of
    `envsdk.envs.swe.harness.record.Harness`."""

    @property
    def validates(self) -> bool:
        return self.validate_tasks and self.data is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class State(ShellState):
    """Picklable."""

    instance_id: str
    is_gold: bool = False
    """The last command was the oracle's first one, and it went well."""


class SWEEnv(ShellEnv[State, Workspace]):
    """Repair a repository by shell commands and submit a patch, on which hidden tests decide.

        reset (no sandbox yet) -> command -> command -> ... -> submission -> graded in a fresh sandbox

    A reply holds one ```bash block. It runs in a new shell in the repository; the observation has its return
    code and output. A reply that does not hold exactly one block runs nothing, and the observation says
    so. A command that succeeds and prints COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT first submits: the episode
    is over, with reward 1 if the tests that decide pass, else 0. After `max_steps` replies, or
    `time_limit_s` of commands, the episode is truncated, with nothing submitted unless `submit_at_limit`.

    `reset(options={"task": 17})` plays number 17 of the split, modulo its size; otherwise the seed draws one.
    With `"training": True` besides, `weak_tasks` decides whether another one takes its place.

    A sandbox or an evaluation that breaks raises: the episode has no outcome, and is never scored 0.
    """

    LOOKS = (
        *("git ls-files", "git status --short", "grep -rn 'def ' --include='*.py' . | sort | head -40"),
        SUBMIT_COMMAND,
    )

    @keywords_of(SWEArguments)
    def __init__(self, args: SWEArguments) -> None:
        self.max_steps, self.render_mode = args.max_steps, args.render_mode
        self._args = args
        self._tasks = task_list(args.data, args.split, args.ids, args.num_tasks, args.repositories)
        self.num_tasks = len(self._tasks)
        self._workshop = shared_workshop(args.backend, args.backend_settings)
        self._limits = replace(Limits(kept_output_bytes=KEPT_OUTPUT_BYTES), **(args.limits or {}))
        self._harness = None if args.harness is None else read_harness(args.harness)
        if self._harness is not None and args.backend != HARNESS_BACKEND:
            raise ValueError(
                f"harness: plays in the sandboxes of `{HARNESS_BACKEND}`, not of `{args.backend}`"
            )

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        """Show an issue. The sandbox is started by the first command.

        `info` names the task: `instance_id`, `repo`; with `action_format="tool"` it has `tools`.
        """
        await super().reset(seed=seed)
        number = self._tasks.number(int(self.np_random.integers(2**31)), options)
        trains = self._args.data is not None and bool(options and options.get("training"))
        how: WeakTasks = self._args.weak_tasks if trains else "pay"
        hidden_bits = partial(self._workshop.hidden_bits, validates=self._args.validates)
        self.task_name = self._tasks.at(number).instance_id
        task = await task_to_train_on(self._tasks, number, how, hidden_bits)
        self.task_name = task.instance_id
        await self.close()
        observation = render_task(
            task.problem_statement,
            hints=task.hints_text if self._args.hints else "",
            instructions=self._args.instructions,
            action_format=self._args.action_format,
            workdir=task.source.workdir if isinstance(task.source, ImageSource) else WORKDIR,
        )
        self._state = State(instance_id=task.instance_id, observation=observation)
        info: Info = {"instance_id": task.instance_id, "repo": task.repo}
        if self._args.action_format == "tool":
            info["tools"] = [deepcopy(TOOL_SCHEMA)]
        return observation, info

    async def _play_on(self, state: State, action: str, info: Info) -> tuple[State, float]:
        command, note = parse_reply(action, self._args.action_format)
        state = replace(state, turn=state.turn + 1, observation=note)
        metrics = info["metrics"]
        metrics["action_is_valid"] = float(not note)
        if self._args.action_format == "tool":
            metrics |= attempt_metric(read_reply(action, tools=SCHEMAS).status)
        reward = -self._args.invalid_penalty if note else 0.0
        work: Submitted | None = None
        if not note:
            state, work = await self._run(state, command, metrics)
        submitted = work is not None
        at_limit = not submitted and (state.turn >= self.max_steps or state.used_s >= self._args.time_limit_s)
        if at_limit and self._args.submit_at_limit:
            work = Submitted(patch="") if self._workplace is None else await self._workplace.changes()
        if submitted or at_limit:
            state, graded = await self._ended(state, work, submitted=submitted, info=info)
            reward += graded
        return state, reward

    async def play(self, door: AgentDoor) -> tuple[str, float, bool, bool, Info]:
        """Have `harness` work in the sandbox until it ends or `time_limit_s` is over.

        What it leaves is graded as a submission where it ends with exit code 0. Otherwise the episode is
        truncated, and graded only with `submit_at_limit`; `CANNOT_RUN` gives it no outcome.
        """
        state, harness = self._needed_state(), self._harness
        if harness is None:
            raise ValueError("SWE: play() is for environments with the argument `harness`")
        if harness.lacks:
            raise ConfigurationError(harness.lacks)
        task = self._tasks.named(state.instance_id)
        hints = f"\n\n{task.hints_text.strip()}" if self._args.hints and task.hints_text.strip() else ""
        await self.close()
        async with staged(harness, task.problem_statement.strip() + hints, door) as stage:
            folders = tuple(harness.shown.values())
            if copies := await asyncio.to_thread(self._tasks.copies_in, folders, task):
                problem = f"the harness {harness.name} shows its solution: {', '.join(copies[:3])}"
                raise ConfigurationError(f"{task.instance_id}: {problem}")
            try:
                workspace = self._workplace = self._open(state, None, stage.binds)
                limit_s = self._args.time_limit_s
                ended = await workspace.run(stage.script, timeout_s=limit_s, env=stage.env, waits=True)
                submitted, broken = ended.returncode == 0, ended.returncode in CANNOT_RUN
                work = None
                if submitted or (self._args.submit_at_limit and not broken):
                    patch = await workspace.patch_in(harness.result) if harness.result else ""
                    work = Submitted(patch=patch) if holds_diff(patch) else await workspace.changes()
                info: Info = {"metrics": {"harness_succeeded": float(submitted)}}
                end = how_it_ended(harness.name, ended)
                if not submitted:
                    info |= {"agent_error": end, "agent_broken": broken}
                status = "LimitsExceeded" if ended.note else "NonZeroExit"
                self._state, reward = await self._ended(
                    state, work, submitted=submitted, info=info, status=status, end=end
                )
            finally:
                await self.close()
        state = self._state
        return state.observation, reward, state.terminated, state.truncated, info

    async def _run(
        self, state: State, command: str, metrics: dict[str, float]
    ) -> tuple[State, Submitted | None]:
        """The state after a command, and what it submits, if it does."""
        workspace = self._opened(state)
        limit_s = min(self._args.command_timeout_s, max(1.0, self._args.time_limit_s - state.used_s))
        result = await workspace.run(command, timeout_s=limit_s)
        metrics["command_succeeded"] = float(result.returncode == 0 and not result.note)
        metrics["command_was_killed"] = float(bool(result.note))
        state = replace(
            state,
            observation=result.render(self._args.shown_output),
            used_s=state.used_s + result.elapsed_s,
            is_gold=result.returncode == 0 and command == self._gold_command(state).strip(),
        )
        text = None if result.note else submitted_text(result.output, result.returncode)
        if text is None:
            return state, None
        is_whole = result.num_bytes <= self._limits.kept_output_bytes
        if self._args.submission == "output" or (
            self._args.submission == "auto" and is_whole and holds_diff(text)
        ):
            return state, Submitted(patch=text)
        return state, await workspace.changes()

    async def _ended(
        self, state: State, work: Submitted | None, *, submitted: bool, info: Info, **program: str
    ) -> tuple[State, float]:
        """The state at the end of the episode, and what is paid for the patch; fills `info`."""
        task = self._tasks.named(state.instance_id)
        if self._workplace is not None:
            # The evaluation needs a sandbox too: episodes that hold one while they wait could wait forever.
            await self._workplace.close()
        evaluation = (
            None if work is None else await self._workshop.grade(task, work, strict=self._args.strict)
        )
        resolved = evaluation is not None and evaluation.resolved
        ending = Ending(
            instance_id=task.instance_id,
            exit_status="Submitted" if submitted else program.get("status", "LimitsExceeded"),
            resolved=resolved,
            detail=" ".join(filter(None, (program.get("end"), describe(evaluation)))),
            submission="" if work is None else await asyncio.to_thread(without_surrogates, work.patch),
        )
        told = counts(task, evaluation)
        info |= {
            "success": resolved,
            "exit_status": ending.exit_status,
            "submission": ending.submission,
            "details": {"verdict": ending.detail},
            **told,
        }
        info["metrics"] |= {
            "submitted": float(submitted),
            "empty_patch": float(not ending.submission or ending.submission.isspace()),
        }
        if evaluation is not None:
            info["metrics"] |= shares(told)
        await self.close()
        ended = replace(
            state,
            observation=ending.render(),
            success=resolved,
            terminated=submitted,
            truncated=not submitted,
        )
        return ended, float(resolved)

    async def snapshot(self) -> Any:
        """Has all files of the repository and of /tmp: as large as they are, compressed."""
        files = None if self._workplace is None else await self._workplace.snapshot()
        return self._needed_state(), files, self.np_random.bit_generator.state

    async def restore(self, snapshot: Any) -> str:
        state, files, random_state = snapshot
        await self.close()
        self._state = state
        self.np_random.bit_generator.state = random_state
        if files is not None:
            self._workplace = self._open(state, files)
        observation: str = state.observation
        return observation

    async def oracle(self) -> str:
        """Undoes all changes and applies the gold patch; then submits."""
        state = self._needed_state()
        return self._reply(SUBMIT_COMMAND if state.is_gold else self._gold_command(state))

    def _reply(self, command: str) -> str:
        return format_reply(command, self._args.action_format)

    def _gold_command(self, state: State) -> str:
        return gold_command(self._tasks.named(state.instance_id).gold_patch)

    def _opened(self, state: State) -> Workspace:
        if self._workplace is None:
            self._workplace = self._open(state, None)
        return self._workplace

    def _open(self, state: State, files: bytes | None, binds: Mapping[str, Path] | None = None) -> Workspace:
        task = self._tasks.named(state.instance_id)
        return self._workshop.open(task, self._limits, files, validates=self._args.validates, binds=binds)


def gold_command(patch: str) -> str:
    """A command that leaves a repository with this patch applied, and no other change."""
    end = "EOF"
    while f"\n{end}\n" in f"\n{patch}\n":
        end += "F"
    newline = "" if patch.endswith("\n") else "\n"
    return f"git reset -q --hard && git clean -fdq && git apply - <<'{end}'\n{patch}{newline}{end}"


if TYPE_CHECKING:
    from envsdk.envs.swe.evaluator import Evaluation


def how_it_ended(name: str, ended: CommandResult) -> str:
    """One line about the end of a harness, with the last of what it printed."""
    if ended.note:
        return ended.note.replace("The command", f"The harness {name}")
    last = " ".join(ended.output.split())[-SHOWN_END:] or "it printed nothing"
    return f"The harness {name} ended with exit code {ended.returncode}: {last}."


def lacks(*, harness: str | Mapping[str, Any] | None = None, **_: Any) -> str:
    """What is missing on this machine for these keywords, and how to get it."""
    return "" if harness is None else read_harness(harness).lacks


def describe(evaluation: Evaluation | None) -> str:
    """One line for a person."""
    if evaluation is None:
        return "Nothing was submitted."
    return f"{evaluation.reason.value}: {evaluation.detail}"


def counts(task: Task, evaluation: Evaluation | None) -> dict[str, Any]:
    """`reason`, `stripped` files, and for each list of tests how many passed: `{"passed": 2, "total": 3}`.

    `hidden_bits`, `weak` and `suspicious` say how far the verdict can be forged. The lists are `fail_to_pass`
    and `pass_to_pass`, or `expected` where the task has an outcome per test.
    """
    outcomes = {} if evaluation is None else evaluation.outcomes
    told: dict[str, Any] = {
        "reason": "not_submitted" if evaluation is None else evaluation.reason.value,
        "stripped": [] if evaluation is None else list(evaluation.stripped),
    }
    if evaluation is not None:
        told |= {"hidden_bits": evaluation.hidden_bits, "weak": evaluation.weak}
        if evaluation.suspicious:
            told["suspicious"] = list(evaluation.suspicious)
    if task.expected is not None:
        as_expected = sum(outcomes.get(name) is outcome for name, outcome in task.expected.items())
        return {**told, "expected": {"passed": as_expected, "total": len(task.expected)}}

    def passed(names: Iterable[str]) -> int:
        return sum(outcomes.get(name) is Outcome.PASSED for name in names)

    for name, tests in (("fail_to_pass", task.fail_to_pass), ("pass_to_pass", task.pass_to_pass)):
        told[name] = {"passed": passed(tests), "total": len(tests)}
    return told


def shares(told: dict[str, Any]) -> dict[str, float]:
    """The share of each list of `counts` that passed, 1 for an empty list; for `metrics`."""
    return {
        f"{name}_passed": told[name]["passed"] / total if (total := told[name]["total"]) else 1.0
        for name in ("fail_to_pass", "pass_to_pass", "expected")
        if name in told
    }
