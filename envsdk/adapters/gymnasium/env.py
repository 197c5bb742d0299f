"""`GymnasiumEnv`: a Gymnasium environment with text in and out."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from envsdk.adapters.gymnasium.spaces import (
    MARKS,
    ActionParser,
    action_names,
    check_labels,
    check_marks,
    describe,
    in_words,
    parser_for,
    without_colors,
)
from envsdk.adapters.hosted import Answer, ReplayedEnv
from envsdk.adapters.text import NO_ANSWER, REPLY_FORMATS, ReplyFormat, tagged, tagged_answer
from envsdk.base import registry
from envsdk.base.plugins import load_function
from envsdk.contracts.env import TextEnv
from envsdk.contracts.failures import ConfigurationError

Renderer = Callable[[gymnasium.Env[Any, Any], Any], object]
"""What a policy is shown, from the environment and its last observation."""

Success = Literal["rewarded", "terminated", "truncated"]

DEFAULT_MAX_STEPS = 100


def make_gymnasium_env(
    *,
    id: str,
    kwargs: Mapping[str, Any] | None = None,
    render: str | None = None,
    actions: Sequence[str] | None = None,
    parse: str | None = None,
    reply: ReplyFormat | None = None,
    success: Success | float | None = None,
    max_steps: int | None = None,
    invalid_penalty: float = 0.0,
    labels: Sequence[str] | None = None,
    precision: int = 3,
    marks: Mapping[str, str] | None = None,
    metrics: Sequence[str] = (),
) -> GymnasiumEnv:
    """The Gymnasium environment `id` as a text environment, from plain values such as a YAML file has.

    Args:
        id: As for `gymnasium.make`; `module:Id-v1` imports the module that registers it.
        kwargs: Arguments of `gymnasium.make`.
        render: What is shown: `ansi`, the rendering for terminals; `observation`, the observation as text;
            or `package.module:function`, called with the environment and the observation. By default `ansi`
            where there is one.
        actions: Names of the actions of a discrete space, in their order; their numbers by default.
        parse: `package.module:function` that takes an answer and returns an action, or raises ValueError.
        reply: What of a reply is the answer: `tag`, the last `<answer>` (or a bare name of an action), or
            `whole`. By default `whole` where actions are text.
        success: When a task counts as solved: `rewarded`, it terminated with a reward above zero in the last
            turn; `terminated`; `truncated`, it lasted to the limit of turns; or a number that the return
            must reach. By default what the environment's own `info` says under `success` or `is_success`;
            else it terminated with a reward above zero that no turn before had, or the return reached the
            `reward_threshold` of the environment's spec, where it has one.
        max_steps: Replies before the episode is truncated; by default the environment's own limit, or 100.
        invalid_penalty: Taken off the reward of a turn whose reply does not parse.
        labels: Names of a discrete observation's values, or of the parts of a vector or a tuple.
        precision: Digits shown of a number that is not whole.
        marks: What stands for colors, by style; see `without_colors`.
        metrics: Numbers of the environment's own `info` to keep as metrics.

    Raises:
        ValueError: There is no such environment, or a value does not fit it.
    """
    if reply is not None and reply not in REPLY_FORMATS:
        raise ValueError(f"reply: must be one of {', '.join(REPLY_FORMATS)}, not {reply!r}")
    env = _made(id, dict(kwargs or {}), render)
    try:
        show = _renderer(env, render, labels or (), precision, {**MARKS, **(marks or {})})
        reads_whole = _reads_whole(env, reply)
        read = _imported("parse", parse) if parse else _parser(env, actions)
        return _kind(env, has_parser=parse is not None)(
            env,
            render=show,
            parse=read,
            actions=actions,
            reads_whole=reads_whole,
            success=success,
            max_steps=max_steps if max_steps is not None else _own_limit(id, env),
            invalid_penalty=invalid_penalty,
            metrics=metrics,
        )
    except BaseException:
        env.close()
        raise


def gymnasium_prompt(
    *,
    id: str,
    kwargs: Mapping[str, Any] | None = None,
    render: str | None = None,
    actions: Sequence[str] | None = None,
    parse: str | None = None,
    reply: ReplyFormat | None = None,
    labels: Sequence[str] | None = None,
    marks: Mapping[str, str] | None = None,
    **_: Any,
) -> str:
    """The system prompt for the environment that `make_gymnasium_env` makes of these arguments.

    An environment of ours behind Gymnasium's interface keeps its own prompt. Raises ValueError as there.
    """
    env = _made(id, dict(kwargs or {}), render)
    try:
        if isinstance(env.unwrapped, TextEnv):
            return registry.system_prompt(registry.spec(id.rpartition(":")[2]), kwargs or {})
        if isinstance(env.action_space, spaces.Discrete) and actions is not None:
            actions = action_names(env.action_space, actions)
        return describe(
            env,
            names=actions,
            marks={**MARKS, **(marks or {})},
            reads_whole=_reads_whole(env, reply),
            shows_values=env.render_mode != "ansi" and render in (None, "observation") and not labels,
            parse_doc=inspect.cleandoc(_imported("parse", parse).__doc__ or "") if parse else None,
        )
    finally:
        env.close()


class GymnasiumEnv(ReplayedEnv):
    """Text around a Gymnasium environment: `render` makes the observation, `parse` reads the action.

        GymnasiumEnv(gymnasium.make("CliffWalking-v1", render_mode="ansi"), render=..., parse=...)

    A reply that does not parse is not passed on. Turns are counted here, so that such replies count as well.
    Seeds are passed on: `reset(seed=7)` is the task of `reset(seed=7)` of the environment inside.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        render: Renderer,
        parse: ActionParser | None = None,
        actions: Sequence[str] | None = None,
        reads_whole: bool = False,
        success: Success | float | None = None,
        max_steps: int = DEFAULT_MAX_STEPS,
        invalid_penalty: float = 0.0,
        metrics: Sequence[str] = (),
    ) -> None:
        """
        Args:
            env: Is owned: `close` closes it.
            render: Called after each action that parsed.
            parse: By default what fits the action space, with the names `actions` if it is discrete.
            reads_whole: The entire reply is the answer; otherwise the last `<answer>` of it.

        The others are those of `make_gymnasium_env`.
        """
        super().__init__(max_steps=max_steps, invalid_penalty=invalid_penalty)
        is_number = isinstance(success, int | float) and not isinstance(success, bool)
        if success is not None and success not in get_args(Success) and not is_number:
            raise ValueError(
                f"success: must be one of {', '.join(get_args(Success))}, or a number, not {success!r}"
            )
        self._env = env
        self._render = render
        self._parse = parse if parse is not None else parser_for(env.action_space, actions)
        self._reads_whole = reads_whole
        self._is_solved = success
        self._kept = tuple(metrics)
        self._rewards: list[float] = []
        self._inner: Any = None
        """The last observation of the environment inside."""

    def wrap(self, wrapper: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]) -> None:
        """Put a wrapper around the environment inside, to see what goes in and out. Before a reset."""
        self._env = wrapper(self._env)

    def close(self) -> None:
        self._env.close()

    def state_hash(self) -> str:
        """The hash of a text environment inside; of any other, that of its last observation."""
        inside = self._env.unwrapped
        if isinstance(inside, TextEnv) and "state_hash" in inside.abilities():
            return inside.state_hash()
        text = in_words(self._env.observation_space, self._inner, precision=17)
        return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()

    def _start(self, seed: int) -> object:
        self._inner, _ = self._env.reset(seed=seed)
        self._rewards = []
        return self._render(self._env, self._inner)

    def _answer(self, reply: str) -> Answer:
        answer = reply if self._reads_whole else tagged_answer(reply)
        try:
            action = self._parse(reply.strip() if answer is None else answer)
        except ValueError as error:
            return Answer(note=NO_ANSWER if answer is None else f"Invalid action: {error}")
        self._inner, given, terminated, truncated, info = self._env.step(action)
        reward = float(given)
        self._rewards.append(reward)
        is_last = terminated or truncated or self._turn >= self.max_steps
        return Answer(
            observation=self._render(self._env, self._inner),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            success=is_last and self._solved(reward, bool(terminated), info),
            metrics={
                "action_is_valid": 1.0,
                **{name: info[name] for name in self._kept if name in info},
                **(info.get("metrics", {}) if isinstance(self._env.unwrapped, TextEnv) else {}),
            },
        )

    def _solved(self, reward: float, terminated: bool, info: Mapping[str, Any]) -> bool:
        """Whether the episode that ends with this turn is solved."""
        match self._is_solved:
            case None:
                said = next((info[name] for name in ("success", "is_success") if name in info), None)
                if said is not None:
                    return bool(said)
                needed = None if self._env.spec is None else self._env.spec.reward_threshold
                is_paid = terminated and reward > max([0.0, *self._rewards[:-1]])
                return is_paid or (needed is not None and sum(self._rewards) >= needed)
            case "rewarded":
                return terminated and reward > 0
            case "terminated":
                return terminated
            case "truncated":
                return not terminated
            case needed:
                return sum(self._rewards) >= needed


