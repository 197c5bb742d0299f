"""`TurnEnv`: a `TextEnv` that keeps the contract, so that its author writes the rules alone."""

from __future__ import annotations

import copy
import hashlib
import string
from abc import abstractmethod
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from envsdk.contracts.env import Info, TextEnv

ActionT = TypeVar("ActionT")

NO_ANSWER = "Invalid action: no <answer> found."

PRINTABLE = frozenset(string.ascii_letters + string.digits + string.punctuation + " \n")
_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_INVALID = {"action_is_valid": 0.0}


class InvalidAction(Exception):
    """A reply is no action. `TurnEnv.parse` raises it, or `play` before it has changed anything.

        raise InvalidAction("Invalid action: not Left or Right.")

    The reply costs a turn, and the observation ends with `note`.
    """

    def __init__(self, note: str = "Invalid action.", *, metrics: Mapping[str, float] | None = None) -> None:
        """
        Args:
            note: Shown below the observation: what a reply must be.
            metrics: Kept with the turn, beside `action_is_valid`.
        """
        self.note = note
        self.metrics: Mapping[str, float] = {"action_is_valid": 0.0, **metrics} if metrics else _INVALID

    def __str__(self) -> str:
        return self.note


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What an action leads to: `TurnEnv.play` returns it. Values of NumPy's types become Python's."""

    reward: float = 0.0
    success: bool = False
    """Whether the task is solved now."""
    terminated: bool | None = None
    """Whether the rules end the episode here; with `success` when absent. The limit of turns is not among
    the rules: `TurnEnv` truncates."""
    note: str = ""
    """A line below the next observation: what came of the action."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers worth averaging, kept with the turn beside `action_is_valid`."""
    details: Mapping[str, Any] | None = None
    """A JSON object for people to read, kept with the turn."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """What the rules pay, by role, in an environment of several players. The role that played gets its share
    on top of `reward`."""

    def __post_init__(self) -> None:
        assign = object.__setattr__
        assign(self, "reward", float(self.reward))
        assign(self, "success", bool(self.success))
        assign(self, "terminated", bool(self.success if self.terminated is None else self.terminated))
        numbers = {name: float(value) for name, value in self.metrics.items()}
        assign(self, "metrics", {"action_is_valid": 1.0, **numbers})


class AnyText(Text):
    """Texts of any script. `sample()` draws from `PRINTABLE`; by default as long as a reply."""

    def __init__(self, max_length: int = 256, *, min_length: int = 0) -> None:
        super().__init__(max_length, min_length=min_length, charset=PRINTABLE)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length


class AnyTextSpaces(gymnasium.Env[str, str]):
    """Gives an environment the spaces of texts of any script."""

    max_observation_length: ClassVar[int] = 1 << 16

    @cached_property
    def observation_space(self) -> Text:  # type: ignore[override]
        return AnyText(self.max_observation_length)

    @cached_property
    def action_space(self) -> Text:  # type: ignore[override]
        """What `sample()` draws from. `step` takes any string, of any length and script."""
        return AnyText()


class TurnEnv(AnyTextSpaces, TextEnv, Generic[ActionT]):
    """A `TextEnv` of which only the rules are left to write, in four methods:

        start -> observe -> (parse -> play -> observe)* -> the end

        class Guess(TurnEnv[int]):
            max_steps = 8

            def start(self, rng, options):
                self.number = int(rng.integers(1, 11))

            def parse(self, reply):
                if not reply.strip().isdecimal():
                    raise InvalidAction("Invalid action: reply with a number.")
                return int(reply)

            def play(self, action):
                hint = "Higher." if action < self.number else "Lower."
                return TurnResult(success=action == self.number, reward=action == self.number, note=hint)

            def observe(self):
                return "Guess a number from 1 to 10."

    The type parameter is what `parse` returns and `play` takes. This class

    - counts replies, and truncates the episode after `max_steps` of them;
    - makes of a reply that `parse` refuses by `InvalidAction` a turn that changes nothing: the observation
      ends with its note, and the reward is minus `step_penalty` and `invalid_penalty`. Any other exception is
      a failure of the environment;
    - answers replies after the end: they change nothing and get no reward;
    - fills `info`: `success`, `metrics` with `action_is_valid`, `details`;
    - has spaces that hold any text.

    An environment of several players names their `roles` and has a property `role`, whose turn it is; a reply
    that does not parse leaves the turn to the same role. `observe` shows what that role may see.

    `STATE` names the attributes that hold the state. With it, `snapshot`, `restore` and `state_hash` are
    there as well. `oracle` and `legal_actions` are the author's to override, as in `TextEnv`.

    The method is `observe` and not `render`, which is Gymnasium's and draws what `render_mode` asks for.
    An environment that waits for servers or sandboxes derives from `AsyncTextEnv` instead.
    """

    max_steps: int
    """Replies before the episode is truncated. Given as an attribute of the class or to the constructor."""
    step_penalty: float = 0.0
    """Taken off the reward of every turn."""
    invalid_penalty: float = 0.0
    """Taken off the reward of a turn whose reply is no action, in addition."""
    STATE: ClassVar[tuple[str, ...]] = ()
    """Names of attributes that together are the state of the task: all that `start` and `play` change."""

    num_turns: int = 0
    """Replies played in this episode, the present one included while it is played."""
    is_over: bool = True
    """Whether the episode has ended, or none has begun."""
    _was_reset = False
    _turn_note = ""
    """The line below the observation, with the newline before it."""
    _turn_terminated = False
    """Whether the rules ended the episode, once it is over."""
    _turn_success = False
    """As of the last action."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.STATE or cls.get_state is not TurnEnv.get_state:
            for name, method in _ABILITIES_OF_A_STATE.items():
                if getattr(cls, name) is getattr(TextEnv, name):
                    setattr(cls, name, method)

    def __init__(
        self, *, max_steps: int | None = None, step_penalty: float = 0.0, invalid_penalty: float = 0.0
    ) -> None:
        """
        Args:
            max_steps: Replies before the episode is truncated, at least 1; the class's own when absent.
            step_penalty: Taken off the reward of every turn.
            invalid_penalty: Taken off the reward of a turn whose reply is no action, in addition.
        """
        limit = getattr(self, "max_steps", None) if max_steps is None else max_steps
        if limit is None:
            raise ValueError("max_steps: missing; set it as an attribute of the class, or give it here")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"max_steps: must be a whole number of at least 1, not {limit!r}")
        self.max_steps = limit
        self.step_penalty = step_penalty
        self.invalid_penalty = invalid_penalty

    @abstractmethod
    def start(self, rng: np.random.Generator, options: dict[str, Any]) -> Info | None:
        """Set up a task, drawn with `rng` alone, which is `np_random` as the seed has set it.

        `options` are those of `reset`; see `task_number`. Returns what `info` of `reset` holds (`tools`,
        `history`), or None.
        """

    @abstractmethod
    def parse(self, reply: str) -> ActionT:
        """The action that a reply names. Raises `InvalidAction` for a reply that names none.

        The reply may be any text; see `answer_in`.
        """

    @abstractmethod
    def play(self, action: ActionT) -> TurnResult:
        """Play an action. May raise `InvalidAction` for one that cannot be played now, before any change."""

    @abstractmethod
    def observe(self) -> str:
        """What the policy is shown of the present state. Changes nothing."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        # A start that fails leaves no episode behind.
        self._was_reset, self.is_over = False, True
        self.num_turns, self._turn_note = 0, ""
        self._turn_terminated = self._turn_success = False
        info = self.start(self.np_random, {} if options is None else options)
        self._was_reset, self.is_over = True, False
        info = {} if info is None else info
        if self.roles:
            info = {**info, "roles": list(self.roles), "role": self.role}
        return self._observation(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self.is_over:
            return self._late()
        self.num_turns += 1
        details, played, rewards = None, self.role if self.roles else "", dict[str, float]()
        try:
            result = self.play(self.parse(action))
        except InvalidAction as invalid:
            self._turn_note = f"\n{invalid.note}"
            reward = 0.0 - self.step_penalty - self.invalid_penalty
            terminated = False
            metrics = {**invalid.metrics}
        else:
            self._turn_note = f"\n{result.note}" if result.note else ""
            rewards = {role: float(paid) for role, paid in result.rewards.items()}
            reward = result.reward + rewards.get(played, 0.0) - self.step_penalty
            terminated = result.terminated or False
            self._turn_success = result.success
            metrics = {**result.metrics}
            details = result.details
        truncated = not terminated and self.num_turns >= self.max_steps
        if terminated or truncated:
            self.is_over, self._turn_terminated = True, terminated
        info: Info = {"success": self._turn_success, "metrics": metrics}
        if self.roles:
            info |= {"role": self.role, "rewards": rewards}
        if details is not None:
            info["details"] = details
        text = self.observe()
        if self._turn_note:
            text = text + self._turn_note if text else self._turn_note[1:]
        return text, reward, terminated, truncated, info

    def get_state(self) -> Any:
        """The state of the task, picklable and independent of later actions: by default, of `STATE`.

        An environment that keeps its state in another form overrides this and `set_state` instead.
        """
        return copy.deepcopy(tuple(getattr(self, name) for name in self.STATE))

    def set_state(self, state: Any) -> None:
        """Go on from what `get_state` of an instance with the same configuration returned."""
        for name, value in zip(self.STATE, copy.deepcopy(state), strict=True):
            setattr(self, name, value)

    @property
    def role(self) -> str:
        """Whose turn it is. To override where there are `roles`."""
        raise NotImplementedError(f"{type(self).__name__} names `roles` and has no property `role`")

    @staticmethod
    def answer_in(reply: str) -> str:
        """What stands in the last complete `<answer>` of `reply`, stripped. Raises `InvalidAction`."""
        answer = tagged_answer(reply)
        if answer is None:
            raise InvalidAction(NO_ANSWER)
        return answer

    def task_number(self, options: Mapping[str, Any], num_tasks: int) -> int:
        """For `start` of an environment whose tasks are a list: which one, from 0.

        It is `options["task"]`, modulo their number, as specs with `lists_tasks` are asked; without one it is
        drawn.
        """
        number = options.get("task")
        if number is None:
            return int(self.np_random.integers(num_tasks))
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"task: must be the number of a task, not {number!r}")
        return number % num_tasks

    def _observation(self) -> str:
        text = self.observe()
        return (text + self._turn_note if text else self._turn_note[1:]) if self._turn_note else text

    def _late(self) -> tuple[str, float, bool, bool, Info]:
        if not self._was_reset:
            raise ResetNeeded(f"{type(self).__name__.removesuffix('Env')}: call reset() before step()")
        info: Info = {"success": self._turn_success, "metrics": {}}
        if self.roles:
            info |= {"role": self.role, "rewards": {}}
        return self._observation(), 0.0, self._turn_terminated, not self._turn_terminated, info


def tagged_answer(reply: str) -> str | None:
    """What stands in the last complete `<answer>` of any case, stripped; None without one."""
    # Lower-casing may change a text's length: only ASCII is looked for, so only ASCII is lowered.
    found = last_between(reply.translate(_ASCII_LOWER), "<answer>", "</answer>")
    return None if found is None else reply[found].strip()


def last_between(text: str, opening: str, closing: str) -> slice | None:
    """Where the content of the last complete `opening ... closing` stands in `text`; None without one.

    Takes time linear in the text, whatever it holds.
    """
    start = text.rfind(opening, 0, max(text.rfind(closing), 0))
    if start < 0:
        return None
    start += len(opening)
    return slice(start, text.index(closing, start))


def _snapshot(env: TurnEnv[Any]) -> Any:
    """The state, where in the episode it is, and that of `np_random`."""
    if not env._was_reset:
        raise ResetNeeded(f"{type(env).__name__.removesuffix('Env')}: call reset() before snapshot()")
    course = env.num_turns, env._turn_note, env.is_over, env._turn_terminated, env._turn_success
    return env.get_state(), course, env.np_random.bit_generator.state


def _restore(env: TurnEnv[Any], snapshot: Any) -> str:
    """Go back to a snapshot of any instance with the same configuration; returns its observation."""
    state, course, env.np_random.bit_generator.state = snapshot
    env.set_state(state)
    env.num_turns, env._turn_note, env.is_over, env._turn_terminated, env._turn_success = course
    env._was_reset = True
    return env._observation()


def _state_hash(env: TurnEnv[Any]) -> str:
    """Digest of `get_state()`. Turns left and notes do not count."""
    return hashlib.blake2b(repr(_canonical(env.get_state())).encode(), digest_size=16).hexdigest()


_ABILITIES_OF_A_STATE: Mapping[str, Any] = {
    "snapshot": _snapshot,
    "restore": _restore,
    "state_hash": _state_hash,
}


def _canonical(value: Any) -> Any:
    """Something whose `repr` is the same for equal values."""
    if isinstance(value, Mapping):
        return "mapping", sorted((repr(_canonical(key)), _canonical(value[key])) for key in value)
    if isinstance(value, Set):
        return "set", sorted(repr(_canonical(each)) for each in value)
    if isinstance(value, list | tuple):
        return [_canonical(each) for each in value]
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.shape, [_canonical(each) for each in value.ravel().tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value).__qualname__
        return kind, [_canonical(getattr(value, each.name)) for each in fields(value) if each.compare]
    return value
