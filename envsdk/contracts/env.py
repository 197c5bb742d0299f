"""The environment contract: `TextEnv`, `AsyncTextEnv`, and the `EnvSpec` that registers one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import gymnasium
from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory

from envsdk.contracts.agent_door import AgentDoor

Observation = str
Info = dict[str, Any]


class TextEnv(gymnasium.Env[str, str]):
    """A Gymnasium environment whose observations and actions are text.

        reset(seed) -> step(action) -> ... -> terminated or truncated -> reset(seed) -> ... -> close()

    The action is the policy's whole reply; parsing it is the environment's business. A reply that
    does not parse is a legal action: it costs a turn, changes nothing else, and the observation
    says why. `step` never raises for any string.

    All randomness comes from the seed of `reset`; no global generator is touched.

    `info` of `step` may hold `success: bool` (the task is solved) and `metrics: dict[str, float]`
    (numbers worth averaging, such as `action_is_valid`), and `details`: a JSON object for people to read
    (a verdict and its reasons), which is kept with the turn.

    `info` of `reset` may hold `tools`: functions that a reply may call, as OpenAI's protocol describes
    them. A model's chat template gets them with the first prompt. It may also hold `history`: messages
    (`role`, `content`) that stand before the first observation in the chat, such as worked examples; and
    `instance_id`, the task's name, which is kept with the episode.

    An environment of several players names their `roles`, the same ones in the same order for every task, and
    repeats them in `info["roles"]` of `reset`. `info["role"]` of `reset` and `step` is the role whose turn it
    is: the observation is for that role alone. `info["rewards"]` of `step` is what the rules pay in that
    step, by role; one that is left out gets 0. `reward` is what the role that replied gets, less penalties.

    The optional abilities below raise NotImplementedError unless overridden; `abilities()` tells
    which are, and `envsdk.testing` tests each one that is.
    """

    roles: Sequence[str] = ()
    """Names of the players; empty where there is one."""

    @abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start a task. The same seed gives the same task and the same course under the same actions.

        Implementations first call `super().reset(seed=seed)`, which seeds `self.np_random`.
        """
        return super().reset(seed=seed, options=options)

    @abstractmethod
    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Play one reply: `(observation, reward, terminated, truncated, info)`."""

    def snapshot(self) -> Any:
        """The whole state, picklable, independent of later steps."""
        raise NotImplementedError(f"{type(self).__name__} has no `snapshot`")

    def restore(self, snapshot: Any) -> str:
        """Go back to a snapshot of any instance with the same configuration; returns its observation."""
        raise NotImplementedError(f"{type(self).__name__} has no `restore`")

    def oracle(self) -> str:
        """A reply that makes progress from the current state; following it solves the task."""
        raise NotImplementedError(f"{type(self).__name__} has no `oracle`")

    def legal_actions(self) -> Sequence[str]:
        """Replies that parse now, in a fixed order; never empty before the end of the episode."""
        raise NotImplementedError(f"{type(self).__name__} has no `legal_actions`")

    def state_hash(self) -> str:
        """Equal exactly when the states are the same to a player."""
        raise NotImplementedError(f"{type(self).__name__} has no `state_hash`")

    @classmethod
    def abilities(cls) -> frozenset[str]:
        """Names of the optional abilities this class overrides."""
        return _overridden(cls, TextEnv)


class AsyncTextEnv(gymnasium.Env[str, str]):
    """A `TextEnv` whose calls are coroutines, for environments that wait for sandboxes, servers or tools.

        await reset(seed) -> await step(action) -> ... -> terminated or truncated -> ... -> await close()

    The contract is that of `TextEnv`. With `Isolation.ASYNC` the worker awaits the calls on its own event
    loop, so hundreds of episodes wait at the same time without a thread for each:

    - Calls of one environment come one at a time, from tasks that may differ, on one event loop.
    - The constructor runs on a thread without an event loop; what needs a loop is made in `reset`.
    - A call past its limit is cancelled, and its environment is closed. Code that computes for long, or
      blocks in any other way, belongs into `asyncio.to_thread`: it holds up every episode of the worker.
    - `close` is awaited before the loop ends, within `step_timeout_s`.

    `envsdk.as_sync` makes a `TextEnv` of it, as `envsdk.make` and `gymnasium.make` do.
    """

    roles: Sequence[str] = ()
    """As of `TextEnv`."""
    task_name: str = ""
    """For a `reset` that may fail once it knows its task: the `instance_id` of the present one."""

    @abstractmethod
    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        """As `TextEnv.reset`. Implementations first call `await super().reset(seed=seed)`."""
        return super().reset(seed=seed, options=options)

    @abstractmethod
    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        """As `TextEnv.step`."""

    async def play(self, door: AgentDoor) -> tuple[str, float, bool, bool, Info]:
        """Play the episode by a program inside the environment, which asks the policy through `door`.

        Called once, after `reset`, in place of all steps; returns what the last step would. Where the program
        failed, `info` has `agent_error`, with why; `agent_broken` is true where the episode has no outcome.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `play`")

    async def close(self) -> None:  # type: ignore[override]
        """Free everything. Idempotent."""

    async def snapshot(self) -> Any:
        """As `TextEnv.snapshot`."""
        raise NotImplementedError(f"{type(self).__name__} has no `snapshot`")

    async def restore(self, snapshot: Any) -> str:
        """As `TextEnv.restore`."""
        raise NotImplementedError(f"{type(self).__name__} has no `restore`")

    async def oracle(self) -> str:
        """As `TextEnv.oracle`."""
        raise NotImplementedError(f"{type(self).__name__} has no `oracle`")

    async def legal_actions(self) -> Sequence[str]:
        """As `TextEnv.legal_actions`."""
        raise NotImplementedError(f"{type(self).__name__} has no `legal_actions`")

    async def state_hash(self) -> str:
        """As `TextEnv.state_hash`."""
        raise NotImplementedError(f"{type(self).__name__} has no `state_hash`")

    @classmethod
    def abilities(cls) -> frozenset[str]:
        """Names of the optional abilities this class overrides."""
        return _overridden(cls, AsyncTextEnv)


