"""PettingZoo: its AEC environments as text environments of several players, and ours as its own.

env = envsdk.make("envsdk/PettingZoo-v1", id="classic/tictactoe_v3")
game = as_aec(envsdk.make("envsdk/TicTacToe-v1"))    # an AECEnv, whose actions and observations are text
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from envsdk.adapters.gymnasium.actions import action_names, parser_for
from envsdk.adapters.gymnasium.observations import in_words, without_colors
from envsdk.adapters.gymnasium.prompt import how_to_reply
from envsdk.adapters.hosted import Answer, ReplayedEnv
from envsdk.adapters.missing import import_extra
from envsdk.adapters.text import NO_ANSWER, tagged, tagged_answer
from envsdk.base.plugins import load_object
from envsdk.contracts.env import EnvSpec, Info, TextEnv
from envsdk.contracts.failures import describe_error

DEFAULT_MAX_STEPS = 200
_MARKS = "XO_"
"""One's own, the other's and free squares."""

SPEC = EnvSpec(
    id="envsdk/PettingZoo-v1",
    entry_point="envsdk.adapters.pettingzoo:make_pettingzoo_env",
    description="A game of PettingZoo for several players, by its name.",
    action_format="Reply with one action in tags: <answer>...</answer>.",
    prompt="envsdk.adapters.pettingzoo:pettingzoo_prompt",
    needs={"pettingzoo": "pip install 'envsdk[pettingzoo]'"},
)


def make_pettingzoo_env(
    *,
    id: str,
    kwargs: Mapping[str, Any] | None = None,
    render: str | None = None,
    actions: Sequence[str] | None = None,
    max_steps: int = DEFAULT_MAX_STEPS,
    invalid_penalty: float = 0.0,
) -> PettingZooEnv:
    """An AEC environment of PettingZoo as a text environment.

    Args:
        id: As for `pettingzoo.make`, or `package.module:function` that makes an AEC environment.
        kwargs: Arguments of that function.
        render: `package.module:function`, called with the environment and the observation of the player whose
            turn it is. By default the rendering `ansi` where there is one, a board of its own and the
            other's pieces where the observation is one, else the observation as text.
        actions: Names of the actions of a discrete space, in their order; their numbers by default.
        max_steps: Replies of all players before the episode is truncated.
        invalid_penalty: Taken off the reward of a turn whose reply is no legal action.

    Raises:
        ValueError: There is no such environment, or a value does not fit it.
    """
    env = _made(id, kwargs or {}, with_ansi=render is None)
    show = load_object(render) if render is not None else _shown
    return PettingZooEnv(
        env, render=show, actions=actions, max_steps=max_steps, invalid_penalty=invalid_penalty
    )


def pettingzoo_prompt(
    *, id: str, kwargs: Mapping[str, Any] | None = None, actions: Sequence[str] | None = None, **_: Any
) -> str:
    """The system prompt for the environment that `make_pettingzoo_env` makes of these arguments."""
    env = _made(id, kwargs or {}, with_ansi=False)
    env.reset(seed=0)
    agent = env.agent_selection
    board = "On the board X is yours, O another player's, and _ is free." if _is_board(_seen(env)) else ""
    how = how_to_reply(env.action_space(agent), actions, reads_whole=False)
    env.close()
    return "\n".join(filter(None, (f"You are {{role}} in the game {env}.", board, how)))


class PettingZooEnv(ReplayedEnv):
    """Text around an AEC environment: its agents are the roles, in the order of `possible_agents`.

    A reply that is no action, or one that the environment's mask does not allow, is not passed on. Agents
    that are out are stepped over.
    """

    def __init__(
        self,
        env: Any,
        *,
        render: Callable[[Any, Any], object],
        actions: Sequence[str] | None = None,
        max_steps: int = DEFAULT_MAX_STEPS,
        invalid_penalty: float = 0.0,
    ) -> None:
        """`env` is owned: `close` closes it. The others are those of `make_pettingzoo_env`."""
        super().__init__(max_steps=max_steps, invalid_penalty=invalid_penalty)
        self._env = env
        self._render = render
        self._names = actions
        self.roles = [str(agent) for agent in env.possible_agents]
        self._role = self.roles[0]
        self._rewards: dict[str, float] = {}
        parser_for(self._space, actions)

    @property
    def _space(self) -> Space[Any]:
        """Of the actions of the agent whose turn it is; of the first one before and after the episode."""
        agents = [each for each in self._env.possible_agents if str(each) == self._role]
        space: Space[Any] = self._env.action_space(agents[0])
        return space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "roles": list(self.roles), "role": self._role}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self._rewards = {}
        observation, reward, terminated, truncated, info = super().step(action)
        info |= {"role": self._role, "rewards": self._rewards}
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        self._env.close()

    def legal_actions(self) -> Sequence[str]:
        """The names of all actions that the mask allows. ValueError unless actions are discrete."""
        if not isinstance(self._space, spaces.Discrete):
            raise ValueError(f"the actions {self._space} cannot be listed: name another player than random")
        names = action_names(self._space, self._names)
        mask = self._mask()
        return [tagged(name) for number, name in enumerate(names) if mask is None or mask[number]]

    def state_hash(self) -> str:
        agent, seen = self._env.agent_selection, _seen(self._env)
        text = in_words(self._env.observation_space(agent), seen, precision=17)
        return hashlib.blake2b(f"{agent}\n{text}".encode("utf-8", "replace"), digest_size=16).hexdigest()

    def _start(self, seed: int) -> object:
        self._env.reset(seed=seed)
        self._role = str(self._env.agent_selection)
        return self._render(self._env, _seen(self._env))

    def _answer(self, reply: str) -> Answer:
        answer = tagged_answer(reply)
        if answer is None:
            return Answer(note=NO_ANSWER)
        try:
            action = parser_for(self._space, self._names)(answer)
        except ValueError as error:
            return Answer(note=f"Invalid action: {error}")
        mask = self._mask()
        if mask is not None and not mask[int(action) - int(getattr(self._space, "start", 0))]:
            return Answer(note=f"Invalid action: {answer} is not legal now.")
        return self._played(action)

    def _played(self, action: Any) -> Answer:
        env, played = self._env, self._role
        env.step(action)
        self._rewards = {str(agent): float(paid) for agent, paid in env.rewards.items()}
        was_terminated = any(env.terminations.values())
        shown = self._render(env, _seen(env))
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        if env.agents:
            self._role = str(env.agent_selection)
            shown = self._render(env, _seen(env))
        return Answer(
            observation=shown,
            reward=self._rewards.get(played, 0.0),
            terminated=not env.agents and was_terminated,
            truncated=not env.agents and not was_terminated,
            metrics={"action_is_valid": 1.0},
        )

    def _mask(self) -> Sequence[int] | None:
        seen, info = _seen(self._env), self._env.infos.get(self._env.agent_selection, {})
        mask = seen.get("action_mask") if isinstance(seen, Mapping) else None
        found: Sequence[int] | None = info.get("action_mask") if mask is None else mask
        return found


def as_aec(env: TextEnv) -> Any:
    """An environment of several players as PettingZoo's `AECEnv`, with text for actions.

    Observations are `{"text": ...}`. The rewards are those of `info["rewards"]`, less penalties.
    """
    base = import_extra("pettingzoo", extra="pettingzoo").AECEnv
    if not env.roles:
        raise ValueError(f"{type(env).__name__} has one player: use it as a Gymnasium environment")

    class Game(base):  # type: ignore[misc, valid-type]
        metadata = {"name": type(env).__name__, "render_modes": ["ansi"], "is_parallelizable": False}  # noqa: RUF012
        render_mode = "ansi"

        def __init__(self) -> None:
            self.possible_agents = list(env.roles)
            self._seen = spaces.Dict({"text": env.observation_space})

        def observation_space(self, agent: str) -> Space[Any]:
            return self._seen

        def action_space(self, agent: str) -> Space[Any]:
            return env.action_space

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
            self._text, info = env.reset(seed=seed, options=options)
            self.agents = list(self.possible_agents)
            self.agent_selection = info["role"]
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
            self.terminations = dict.fromkeys(self.agents, False)
            self.truncations = dict.fromkeys(self.agents, False)
            self.infos: dict[str, Info] = {agent: {} for agent in self.agents}

        def step(self, action: str | None) -> None:
            agent = self.agent_selection
            if self.terminations[agent] or self.truncations[agent]:
                self._was_dead_step(action)
                return
            self._text, reward, terminated, truncated, info = env.step(str(action))
            self._cumulative_rewards[agent] = 0.0
            self.rewards = dict.fromkeys(self.agents, 0.0) | info["rewards"] | {agent: reward}
            self._accumulate_rewards()
            self.terminations = dict.fromkeys(self.agents, terminated)
            self.truncations = dict.fromkeys(self.agents, truncated)
            self.infos[agent] = info.get("metrics", {})
            self.agent_selection = info["role"]

        def observe(self, agent: str) -> dict[str, str]:
            """What the role whose turn it is may see; another role's is empty until it is its turn."""
            return {"text": self._text if agent == self.agent_selection else " "}

        def render(self) -> str:
            return self._text

        def close(self) -> None:
            env.close()

    return Game()


