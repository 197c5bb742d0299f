"""The Terminal environment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from envsdk.contracts.env import Info
from envsdk.contracts.failures import ConfigurationError, describe_error
from envsdk.envs.arguments import keywords_of
from envsdk.envs.shell.commands import SENTINEL, submitted_text
from envsdk.envs.shell.env import ShellArguments, ShellEnv, ShellState
from envsdk.envs.shell.replies import TOOL_SCHEMA, parse_reply
from envsdk.envs.terminal.artifacts import Bounds
from envsdk.envs.terminal.boxes import Boxes, BoxRuined
from envsdk.envs.terminal.harbor.config import Mode
from envsdk.envs.terminal.harbor.folder import HarborTask, Stage
from envsdk.envs.terminal.harbor.rewards import NoReward, Rewards, combined, gate_failed, scalar
from envsdk.envs.terminal.judge import CHECKED, Checked, CutOff
from envsdk.envs.terminal.replies import ActionFormat, format_command, read_keys
from envsdk.envs.terminal.services import BoxBroken
from envsdk.envs.terminal.session import Session
from envsdk.envs.terminal.task_list import TaskList, task_list
from envsdk.envs.terminal.texts import render_end, render_task
from envsdk.envs.terminal.validation import demand_sound, play, solution_command
from envsdk.rewards.sandbox import SandboxError
from envsdk.rewards.sandbox.shared import shared_backends

SUBMIT_COMMAND = f"echo {SENTINEL}"
HOST_IMAGES = {"images": {"*": "host"}}
"""bubblewrap's setting for the shipped tasks: their images need nothing that this machine lacks."""


MAX_TIME_SHARE = 0.5
"""A verifier that is cut off is the policy's doing if that of the task's own work takes less of its time."""


class TerminalArguments(ShellArguments):
    """The keywords of `TerminalEnv`."""

    data: str | None = None
    """A Harbor task's folder, or a folder with such folders at any depth; the name of a data set of Harbor's
    where the command `harbor` is installed; the tasks that ship with envsdk when None."""
    skip_refused: bool = False
    """Tasks of `data` that cannot be played here are left out; otherwise they are an error."""
    validate_tasks: bool = Field(True, alias="validate")
    """Before a task of `data` with a solution is first played, the solution must be paid, and more than doing
    nothing; what was found is kept."""
    command_timeout_s: float = Field(120.0, gt=0)
    """A command that takes longer is killed."""
    time_limit_s: float | None = Field(None, gt=0)
    """Seconds for all commands of a step together, in place of the task's own `[agent] timeout_sec`."""
    action_format: ActionFormat = "bash"
    """`bash`: a fenced block; `tool`: a call of the tool `bash`; `keys`: keys of a terminal, as JSON."""
    reward_key: str = "reward"
    """Name of the reward that is paid, where there are several."""
    success_at: float = 1.0
    """The task is solved from this reward on."""
    max_artifact_mb: int = Field(64, ge=1)
    """Size of what a separate verifier gets; more is left out."""
    max_artifact_files: int = Field(10_000, ge=1)
    """Number of files of what it gets."""
    keeps_processes: bool = True
    """What a command leaves running goes on until the check is over; otherwise it ends with its command."""
    variables: Mapping[str, str] | None = None
    """Values of the variables that a task takes from its host: `${VAR}`. Nothing else of this process is
    shown to tasks."""

    @property
    def has_network(self) -> bool:
        return bool((self.backend_settings or {}).get("network"))

    def task_list(self) -> TaskList:
        """The tasks that are played. Raises ConfigurationError, as `task_list`."""
        how: dict[str, Any] = {"skips_refused": self.skip_refused, "has_network": self.has_network}
        return task_list(self.data, self.split, self.ids, self.num_tasks, backend=self.backend, **how)


class NoSolution(Exception):
    """What an oracle is asked that has nothing to go by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State(ShellState):
    """`used_s` counts from the begin of the stage."""

    task: HarborTask
    stage: int = 0
    checked: tuple[Checked, ...] = ()
    is_solved: bool = False
    """The last command was the stage's own solution; how it ended says nothing, as in Harbor."""