AnyTextEnv = TextEnv | AsyncTextEnv


def _overridden(cls: type, contract: type) -> frozenset[str]:
    names = ("snapshot", "restore", "oracle", "legal_actions", "state_hash")
    return frozenset(name for name in names if getattr(cls, name) is not getattr(contract, name))


@create_shared_memory.register(Text)
def _refuse_shared_text(space: Text, n: int = 1, ctx: object = None) -> None:
    """Gymnasium 1.4 reads texts from shared memory once, before any is written: all would be noise."""
    raise gymnasium.error.CustomSpaceError(
        "texts cannot be read from shared memory: AsyncVectorEnv(..., shared_memory=False)"
    )


class Isolation(StrEnum):
    """Where an environment's `reset` and `step` run."""

    INLINE = "inline"
    """In the worker's event loop: for environments whose step takes microseconds."""
    THREAD = "thread"
    """On a thread: for environments that wait (sockets, files)."""
    ASYNC = "async"
    """Awaited in the worker's event loop: for an `AsyncTextEnv`."""
    PROCESS = "process"
    """In a process of its own, which is killed at a deadline: for those that compute, leak or crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """How an environment is found, built and described. Registered under `envsdk.envs`."""

    id: str
    """`namespace/Name-vN`."""
    entry_point: str | Callable[..., AnyTextEnv]
    """`package.module:Class`, or the class itself."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the constructor; a tag's `env_config` overrides them."""
    max_steps: int | None = None
    """Turns before the episode is truncated, for environments that have no `max_steps` of their own."""
    isolation: Isolation = Isolation.INLINE
    lists_tasks: bool = False
    """Its tasks are a list: `reset` takes `options={"task": number}`, counted modulo the length, and episodes
    go through it in order, so that none is left out. Otherwise the seed alone decides. An attribute
    `num_tasks` of the environment says how many they are."""
    start_timeout_s: float = 120.0
    """Limit for importing and constructing the environment, in seconds."""
    reset_timeout_s: float = 60.0
    """Limit for `reset`, in seconds, once the environment is there."""
    step_timeout_s: float = 30.0
    """Limit for every other call, in seconds."""
    description: str = ""
    """One line for `envsdk envs`."""
    action_format: str = ""
    """For the policy's prompt: what a reply must look like."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Modules that it cannot play without and that its package may lack: the command that installs each."""
    text_pieces: tuple[str, ...] = ()
    """Regular expressions (Oniguruma's) of texts that recur in observations: each match is a single token of
    the tiny policy's tokenizer."""
    local_arguments: tuple[str, ...] = ()
    """Arguments of the constructor that change no episode, such as numbers of processes: programs of one job
    may give others."""
    notes: str = ""
    """`package.module:function`, which makes sentences of the constructor's keywords. They are said before a
    run trains with these, and by `--explain`."""
    program_argument: str = ""
    """Argument of the constructor that has a program play inside the environment: see `AsyncTextEnv.play`."""
    lacks: str = ""
    """`package.module:function`, which says from the constructor's keywords what is missing on this machine,
    and how to get it; empty where nothing is."""
    prompt: str | None = ""
    """`package.module:function`, which makes the policy's system prompt from the constructor's keywords: for
    environments whose task they decide. Without it the prompt is `description` and `action_format`. With None
    there is no system prompt: the first observation says everything."""
