"""The rollout loop's interface to an environment, and one that runs in the event loop; others: `hosts.py`.

    created -> reset -> step* -> reset -> ... -> close
                 \\-> EpisodeFailed -> discard -> reset builds a fresh environment

An environment that raises, hangs or dies becomes an `EpisodeFailed` here.
"""

from __future__ import annotations

import contextlib
import json
import math
import reprlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from envsdk.base.processes.call_watch import CALLS, limit_name
from envsdk.base.processes.interrupts import is_from_the_user
from envsdk.contracts.agent_door import AgentDoor
from envsdk.contracts.env import AsyncTextEnv, EnvSpec, Info, Isolation, TextEnv
from envsdk.contracts.failures import Boundary, EnvsdkError, Failure, show_object
from envsdk.contracts.policy import EnvView
from envsdk.contracts.trajectory import Task

StepResult = tuple[str, float, bool, bool, Info]
Options = dict[str, Any]


class EpisodeFailed(Exception):
    """An episode has no outcome; carries why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvBlueprint:
    """How to build one environment; picklable."""

    spec: EnvSpec
    env_config: Mapping[str, Any] = field(default_factory=dict)
    isolation: Isolation = Isolation.INLINE
    start_timeout_s: float = 120.0
    """For `build`, and for starting a process before it."""
    reset_timeout_s: float = 60.0
    step_timeout_s: float = 30.0
    trains: bool = False
    """Episodes of the split `train` are trained on, and the environment's options say so."""

    @classmethod
    def of(
        cls, spec: EnvSpec, env_config: Mapping[str, Any], own: object = None, *, trains: bool = False
    ) -> Self:
        """Isolation and time limits are those of `own`, a section of a run's file, or else the spec's."""
        names = ("isolation", "start_timeout_s", "reset_timeout_s", "step_timeout_s")
        limits = {name: getattr(own, name, None) or getattr(spec, name) for name in names}
        limits["isolation"] = Isolation(limits["isolation"])
        return cls(spec=spec, env_config=env_config, trains=trains, **limits)

    def build(self) -> TextEnv:
        from envsdk.base.registry import make

        return make(self.spec, **self.env_config)

    def build_async(self) -> AsyncTextEnv:
        from envsdk.base.registry import make_async

        return make_async(self.spec, **self.env_config)

    def failure_of(self, error: BaseException, verb: str) -> Failure:
        """What an error in a process of its own becomes."""
        return failure_of(error, verb)

    def reset_options(self, task: Task) -> Options | None:
        """What `reset` gets of a task besides its seed."""
        if not self.spec.lists_tasks:
            return None
        told: Options = {"training": True} if self.trains and task.split == "train" else {}
        return {"task": task.index, **told}


class EnvHost(EnvView):
    """One environment, wherever it runs. Every call raises EpisodeFailed and nothing else."""

    def __init__(self, blueprint: EnvBlueprint) -> None:
        self.blueprint = blueprint
        self.task_name = ""
        """What the environment calls the task of the latest reset."""

    place: int | None = None
    """In `CALLS`, where a watcher sees the call under way; None for a process, which can be killed at a
    limit."""

    async def reset(self, seed: int, options: Options | None = None) -> tuple[str, Info]:
        arguments: Options = {"seed": seed} if options is None else {"seed": seed, "options": options}
        self.task_name = ""
        answer = reset_result(await self._call("reset", self.blueprint.reset_timeout_s, **arguments))
        self.task_name = show_object(answer[1].get("instance_id", ""), str)
        return answer

    async def step(self, action: str) -> StepResult:
        return step_result(await self._call("step", self.blueprint.step_timeout_s, action=action))

    async def play(self, door: AgentDoor) -> StepResult:
        """`AsyncTextEnv.play`: the whole episode."""
        return step_result(await self._call("play", self.blueprint.step_timeout_s, door=door))

    async def state_hash(self) -> str:
        """`TextEnv.state_hash` of the current state."""
        return text_result("state_hash", await self._call("state_hash", self.blueprint.step_timeout_s))

    async def oracle(self) -> str:
        return text_result("oracle", await self._call("oracle", self.blueprint.step_timeout_s))

    async def legal_actions(self) -> Sequence[str]:
        return actions_result(await self._call("legal_actions", self.blueprint.step_timeout_s))

    @abstractmethod
    async def _call(self, verb: str, limit_s: float, **arguments: Any) -> Any:
        """The result of a method of the environment, which is built first where there is none."""

    @abstractmethod
    def discard(self) -> None:
        """Throw the environment away without waiting for it; the next reset builds a fresh one."""

    def close(self) -> None:
        """Free everything. Idempotent."""
        self.discard()

    async def closed(self) -> None:
        """Wait until the environments that were thrown away are closed, within their limits."""


class WatchedHost(EnvHost):
    """Runs the environment in this process, where a watcher sees its calls."""

    def __init__(self, blueprint: EnvBlueprint) -> None:
        super().__init__(blueprint)
        self.watched = CALLS.open()
        self.place = self.watched.place

    def close(self) -> None:
        super().close()
        CALLS.close(self.watched)

    def _runs_here(self, *, is_inline: bool) -> None:
        self.watched.runs_on(threading.get_native_id(), is_inline=is_inline)