def _made(id: str, kwargs: Mapping[str, Any], *, with_ansi: bool) -> Any:
    pettingzoo = import_extra("pettingzoo", extra="pettingzoo")
    make = load_object(id) if ":" in id else partial(pettingzoo.make, "aec", id)
    try:
        env = make(**kwargs)
        if with_ansi and "ansi" in (env.metadata.get("render_modes") or ()) and "render_mode" not in kwargs:
            env.close()
            env = make(**kwargs, render_mode="ansi")
    except Exception as error:  # its registry has no class of errors in public
        raise ValueError(f"id: {describe_error(error)}") from error
    return env


def _seen(env: Any) -> Any:
    return env.observe(env.agent_selection)


def _shown(env: Any, seen: Any) -> str:
    """The rendering for terminals, a board, or the values of the observation."""
    if getattr(env.unwrapped, "render_mode", None) == "ansi":
        return without_colors(str(env.render()), {}).strip("\n")
    value = seen.get("observation", seen) if isinstance(seen, Mapping) else seen
    if _is_board(seen):
        squares = np.where(value[:, :, 0] > 0, 0, np.where(value[:, :, 1] > 0, 1, 2))
        return "\n".join("".join(_MARKS[square] for square in row) for row in squares.tolist())
    space = env.observation_space(env.agent_selection)
    if isinstance(space, spaces.Dict) and "observation" in space.spaces:
        space = space["observation"]
    return in_words(space, value)


def _is_board(seen: Any) -> bool:
    """Whether it has a plane of one's own pieces and one of the other's."""
    value = seen.get("observation") if isinstance(seen, Mapping) else seen
    return isinstance(value, np.ndarray) and value.ndim == 3 and value.shape[2] == 2
