"""Playing an environment for a check: turns, scripts, and a watched course.

A script is what a policy might do: a string is replied as it is, a number picks one of the legal
actions at that moment (an environment without `legal_actions` is sent the number itself).

Whatever an environment raises or returns against its contract becomes a `Fault` here, an
AssertionError that says which call it was. A call that does not return raises `NeverReturned` instead.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymnasium.utils.env_checker import data_equivalence

from envsdk.contracts.env import TextEnv
from envsdk.contracts.failures import describe_error
from envsdk.testing.time_limits import NeverReturned, call

Factory = Callable[[], TextEnv]
Script = Sequence[int | str]

GIBBERISH = "zq 7; qz"
"""A reply that no environment should understand."""


class Fault(AssertionError):
    """A call of the environment raised, or returned what its contract does not allow."""

    def __init__(self, method: str, message: str) -> None:
        super().__init__(message)
        self.method = method


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one `reset` or `step` returned, unchecked."""

    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any

    @property
    def is_last(self) -> bool:
        return bool(self.terminated) or bool(self.truncated)

    @property
    def metrics(self) -> dict[str, Any]:
        metrics = self.info.get("metrics") if isinstance(self.info, dict) else None
        return metrics if isinstance(metrics, dict) else {}

    @property
    def success(self) -> bool:
        return isinstance(self.info, dict) and bool(self.info.get("success"))

    @property
    def was_invalid(self) -> bool:
        """The environment says that the reply did not parse."""
        return bool(self.metrics.get("action_is_valid", 1.0) == 0.0)