class InlineHost(WatchedHost):
    """Runs in the event loop: no hand-over, so microseconds per step.

    A call that does not return in time cannot be ended, only its process, from outside: see `call_watch`.
    """

    def __init__(self, blueprint: EnvBlueprint) -> None:
        super().__init__(blueprint)
        self._env: TextEnv | None = None
        self._runs_here(is_inline=True)

    async def _call(self, verb: str, limit_s: float, **arguments: Any) -> Any:
        if self._env is None:
            self._env = self._run("start", self.blueprint.start_timeout_s, self.blueprint.build)
        env = self._env
        return self._run(verb, limit_s, lambda: getattr(env, verb)(**arguments))

    def _run(self, during: str, limit_s: float, function: Callable[[], Any]) -> Any:
        self.watched.enter(during, limit_s)
        try:
            return function()
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: they would end the event loop
            raise_if_from_the_user(error)
            raise EpisodeFailed(failure_of(error, during)) from error
        finally:
            self.watched.leave()

    def discard(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            with contextlib.suppress(EpisodeFailed):
                self._run("close", self.blueprint.step_timeout_s, lambda: env.close())


def failure_of(error: BaseException, during: str) -> Failure:
    """A failure of the environment, unless the error names another boundary: the sandbox."""
    boundary = Boundary.ENVIRONMENT
    # Not isinstance, which asks the object's own `__class__`.
    if issubclass(type(error), EnvsdkError):
        boundary = type(error).boundary  # type: ignore[attr-defined]
    return Failure.from_exception(boundary, error, kind=f"{during}_raised")


def timed_out(during: str, limit_s: float) -> EpisodeFailed:
    message = f"{during} took longer than {limit_name(during)}={limit_s:g}"
    return EpisodeFailed(Failure(boundary=Boundary.ENVIRONMENT, kind=f"{during}_timeout", message=message))


def reset_result(answer: Any) -> tuple[str, Info]:
    """What `reset` returned, if it is what the contract says."""
    try:
        observation, info = answer
        if isinstance(observation, str) and isinstance(info, dict):
            plain = {**info}
            if tools := info.get("tools"):
                plain["tools"] = _functions(tools)
            if history := info.get("history"):
                plain["history"] = _messages(history)
            if roles := info.get("roles"):
                plain["roles"], plain["role"] = list(map(_text, roles)), _text(info.get("role"))
            return str.__str__(observation), plain
    except BaseException as error:  # noqa: BLE001 - boundary: environment, whose objects are looked at
        raise_if_from_the_user(error)
    expected = (
        "(observation: str, info: dict, whose tools and history are lists of JSON objects, and whose roles "
        "are a list of str, with the role whose turn it is)"
    )
    raise _breach("reset", expected, answer)


def step_result(answer: Any) -> StepResult:
    """What `step` returned as plain Python types, if it is what the contract says."""
    try:
        observation, reward, terminated, truncated, info = answer
        reward = float(reward)
        if isinstance(observation, str) and math.isfinite(reward) and isinstance(info, dict):
            return str.__str__(observation), reward, bool(terminated), bool(truncated), _plain(info)
    except BaseException as error:  # noqa: BLE001 - boundary: environment, whose objects are looked at
        raise_if_from_the_user(error)
    expected = "(observation: str, reward: a finite number, terminated, truncated, info: dict)"
    infos = (
        "info['metrics'] and info['rewards'] dicts of finite numbers, info['role'] a str and info['details'] "
        "a JSON object"
    )
    raise _breach("step", f"{expected} with {infos}", answer)


def text_result(during: str, answer: Any) -> str:
    """What `state_hash` or `oracle` returned, if it is what the contract says."""
    if issubclass(type(answer), str):
        return str.__str__(answer)
    raise _breach(during, "a str", answer)


def actions_result(answer: Any) -> Sequence[str]:
    """What `legal_actions` returned, if it is what the contract says."""
    try:
        actions = list(answer) if isinstance(answer, Sequence) and not isinstance(answer, str) else []
        if actions and all(isinstance(action, str) for action in actions):
            return [str.__str__(action) for action in actions]
    except BaseException as error:  # noqa: BLE001 - boundary: environment, whose objects are looked at
        raise_if_from_the_user(error)
    raise _breach("legal_actions", "replies that parse, as a list of str that is not empty", answer)


def raise_if_from_the_user(error: BaseException) -> None:
    if is_from_the_user(error):
        raise error


def _functions(tools: Any) -> list[dict[str, Any]]:
    """`tools` as plain JSON objects; raises what they do not allow."""
    plain = json.loads(json.dumps(tools))
    if not isinstance(plain, list) or not all(isinstance(tool, dict) for tool in plain):
        raise TypeError
    return plain


def _messages(history: Any) -> list[dict[str, Any]]:
    """`history` as plain messages; raises what is none."""
    plain = [{name: each.get(name) for name in ("role", "content")} for each in _functions(history)]
    if not all(isinstance(value, str) for each in plain for value in each.values()):
        raise TypeError
    return plain


def _plain(info: Info) -> Info:
    """With `success` and `metrics` as plain Python types, and `details` as JSON text.

    Raises where they are not what they should be.
    """
    plain = {**info, "success": bool(info.get("success", False))}
    if metrics := info.get("metrics"):
        plain["metrics"] = {str.__str__(str(name)): _finite(float(value)) for name, value in metrics.items()}
    if rewards := info.get("rewards"):
        plain["rewards"] = {_text(role): _finite(float(paid)) for role, paid in rewards.items()}
    if "role" in info:
        plain["role"] = _text(info["role"])
    if details := info.get("details"):
        if not isinstance(details, dict):
            raise TypeError
        plain["details"] = json.dumps(details, ensure_ascii=False)
    return plain


def _text(value: Any) -> str:
    if not issubclass(type(value), str):
        raise TypeError
    return str.__str__(value)


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError
    return number


def _breach(during: str, expected: str, answer: Any) -> EpisodeFailed:
    message = f"{during} must return {expected}, not {show_object(answer, _SHORT.repr)}"[:500]
    return EpisodeFailed(Failure(boundary=Boundary.ENVIRONMENT, kind=f"{during}_invalid", message=message))


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
