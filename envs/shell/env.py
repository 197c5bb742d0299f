"""What environments share in which replies are shell commands in a sandbox, on the tasks of a list.

reset (no sandbox yet) -> command -> ... -> submission -> judged -> over
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from gymnasium.error import ResetNeeded
from pydantic import Field, field_validator

from envsdk.contracts.env import AsyncTextEnv, Info
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.turn_env import AnyTextSpaces
from envsdk.envs.arguments import EnvArguments
from envsdk.envs.shell.commands import SHOWN_OUTPUT
from envsdk.rewards.sandbox import Limits

SplitName = Literal["auto", "train", "held_out", "all"]
"""`auto`: those to train on of the shipped tasks, and all that a user names."""
_MISSING_NAMED = 5

TaskT = TypeVar("TaskT")


class ShellArguments(EnvArguments):
    """The keywords that all of them take."""

    split: SplitName = "auto"
    """`train`, `held_out`, `all`, or `auto`: `train` of the shipped tasks, and all of `data`."""
    instance_ids: Sequence[str] | None = None
    """These tasks only."""
    num_tasks: int | None = Field(None, ge=1)
    """The first so many only."""
    max_steps: int = Field(50, ge=1)
    """Replies before the episode is truncated."""
    shown_output: int = Field(SHOWN_OUTPUT, ge=2)
    """Characters from which on an output is cut; half as many are shown of each end."""
    instructions: bool = True
    """The first observation says how to work and how to submit."""
    invalid_penalty: float = 0.0
    """Taken off the reward of a reply that runs nothing."""
    backend: str = "bubblewrap"
    """What the sandboxes run on: an entry point of `envsdk.sandboxes`."""
    backend_settings: Mapping[str, Any] | None = None
    """Its own."""
    limits: Mapping[str, int] | None = None
    """Limits of each sandbox, where they differ from what else they would be: `memory_mb`, `disk_mb` ..."""
    render_mode: str | None = None
    """None, or `ansi`: `render()` returns the last observation."""

    @field_validator("limits")
    @classmethod
    def _known(cls, limits: Mapping[str, int] | None) -> Mapping[str, int] | None:
        known = [field.name for field in fields(Limits)]
        if unknown := [name for name in limits or {} if name not in known]:
            raise ValueError(f"{unknown[0]!r} is none; known are {', '.join(known)}")
        return limits

    @property
    def ids(self) -> tuple[str, ...] | None:
        return tuple(self.instance_ids) if self.instance_ids else None


@dataclass(frozen=True, slots=True)
class TaskList(Generic[TaskT]):
    """Tasks by number; shared by all environments of a process."""

    tasks: tuple[TaskT, ...]

    def __len__(self) -> int:
        return len(self.tasks)

    def number(self, draw: int, options: Mapping[str, Any] | None) -> int:
        """The number of a `reset`'s task: `options["task"]`, or `draw`."""
        number = (options or {}).get("task", draw)
        if not isinstance(number, int):
            raise ValueError(f"task: must be the number of a task, not {number!r}")
        return number

    def at(self, number: int) -> TaskT:
        """Number `number`, modulo how many there are."""
        return self.tasks[number % len(self.tasks)]


def chosen(
    tasks: Mapping[str, TaskT],
    instance_ids: Sequence[str] | None,
    source: str,
    refused: Mapping[str, str] | None = None,
) -> tuple[TaskT, ...]:
    """The tasks of these names, in their order; all where none are given.

    Raises ConfigurationError: one is not there, with why where `refused` says it; or there are none at all.
    """
    names = tasks if instance_ids is None else instance_ids
    if missing := [name for name in names if name not in tasks]:
        more = " ..." if len(missing) > _MISSING_NAMED else ""
        why = "".join(f"\n  {name}: {(refused or {})[name]}" for name in missing if name in (refused or {}))
        there = f", for example {next(iter(tasks))}" if tasks else ""
        raise ConfigurationError(
            f"instance_ids: {source} has no {', '.join(missing[:_MISSING_NAMED])}{more}"
            f"{why or f'; there are {len(tasks)}{there}'}"
        )
    if not names:
        raise ConfigurationError(f"{source}: there is no task; try split=all")
    return tuple(tasks[name] for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellState:
    """Where an episode is, apart from the files of its sandbox."""

    observation: str
    turn: int = 0
    used_s: float = 0.0
    """Time that commands have taken."""
    success: bool = False
    terminated: bool = False
    truncated: bool = False

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class Workplace(Protocol):
    """The sandbox of an episode."""

    async def close(self) -> None:
        """Remove it. Idempotent."""
        ...


StateT = TypeVar("StateT", bound=ShellState)
WorkplaceT = TypeVar("WorkplaceT", bound=Workplace)


class ShellEnv(AnyTextSpaces, AsyncTextEnv, Generic[StateT, WorkplaceT]):
    """Keeps the state and the sandbox of an episode. `_reply` writes a command as its replies are written."""

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (gymnasium declares it so)
    max_observation_length = 2**30
    LOOKS: ClassVar[Sequence[str]]
    """Commands that change nothing, and one that submits: the `legal_actions`."""

    _state: StateT | None = None
    _workplace: WorkplaceT | None = None

    @abstractmethod
    def _reply(self, command: str) -> str:
        """The reply that runs a command."""

    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        state = self._needed_state()
        info: Info = {"success": state.success, "metrics": {}}
        reward = 0.0
        if not state.ended:
            state, reward = await self._play_on(state, action, info)
            self._state = state
        return state.observation, 0.0 + reward, state.terminated, state.truncated, info

    @abstractmethod
    async def _play_on(self, state: StateT, action: str, info: Info) -> tuple[StateT, float]:
        """The state after a reply, and what is paid for it; fills `info`."""

    async def close(self) -> None:  # type: ignore[override]
        """Remove the sandbox. Idempotent."""
        workplace, self._workplace = self._workplace, None
        if workplace is not None:
            await workplace.close()

    def render(self) -> str | None:
        return self._state.observation if self.render_mode == "ansi" and self._state is not None else None

    async def legal_actions(self) -> Sequence[str]:
        """A few commands that look around, and the one that submits."""
        return () if self._needed_state().ended else tuple(map(self._reply, self.LOOKS))

    def _needed_state(self) -> StateT:
        if self._state is None:
            raise ResetNeeded(f"{type(self).__name__}: call reset() first")
        return self._state