class TerminalEnv(ShellEnv[State, Session]):
    """Solve a task of Harbor's by shell commands; its own tests decide.

        reset (no box yet) -> command -> ... -> submission -> checked -> the next step, or the end

    A command that succeeds and prints COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT first submits; in the format
    `keys`, `"task_complete": true` does. After `max_steps` replies the episode is truncated, and what it has
    left is checked. A step whose time is over is checked as if it had been submitted.

    `reset(options={"task": 17})` plays number 17 of the split, modulo its size; otherwise the seed draws one.

    A box or a verifier that breaks raises: the episode has no outcome, and is never scored 0. A box that is
    checked in place is the policy's: where its check breaks and one of a new box does not, it is scored 0.
    """

    LOOKS = (
        *("ls -la", "pwd && ls -laR . | head -40", "cat $(find . -maxdepth 2 -type f | head -3)"),
        SUBMIT_COMMAND,
    )

    @keywords_of(TerminalArguments)
    def __init__(self, args: TerminalArguments) -> None:
        self.max_steps, self.render_mode = args.max_steps, args.render_mode
        self._args = args
        settings = backend_settings(args)
        self._tasks = args.task_list()
        self.num_tasks = len(self._tasks)
        limits = sorted((args.limits or {}).items())
        self._boxes = Boxes(
            backends=shared_backends(args.backend, settings),
            identity=repr((args.backend, sorted(settings.items()), limits, args.keeps_processes)),
            limits=args.limits or {},
            variables=args.variables or {},
            has_network=args.has_network,
            keeps_processes=args.keeps_processes,
        )
        self._bounds = Bounds(bytes=args.max_artifact_mb << 20, files=args.max_artifact_files)

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        """Show a task. Its box is started by the first command.

        `info` names the task: `instance_id`; `checked` says how; with `action_format="tool"` it has `tools`.
        """
        await super().reset(seed=seed)
        task = self._tasks.at(self._tasks.number(int(self.np_random.integers(2**31)), options))
        self.task_name = task.id
        await self.close()
        if self._args.validate_tasks and self._args.data is not None:
            await demand_sound(task, self._boxes, self._bounds, self._args.reward_key)
        stage = task.stages[0]
        observation = render_task(
            stage,
            instructions=self._args.instructions,
            action_format=self._args.action_format,
            keeps_processes=self._args.keeps_processes,
            box=task.config.environment,
        )
        self._state = State(task=task, observation=observation)
        how = CHECKED[Mode.SEPARATE if task.is_separate else Mode.SHARED]
        info: Info = {"instance_id": task.id, "checked": how}
        if self._args.action_format == "tool":
            info["tools"] = [deepcopy(TOOL_SCHEMA)]
        return observation, info

    async def _play_on(self, state: State, action: str, info: Info) -> tuple[State, float]:
        state = replace(state, turn=state.turn + 1, is_solved=False)
        state, submitted, note = await self._work(state, action, info["metrics"])
        info["metrics"]["action_is_valid"] = float(not note)
        reward = -self._args.invalid_penalty if note else 0.0
        limit_s = self._time_limit_s(_stage(state))
        is_ruined = self._opened(state).box.is_ruined
        if submitted or is_ruined or state.turn >= self.max_steps or state.used_s >= limit_s:
            state, paid = await self._check(state, submitted=submitted, info=info)
            reward += paid
        return state, reward

    async def _work(self, state: State, action: str, metrics: dict[str, float]) -> tuple[State, bool, str]:
        """The state after a reply, whether it submits, and what is wrong with it."""
        session = self._opened(state)
        left_s = max(1.0, self._time_limit_s(_stage(state)) - state.used_s)
        if self._args.action_format == "keys":
            typed, note = read_keys(action)
            if typed is None:
                return replace(state, observation=note), False, note
            screen, elapsed_s = await session.type(typed.strokes, left_s=left_s)
            is_solved = action == self._solution(state)
            used_s = state.used_s + elapsed_s
            state = replace(state, observation=screen, used_s=used_s, is_solved=is_solved)
            return state, typed.is_done, ""
        command, note = parse_reply(action, self._args.action_format)
        if note:
            return replace(state, observation=note), False, note
        result = await session.run(command, timeout_s=min(self._args.command_timeout_s, left_s))
        metrics["command_succeeded"] = float(result.returncode == 0)
        state = replace(
            state,
            observation=result.render(self._args.shown_output),
            used_s=state.used_s + result.elapsed_s,
            is_solved=action == self._solution(state),
        )
        return state, submitted_text(result.output, result.returncode) is not None, ""

    async def _check(self, state: State, *, submitted: bool, info: Info) -> tuple[State, float]:
        """The state after a stage was checked, and what is paid: all at the end of the episode."""
        stage, session, checked = _stage(state), self._opened(state), state.checked
        at_limit, is_shared = state.turn >= self.max_steps, stage.verifier.box is None
        works: bool | None = None
        try:
            try:
                found = await session.check(stage, self._bounds)
            except CutOff as cut:
                works = await self._works(state.task, MAX_TIME_SHARE)
                if not works:
                    raise
                found = await cut.again()
            checked += (found,)
            gate = gate_failed(checked[-1].rewards, stage.gates)
            if not gate and state.stage + 1 < len(state.task.stages) and not at_limit:
                is_shared, stage = True, state.task.stages[state.stage + 1]
                await session.enter(stage)
                observation = render_task(stage, instructions=False, action_format=self._args.action_format)
                state = replace(state, stage=state.stage + 1, used_s=0.0, checked=checked)
                return replace(state, observation=observation), 0.0
        except (BoxBroken, NoReward, SandboxError) as error:
            is_machines = isinstance(error, SandboxError) and not isinstance(error, BoxRuined)
            is_spoiled = is_shared and not (is_machines and not await session.box.ruined())
            is_spoiled = is_spoiled or isinstance(error, CutOff)
            await session.close()
            if works is None and is_spoiled:
                works = await self._works(state.task)
            if not (is_spoiled and works):
                raise
            gate, how = "", CHECKED[stage.verifier.mode]
            why = f"everything: the policy has left what cannot be checked: {describe_error(error)}"
            nothing = {self._args.reward_key: 0.0}
            checked += (Checked(rewards=nothing, how=how, left_out=(why,), output=""),)
        await self.close()
        rewards = combined([each.rewards for each in checked], state.task.strategy)
        reward = scalar(rewards, self._args.reward_key)
        success = reward >= self._args.success_at
        info |= self._told(state, checked, rewards, gate)
        info["success"] = success
        info["metrics"] |= {
            "submitted": float(submitted),
            "stages_checked": float(len(checked)),
            "checked_separately": float(state.task.is_separate),
        }
        ended = replace(
            state,
            observation=render_end(state.task.id, reward, checked[-1].how, gate),
            checked=checked,
            success=success,
            terminated=submitted or not at_limit,
            truncated=not submitted and at_limit,
        )
        return ended, reward

    async def _works(self, task: HarborTask, time_share: float = math.inf) -> bool:
        """Whether the task is paid or not, now and on this machine, where no policy has been in its box.

        Args:
            time_share: Of each verifier's time-out, what it may take: a busy machine is no policy's doing.
        """
        try:
            found = await play(task, self._boxes, self._bounds, [], solves=task.has_solution)
        except (BoxBroken, ConfigurationError, NoReward, SandboxError):
            return False
        return all(each.time_share <= time_share for each in found)

    def _told(self, state: State, checked: Sequence[Checked], rewards: Rewards, gate: str) -> Info:
        """What people read of the check."""
        how = CHECKED[Mode.SEPARATE if state.task.is_separate else Mode.SHARED]
        left_out = [entry for each in checked for entry in each.left_out]
        details: dict[str, Any] = {"verdict": how, "parts": dict(rewards)}
        if checked[-1].output:
            details["verifier"] = checked[-1].output
        if left_out:
            details["artifacts_left_out"] = left_out
        if gate:
            details["gate"] = gate
        if len(state.task.stages) > 1:
            details["stages"] = [dict(each.rewards) for each in checked]
        return {
            "instance_id": state.task.id,
            "checked": how,
            "rewards": dict(rewards),
            "artifacts_left_out": left_out,
            "details": details,
        }

    async def oracle(self) -> str:
        """Runs the stage's `solution/solve.sh`; then submits. Raises NoSolution: there is none."""
        state = self._needed_state()
        if not state.is_solved and _stage(state).solution is None:
            raise NoSolution("the task has no solution/solve.sh, so its oracle gets no score")
        if state.is_solved:
            if self._args.action_format == "keys":
                return '{"commands": [], "task_complete": true}'
            return self._reply(SUBMIT_COMMAND)
        return self._solution(state)

    def _reply(self, command: str) -> str:
        return format_command(command, self._args.action_format)

    def _solution(self, state: State) -> str:
        return self._reply(solution_command(state.task, _stage(state), self._boxes.variables))

    def _time_limit_s(self, stage: Stage) -> float:
        return self._args.time_limit_s or stage.timeout_s or float("inf")

    def _opened(self, state: State) -> Session:
        if self._workplace is None:
            self._workplace = Session(self._boxes, state.task, _stage(state))
        return self._workplace


def _stage(state: State) -> Stage:
    return state.task.stages[state.stage]


def backend_settings(args: TerminalArguments) -> dict[str, Any]:
    """The backend's own settings. In bubblewrap the shipped tasks start from this machine's own system."""
    settings = dict(args.backend_settings or {})
    return {**HOST_IMAGES, **settings} if args.data is None and args.backend == "bubblewrap" else settings
