"""The SWE environment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from envsdk.env import AsyncTextEnv, Info
from envsdk.envs.spaces import PRINTABLE, AnyText
from envsdk.envs.swe.observations import (
    SHOWN_OUTPUT,
    SUBMIT_COMMAND,
    Ending,
    holds_diff,
    render_output,
    render_task,
    submitted_text,
    without_surrogates,
)
from envsdk.envs.swe.replies import ACTION_FORMATS, TOOL_SCHEMA, ActionFormat, format_reply, parse_reply
from envsdk.envs.swe.task_list import SPLITS, SplitName, task_list
from envsdk.envs.swe.tasks import ImageSource, Task
from envsdk.envs.swe.verdicts import counts, describe, shares
from envsdk.envs.swe.weak_tasks import WEAK_TASKS, WeakTasks, task_to_train_on
from envsdk.envs.swe.workspace import KEPT_OUTPUT_BYTES, Submitted, Workspace, shared_workshop
from envsdk.sandbox import Limits
from envsdk.sandbox.contract import WORKDIR

Submission = Literal["auto", "output", "tree"]
SUBMISSIONS: tuple[Submission, ...] = ("auto", "output", "tree")

LOOKS = ("git ls-files", "git status --short", "grep -rn 'def ' --include='*.py' . | sort | head -40")
"""Commands that change nothing: with the one that submits they are the `legal_actions`."""

_MAX_OBSERVATION_LENGTH = 2**30
_MAX_REPLY_LENGTH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where an episode is, apart from the files of its sandbox; picklable."""

    instance_id: str
    observation: str
    turn: int = 0
    used_s: float = 0.0
    """Time that commands have taken."""
    is_gold: bool = False
    """The last command was the oracle's first one, and it went well."""
    success: bool = False
    terminated: bool = False
    truncated: bool = False

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class SWEEnv(AsyncTextEnv):
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

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (gymnasium declares it so)

    def __init__(
        self,
        *,
        data: str | None = None,
        split: SplitName = "auto",
        repositories: str | None = None,
        instance_ids: Sequence[str] | None = None,
        num_tasks: int | None = None,
        max_steps: int = 50,
        command_timeout_s: float = 60.0,
        time_limit_s: float = 1800.0,
        shown_output: int = SHOWN_OUTPUT,
        action_format: ActionFormat = "bash",
        instructions: bool = True,
        hints: bool = False,
        submission: Submission = "auto",
        submit_at_limit: bool = False,
        strict: bool = True,
        validate: bool = True,
        weak_tasks: WeakTasks = "refuse",
        invalid_penalty: float = 0.0,
        backend: str = "bubblewrap",
        backend_settings: Mapping[str, Any] | None = None,
        limits: Mapping[str, int] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """
        Args:
            data: A JSONL or Parquet file of SWE-bench, SWE-Gym, SWE-smith, R2E-Gym or NeMo; the tasks that
                ship with envsdk when None.
            split: `train`, `held_out`, `all`, or `auto`: `train` of the shipped tasks, and all of a file.
            repositories: Folder with clones `owner__name` of the file's repositories; the folder
                `repositories` beside it when None. Rows without a clone start from their container image.
            instance_ids: These tasks only.
            num_tasks: The first so many only.
            max_steps: Replies before the episode is truncated.
            command_timeout_s: A command that takes longer is killed.
            time_limit_s: Of all commands of an episode together.
            shown_output: Characters from which on an output is cut; half as many are shown of each end.
            action_format: `bash`: a fenced block; `tool`: a call of the tool `bash`, as Hermes and Qwen
                write it.
            instructions: The first observation says how to work and how to submit, below the issue.
            hints: It has the data set's hints too.
            submission: `output`: what the submitting command prints is the patch; `tree`: the changed files
                are; `auto`: the output where it holds a diff, else the files.
            submit_at_limit: What a truncated episode has changed is graded.
            strict: See `envsdk.envs.swe.evaluator.evaluate`.
            validate: Before a task of `data` is first played, its gold patch must solve it and an empty one
                must not; what was found is kept. The shipped tasks are known to be sound.
            weak_tasks: What training does with tasks of `data` that hide few bits: `refuse` plays others in
                their place, `down_weight` plays them as often as they hide bits, of 8; `pay` as any other.
                Elsewhere they are played and marked as `weak`.
            invalid_penalty: Taken off the reward of a reply that runs nothing.
            backend: Of the sandboxes: an entry point of `envsdk.sandboxes`.
            backend_settings: Its own.
            limits: Of each sandbox, where they differ from `envsdk.sandbox.Limits`.
            render_mode: None, or `ansi`: `render()` returns the last observation.
        """
        _check_choice("split", split, SPLITS)
        _check_choice("action_format", action_format, ACTION_FORMATS)
        _check_choice("submission", submission, SUBMISSIONS)
        _check_choice("weak_tasks", weak_tasks, WEAK_TASKS)
        least = {"num_tasks": (num_tasks, 1), "max_steps": (max_steps, 1), "shown_output": (shown_output, 2)}
        for name, (value, smallest) in least.items():
            if value is not None and value < smallest:
                raise ValueError(f"{name}: must be at least {smallest}, not {value}")
        for name, seconds in {"command_timeout_s": command_timeout_s, "time_limit_s": time_limit_s}.items():
            if not seconds > 0:
                raise ValueError(f"{name}: must be above 0, not {seconds}")
        self.max_steps = max_steps
        self.render_mode = render_mode
        ids = tuple(instance_ids) if instance_ids else None
        self._tasks = task_list(data, split, ids, num_tasks, repositories)
        self._workshop = shared_workshop(backend, backend_settings)
        self._limits = _limits(limits or {})
        self._command_timeout_s = command_timeout_s
        self._time_limit_s = time_limit_s
        self._shown_output = shown_output
        self._action_format: ActionFormat = action_format
        self._instructions = instructions
        self._hints = hints
        self._submission = submission
        self._submit_at_limit = submit_at_limit
        self._strict = strict
        self._validates = validate and data is not None
        self._weak_tasks: WeakTasks = "pay" if data is None else weak_tasks
        self._invalid_penalty = invalid_penalty
        self._state: State | None = None
        self._workspace: Workspace | None = None

    @cached_property
    def observation_space(self) -> Text:  # type: ignore[override]
        return AnyText(_MAX_OBSERVATION_LENGTH)

    @cached_property
    def action_space(self) -> Text:  # type: ignore[override]
        """What `sample()` draws from. `step` takes any string, of any length and script."""
        return Text(min_length=0, max_length=_MAX_REPLY_LENGTH, charset=PRINTABLE)

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        """Show an issue. The sandbox is started by the first command.

        `info` names the task: `instance_id`, `repo`; with `action_format="tool"` it has `tools`.
        """
        await super().reset(seed=seed)
        number = self._tasks.number(int(self.np_random.integers(2**31)), options)
        how: WeakTasks = self._weak_tasks if options and options.get("training") else "pay"
        task = await task_to_train_on(self._tasks, number, how, self._hidden_bits)
        await self._leave()
        observation = render_task(
            task.problem_statement,
            hints=task.hints_text if self._hints else "",
            instructions=self._instructions,
            action_format=self._action_format,
            workdir=task.source.workdir if isinstance(task.source, ImageSource) else WORKDIR,
        )
        self._state = State(instance_id=task.instance_id, observation=observation)
        info: Info = {"instance_id": task.instance_id, "repo": task.repo}
        if self._action_format == "tool":
            info["tools"] = [deepcopy(TOOL_SCHEMA)]
        return observation, info

    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        state = self._needed_state()
        if state.ended:
            info: Info = {"success": state.success, "metrics": {}}
            return state.observation, 0.0, state.terminated, state.truncated, info
        command, note = parse_reply(action, self._action_format)
        state = replace(state, turn=state.turn + 1, observation=note)
        metrics = {"action_is_valid": float(not note)}
        reward = -self._invalid_penalty if note else 0.0
        info = {"success": False, "metrics": metrics}
        work: Submitted | None = None
        if not note:
            state, work = await self._run(state, command, metrics)
        submitted = work is not None
        at_limit = not submitted and (state.turn >= self.max_steps or state.used_s >= self._time_limit_s)
        if at_limit and self._submit_at_limit:
            work = Submitted(patch="") if self._workspace is None else await self._workspace.changes()
        if submitted or at_limit:
            state, graded = await self._ended(state, work, submitted=submitted, info=info)
            reward += graded
        self._state = state
        return state.observation, 0.0 + reward, state.terminated, state.truncated, info

    async def _run(
        self, state: State, command: str, metrics: dict[str, float]
    ) -> tuple[State, Submitted | None]:
        """The state after a command, and what it submits, if it does."""
        workspace = self._opened(state)
        limit_s = min(self._command_timeout_s, max(1.0, self._time_limit_s - state.used_s))
        result = await workspace.run(command, timeout_s=limit_s)
        metrics["command_succeeded"] = float(result.returncode == 0 and not result.note)
        metrics["command_was_killed"] = float(bool(result.note))
        state = replace(
            state,
            observation=render_output(
                result.output,
                result.returncode,
                note=result.note,
                num_bytes=result.num_bytes,
                shown=self._shown_output,
            ),
            used_s=state.used_s + result.elapsed_s,
            is_gold=result.returncode == 0 and command == self._gold_command(state).strip(),
        )
        text = None if result.note else submitted_text(result.output, result.returncode)
        if text is None:
            return state, None
        is_whole = result.num_bytes <= self._limits.kept_output_bytes
        if self._submission == "output" or (self._submission == "auto" and is_whole and holds_diff(text)):
            return state, Submitted(patch=text)
        return state, await workspace.changes()

    async def _ended(
        self, state: State, work: Submitted | None, *, submitted: bool, info: Info
    ) -> tuple[State, float]:
        """The state at the end of the episode, and what is paid for the patch; fills `info`."""
        task = self._tasks.named(state.instance_id)
        evaluation = None if work is None else await self._workshop.grade(task, work, strict=self._strict)
        resolved = evaluation is not None and evaluation.resolved
        ending = Ending(
            instance_id=task.instance_id,
            exit_status="Submitted" if submitted else "LimitsExceeded",
            resolved=resolved,
            detail=describe(evaluation),
            submission="" if work is None else await asyncio.to_thread(without_surrogates, work.patch),
        )
        told = counts(task, evaluation)
        info |= {
            "success": resolved,
            "exit_status": ending.exit_status,
            "submission": ending.submission,
            **told,
        }
        info["metrics"] |= {
            "submitted": float(submitted),
            "empty_patch": float(not ending.submission or ending.submission.isspace()),
        }
        if evaluation is not None:
            info["metrics"] |= shares(told)
        await self._leave()
        ended = replace(
            state,
            observation=ending.render(),
            success=resolved,
            terminated=submitted,
            truncated=not submitted,
        )
        return ended, float(resolved)

    async def close(self) -> None:  # type: ignore[override]
        """Remove the sandbox. Idempotent."""
        await self._leave()

    def render(self) -> str | None:
        return self._state.observation if self.render_mode == "ansi" and self._state is not None else None

    async def snapshot(self) -> Any:
        """Has all files of the repository and of /tmp: as large as they are, compressed."""
        files = None if self._workspace is None else await self._workspace.snapshot()
        return self._needed_state(), files, self.np_random.bit_generator.state

    async def restore(self, snapshot: Any) -> str:
        state, files, random_state = snapshot
        await self._leave()
        self._state = state
        self.np_random.bit_generator.state = random_state
        if files is not None:
            self._workspace = self._open(state, files)
        observation: str = state.observation
        return observation

    async def oracle(self) -> str:
        """Undoes all changes and applies the gold patch; then submits."""
        state = self._needed_state()
        command = SUBMIT_COMMAND if state.is_gold else self._gold_command(state)
        return format_reply(command, self._action_format)

    async def legal_actions(self) -> Sequence[str]:
        """A few commands that look around, and the one that submits."""
        if self._needed_state().ended:
            return ()
        return tuple(format_reply(command, self._action_format) for command in (*LOOKS, SUBMIT_COMMAND))

    def _gold_command(self, state: State) -> str:
        return gold_command(self._tasks.named(state.instance_id).gold_patch)

    async def _hidden_bits(self, task: Task) -> float | None:
        return await self._workshop.hidden_bits(task, validates=self._validates)

    def _opened(self, state: State) -> Workspace:
        if self._workspace is None:
            self._workspace = self._open(state, None)
        return self._workspace

    def _open(self, state: State, files: bytes | None) -> Workspace:
        task = self._tasks.named(state.instance_id)
        return self._workshop.open(task, self._limits, files, validates=self._validates)

    async def _leave(self) -> None:
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            await workspace.close()

    def _needed_state(self) -> State:
        if self._state is None:
            raise ResetNeeded("SWE: call reset() first")
        return self._state


def gold_command(patch: str) -> str:
    """A command that leaves a repository with this patch applied, and no other change."""
    end = "EOF"
    while f"\n{end}\n" in f"\n{patch}\n":
        end += "F"
    newline = "" if patch.endswith("\n") else "\n"
    return f"git reset -q --hard && git clean -fdq && git apply - <<'{end}'\n{patch}{newline}{end}"


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name}: must be one of {', '.join(known)}, not {value!r}")


def _limits(given: Mapping[str, int]) -> Limits:
    try:
        return replace(Limits(kept_output_bytes=KEPT_OUTPUT_BYTES), **given)
    except TypeError as error:
        known = ", ".join(field.name for field in fields(Limits))
        raise ValueError(f"limits: {error}; known are {known}") from error