class DiscreteGymnasiumEnv(GymnasiumEnv):
    """One whose actions can be listed."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], *, actions: Sequence[str] | None = None, **others: Any
    ) -> None:
        """
        Args:
            env: Has a discrete action space.
            actions: Their names in their order; their numbers by default.
            others: As for `GymnasiumEnv`.
        """
        super().__init__(env, actions=actions, **others)
        space = env.action_space
        if not isinstance(space, spaces.Discrete):
            raise ValueError(f"env: its action space must be discrete, not {space}")
        names = action_names(space, actions)
        self._legal = tuple(names) if self._reads_whole else tuple(map(tagged, names))

    def legal_actions(self) -> Sequence[str]:
        return () if self._terminated or self._truncated else self._legal


class TabularGymnasiumEnv(DiscreteGymnasiumEnv):
    """One that shows its state and its transition table `P`, so that its best actions can be computed."""

    @cached_property
    def _best(self) -> npt.NDArray[np.int64]:
        table: Transitions = self._env.unwrapped.P  # type: ignore[attr-defined]
        return best_actions(table)

    def oracle(self) -> str:
        return self._legal[int(self._best[int(self._inner)])]


def _kind(env: gymnasium.Env[Any, Any], *, has_parser: bool) -> type[GymnasiumEnv]:
    """The class whose abilities `env` has."""
    if not isinstance(env.action_space, spaces.Discrete) or has_parser:
        return GymnasiumEnv
    inside = env.unwrapped
    shows_state = isinstance(env.observation_space, spaces.Discrete) and env.observation_space.start == 0
    is_tabular = shows_state and isinstance(getattr(inside, "P", None), Mapping)
    return TabularGymnasiumEnv if is_tabular else DiscreteGymnasiumEnv


def _made(id: str, kwargs: dict[str, Any], render: str | None) -> gymnasium.Env[Any, Any]:
    if not isinstance(id, str):
        raise ValueError(f"id: must be an id such as 'CliffWalking-v1', not {id!r}")
    if "render_mode" in kwargs and render in (None, "ansi", "observation"):
        raise ValueError("kwargs.render_mode: is chosen by `render`")
    # Turns are counted outside, and `envsdk.check` looks at answers once rather than in every step.
    kwargs = {"max_episode_steps": -1, "disable_env_checker": True, **kwargs}
    try:
        env = gymnasium.make(id, **kwargs)
        has_ansi = "ansi" in (env.metadata.get("render_modes") or ())
        says_enough = render is None and isinstance(env.observation_space, spaces.Text)
        if has_ansi and render != "observation" and not says_enough and "render_mode" not in kwargs:
            env.close()
            env = gymnasium.make(id, **kwargs, render_mode="ansi")
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(f"id: {error}") from error
    if render == "ansi" and not has_ansi:
        env.close()
        raise ValueError(f"render: {id} has no rendering `ansi`; use render: observation")
    return env


def _reads_whole(env: gymnasium.Env[Any, Any], reply: ReplyFormat | None) -> bool:
    return (reply or ("whole" if isinstance(env.action_space, spaces.Text) else "tag")) == "whole"


def _own_limit(id: str, env: gymnasium.Env[Any, Any]) -> int:
    """Turns that the environment would have by itself."""
    if isinstance(env.unwrapped, TextEnv):
        return getattr(env.unwrapped, "max_steps", None) or DEFAULT_MAX_STEPS
    return gymnasium.spec(id.rpartition(":")[2]).max_episode_steps or DEFAULT_MAX_STEPS


def _renderer(
    env: gymnasium.Env[Any, Any],
    render: str | None,
    labels: Sequence[str],
    precision: int,
    marks: Mapping[str, str],
) -> Renderer:
    check_marks(marks)
    space = env.observation_space
    if render not in (None, "ansi", "observation"):
        function: Renderer = _imported("render", render)
        return function
    if env.render_mode == "ansi":
        return lambda env, observation: without_colors(str(env.render()), marks).strip("\n")
    if labels:
        check_labels(space, labels)
    return lambda env, observation: in_words(space, observation, labels=labels, precision=precision)


def _parser(env: gymnasium.Env[Any, Any], actions: Sequence[str] | None) -> ActionParser:
    if isinstance(env.unwrapped, TextEnv):
        # Any reply is an action of a text environment, whatever its space draws.
        return lambda answer: answer
    return parser_for(env.action_space, actions)


def _imported(argument: str, name: str | None) -> Any:
    try:
        return load_function(str(name), where=f"{argument}: ")
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


Transitions = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"""`table[state][action]`: (probability, next state, reward, whether it is the end) of each outcome."""

DISCOUNT = 0.99
_PRECISION = 1e-9
_ROUNDING = 1e-7
_MAX_SWEEPS = 10_000


def best_actions(table: Transitions) -> npt.NDArray[np.int64]:
    """Best actions by value iteration: the first with the highest discounted return: `[num_states]`.

    Args:
        table: States and actions are numbered from 0.
    """
    num_states, num_actions = len(table), len(table[0])
    num_outcomes = max(len(outcomes) for actions in table.values() for outcomes in actions.values())
    shape = (num_states, num_actions, num_outcomes)
    weights, following, expected = np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape[:2])
    for state, actions in table.items():
        for action, outcomes in actions.items():
            for index, (probability, then, reward, is_last) in enumerate(outcomes):
                expected[state, action] += probability * reward
                weights[state, action, index] = 0.0 if is_last else DISCOUNT * probability
                following[state, action, index] = then
    values = np.zeros(num_states)
    for _ in range(_MAX_SWEEPS):
        returns = expected + (weights * values[following]).sum(axis=2)
        change = np.abs(returns.max(axis=1) - values).max()
        values = returns.max(axis=1)
        if change < _PRECISION:
            break
    is_best = returns >= returns.max(axis=1, keepdims=True) - _ROUNDING
    best: npt.NDArray[np.int64] = is_best.argmax(axis=1)
    return best