def ask(env: TextEnv, method: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the environment.

    Raises:
        Fault: Whatever it raised.
        NeverReturned: It did not return within the limits of `ending_calls`.
    """

    def shown_call() -> str:
        given = ", ".join([*map(short, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        return f"{method}({given})"

    try:
        with call(method, shown_call):
            return getattr(env, method)(*args, **kwargs)
    except NeverReturned:
        raise
    except Exception as error:
        raise Fault(method, f"{shown_call()} raised {describe_error(error)}") from error


def short(value: Any, limit: int = 200) -> str:
    """`repr`, cut to a length that a report can hold."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def build(make: Factory) -> TextEnv:
    try:
        with call("__init__", lambda: "building it"):
            return make()
    except NeverReturned:
        raise
    except Exception as error:
        raise Fault("__init__", f"building it raised {describe_error(error)}") from error


def reset(env: TextEnv, seed: int | None) -> Turn:
    answer = ask(env, "reset", seed=seed)
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise Fault("reset", f"reset() returned {short(answer)}, not (observation, info)")
    observation, info = answer
    return Turn(observation=observation, reward=0.0, terminated=False, truncated=False, info=info)


def step(env: TextEnv, reply: str) -> Turn:
    answer = ask(env, "step", reply)
    if not (isinstance(answer, tuple) and len(answer) == 5):
        expected = "(observation, reward, terminated, truncated, info)"
        raise Fault("step", f"step() returned {short(answer)}, not {expected}")
    observation, reward, terminated, truncated, info = answer
    return Turn(observation=observation, reward=reward, terminated=terminated, truncated=truncated, info=info)


def choose_reply(env: TextEnv, item: int | str) -> str:
    if isinstance(item, str):
        return item
    if "legal_actions" not in env.abilities():
        return str(item)
    legal = ask(env, "legal_actions")
    if not legal:
        raise Fault("legal_actions", "legal_actions() is empty before the end of the episode")
    reply: str = legal[item % len(legal)]
    return reply


def play(env: TextEnv, script: Script) -> list[Turn]:
    """Follow `script` from where `env` is, to its end or that of the episode."""
    turns: list[Turn] = []
    for item in script:
        turns.append(step(env, choose_reply(env, item)))
        if turns[-1].is_last:
            break
    return turns


def play_from(env: TextEnv, seed: int | None, script: Script) -> list[Turn]:
    first = reset(env, seed)
    return [first, *play(env, script)]


def play_asking(env: TextEnv, seed: int, script: Script, *methods: str) -> tuple[list[Turn], list[str]]:
    """`play_from` with these methods called before each reply; the replies too, as they were chosen."""
    turns, replies = [reset(env, seed)], list[str]()
    for item in script:
        if turns[-1].is_last:
            break
        replies.append(choose_reply(env, item))
        for method in methods:
            ask(env, method)
        turns.append(step(env, replies[-1]))
    return turns, replies


def play_to_the_end(env: TextEnv, seed: int, script: Script, max_turns: int) -> list[Turn]:
    """Follow `script`, then the oracle (or the first legal actions) until the episode is over.

    An episode that does not end within `max_turns` more turns is left where it is.
    """
    turns = play_from(env, seed, script)
    abilities = env.abilities()
    for index in range(max_turns):
        if turns[-1].is_last:
            break
        reply = ask(env, "oracle") if "oracle" in abilities else choose_reply(env, index)
        turns.append(step(env, reply))
    return turns


def assert_same(turns: Sequence[Turn], others: Sequence[Turn], why: str) -> None:
    for index, (turn, other) in enumerate(zip(turns, others, strict=False)):
        for name in ("observation", "reward", "terminated", "truncated", "info"):
            one, two = getattr(turn, name), getattr(other, name)
            assert same(one, two), f"{why}: turn {index} has {name} {short(one)} against {short(two)}"
    assert len(turns) == len(others), f"{why}: {len(turns)} turns against {len(others)}"


def same(one: Any, two: Any) -> bool:
    """Equal in type and value, NaN to NaN included."""
    if isinstance(one, float) and isinstance(two, float) and one != one:
        return two != two
    return bool(data_equivalence(one, two, exact=True))


@dataclass(slots=True, kw_only=True)
class Course:
    """One episode as an onlooker sees it, with what the environment said between the turns."""

    env: TextEnv
    turns: list[Turn] = field(default_factory=list)
    """The first is what `reset` returned."""
    replies: list[str] = field(default_factory=list)
    """One per turn after the first."""
    infos_then: list[Any] = field(default_factory=list)
    """Copies of the turns' infos, made when they were returned."""
    legal: list[tuple[Any, Any]] = field(default_factory=list)
    """What `legal_actions` returned before each reply, asked twice; empty when not declared."""
    hashes: list[Any] = field(default_factory=list)
    """`state_hash` after each turn; empty when not declared."""
    fault: Fault | None = None
    """What cut the course short."""
    slowest_reset_s: float = 0.0
    slowest_step_s: float = 0.0

    def steps(self) -> list[tuple[int, Turn]]:
        return list(enumerate(self.turns))[1:]


def watch(make: Factory, seed: int, script: Script) -> Course:
    """Play a script and keep all that was seen; a fault ends the course and is kept in it."""
    course = Course(env=build(make))
    try:
        _watch(course, seed, script)
    except Fault as fault:
        course.fault = fault
    course.env.close()
    return course


def _watch(course: Course, seed: int, script: Script) -> None:
    env = course.env
    began = time.perf_counter()
    _keep(course, reset(env, seed))
    course.slowest_reset_s = time.perf_counter() - began
    for item in script:
        if "legal_actions" in env.abilities():
            first = ask(env, "legal_actions")
            # A copy: the same list may be handed out twice and changed between.
            course.legal.append((_listed(first), _listed(ask(env, "legal_actions"))))
        reply = choose_reply(env, item)
        course.replies.append(reply)
        began = time.perf_counter()
        turn = step(env, reply)
        course.slowest_step_s = max(course.slowest_step_s, time.perf_counter() - began)
        _keep(course, turn)
        if turn.is_last:
            return


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _keep(course: Course, turn: Turn) -> None:
    course.turns.append(turn)
    course.infos_then.append(copied(turn.info))
    if "state_hash" in course.env.abilities():
        course.hashes.append(ask(course.env, "state_hash"))


def copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - anything may stand in an info; another check wants it picklable
        return value
