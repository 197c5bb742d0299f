"""PettingZoo's AEC environments as text environments of several players.

env = envsdk.make("envsdk/PettingZoo-v1", id="classic/tictactoe_v3")
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from envsdk.adapters.gymnasium.spaces import action_names, how_to_reply, in_words, parser_for, without_colors
from envsdk.adapters.hosted import Answer, ReplayedEnv
from envsdk.adapters.missing import import_extra
from envsdk.adapters.text import NO_ANSWER, tagged, tagged_answer
from envsdk.base.plugins import load_object
from envsdk.contracts.env import EnvSpec, Info
from envsdk.contracts.failures import describe_error

SPEC = EnvSpec(
    id="envsdk/PettingZoo-v1",
    entry_point="envsdk.adapters.pettingzoo:PettingZooEnv",
    description="A game of PettingZoo for several players, by its name.",
    action_format="Reply with one action in tags: <answer>...</answer>.",
    prompt="envsdk.adapters.pettingzoo:pettingzoo_prompt",
    needs={"pettingzoo": "pip install 'envsdk[pettingzoo]'"},
)


class PettingZooEnv(ReplayedEnv):
    """Text around an AEC environment: its agents are the roles, in the order of `possible_agents`.

    A reply that is no action, or one that the environment's mask does not allow, is not passed on. Agents
    that are out are stepped over.
    """

    def __init__(
        self,
        *,
        id: str,
        kwargs: Mapping[str, Any] | None = None,
        render: str | None = None,
        actions: Sequence[str] | None = None,
        max_steps: int = 200,
        invalid_penalty: float = 0.0,
    ) -> None:
        """
        Args:
            id: As for `pettingzoo.make`, or `package.module:function` that makes an AEC environment.
            kwargs: Arguments of that function.
            render: `package.module:function`, called with the environment and the observation of the player
                whose turn it is. By default the rendering `ansi` where there is one, a board where the
                observation has a plane of one's own pieces and one of the other's, else the observation.
            actions: Names of the actions of a discrete space, in their order; their numbers by default.
            max_steps: Replies of all players before the episode is truncated.
            invalid_penalty: Taken off the reward of a turn whose reply is no legal action.
        """
        super().__init__(max_steps=max_steps, invalid_penalty=invalid_penalty)
        self._env = _made(id, kwargs or {}, with_ansi=render is None)
        self._render = _shown if render is None else load_object(render)
        self._names = actions
        self.roles = [str(agent) for agent in self._env.possible_agents]
        self._role = self.roles[0]
        self._rewards: dict[str, float] = {}
        parser_for(self._space, actions)

    @property
    def _space(self) -> Space[Any]:
        """Actions of the role whose turn it is."""
        agent = self._env.possible_agents[self.roles.index(self._role)]
        space: Space[Any] = self._env.action_space(agent)
        return space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "roles": list(self.roles), "role": self._role}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self._rewards = {}
        *result, info = super().step(action)
        return (*result, {**info, "role": self._role, "rewards": self._rewards})  # type: ignore[return-value]

    def close(self) -> None:
        self._env.close()

    def legal_actions(self) -> Sequence[str]:
        """What the mask allows. ValueError unless actions are discrete."""
        if not isinstance(self._space, spaces.Discrete):
            raise ValueError(f"the actions {self._space} cannot be listed: name another player than random")
        names, mask = action_names(self._space, self._names), self._mask()
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
        env, mask, answer = self._env, self._mask(), tagged_answer(reply)
        try:
            action = parser_for(self._space, self._names)(answer or "")
            if mask is not None and not mask[int(action) - int(getattr(self._space, "start", 0))]:
                raise ValueError(f"{answer} is not legal now.")
        except ValueError as error:
            return Answer(note=NO_ANSWER if answer is None else f"Invalid action: {error}")
        env.step(action)
        self._rewards = {str(agent): float(paid) for agent, paid in env.rewards.items()}
        reward, terminated = self._rewards.get(self._role, 0.0), any(env.terminations.values())
        shown = self._render(env, _seen(env))
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        if env.agents:
            self._role = str(env.agent_selection)
            shown = self._render(env, _seen(env))
        return Answer(
            observation=shown,
            reward=reward,
            terminated=not env.agents and terminated,
            truncated=not env.agents and not terminated,
            metrics={"action_is_valid": 1.0},
        )

    def _mask(self) -> Sequence[int] | None:
        seen, info = _seen(self._env), self._env.infos.get(self._env.agent_selection, {})
        for each in (seen, info):
            if isinstance(each, dict) and "action_mask" in each:
                mask: Sequence[int] = each["action_mask"]
                return mask
        return None


def pettingzoo_prompt(
    *, id: str, kwargs: Mapping[str, Any] | None = None, actions: Sequence[str] | None = None, **_: Any
) -> str:
    """The system prompt for the environment of these arguments."""
    env = _made(id, kwargs or {}, with_ansi=False)
    env.reset(seed=0)
    board = "On the board X is yours, O another player's, and _ is free." if _is_board(_seen(env)) else ""
    how = how_to_reply(env.action_space(env.agent_selection), actions, reads_whole=False)
    env.close()
    return "\n".join(filter(None, (f"You are {{role}} in the game {env}.", board, how)))


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
    if getattr(env.unwrapped, "render_mode", None) == "ansi":
        return without_colors(str(env.render()), {}).strip("\n")
    space = env.observation_space(env.agent_selection)
    if isinstance(space, spaces.Dict) and "observation" in space.spaces:
        space, seen = space["observation"], seen["observation"]
    if not _is_board(seen):
        return in_words(space, seen)
    squares = np.where(seen[:, :, 0] > 0, "X", np.where(seen[:, :, 1] > 0, "O", "_"))
    return "\n".join("".join(row) for row in squares.tolist())


def _is_board(seen: Any) -> bool:
    value = seen.get("observation") if isinstance(seen, dict) else seen
    return isinstance(value, np.ndarray) and value.ndim == 3 and value.shape[2] == 2
