"""A text environment of several players as an `AECEnv`, so that PettingZoo's own tests look at it."""

from __future__ import annotations

from typing import Any

from gymnasium import Space, spaces
from pettingzoo import AECEnv

from envsdk.contracts.env import Info, TextEnv


class TextGame(AECEnv):
    """Replies are actions; observations are `{"text": ...}`, and empty for a role whose turn it is not."""

    metadata = {"name": "text_game_v0", "render_modes": ["ansi"], "is_parallelizable": False}  # noqa: RUF012
    render_mode = "ansi"

    def __init__(self, env: TextEnv) -> None:
        self._env = env
        self.possible_agents = list(env.roles)
        self._seen = spaces.Dict({"text": env.observation_space})

    def observation_space(self, agent: str) -> Space[Any]:
        return self._seen

    def action_space(self, agent: str) -> Space[Any]:
        return self._env.action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._text, info = self._env.reset(seed=seed, options=options)
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
        self._text, reward, terminated, truncated, info = self._env.step(str(action))
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict.fromkeys(self.agents, 0.0) | info["rewards"] | {agent: reward}
        self._accumulate_rewards()
        self.terminations = dict.fromkeys(self.agents, terminated)
        self.truncations = dict.fromkeys(self.agents, truncated)
        self.infos[agent] = info.get("metrics", {})
        self.agent_selection = info["role"]

    def observe(self, agent: str) -> dict[str, str]:
        return {"text": self._text if agent == self.agent_selection else " "}

    def render(self) -> str:
        return self._text

    def close(self) -> None:
        self._env.close()
