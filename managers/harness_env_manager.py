"""HarnessEnvManager: the program that an environment runs inside its sandbox plays the episodes of one slot.

    lease -> reset -> the door opens -> the environment plays -> the door closes -> submit -> lease -> ...

The sandbox has no network. The session's endpoint comes in through a Unix socket that no other sandbox has,
and which serves replies alone. `EnvSpec.program_argument` names the argument that has a program play.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from envsdk.contracts.agent_door import AgentDoor
from envsdk.managers.agent_env_manager import AgentEnvManager, AgentEpisode


class HarnessEnvManager(AgentEnvManager):
    """Plays each episode by `AsyncTextEnv.play`. The tag's `max_steps` bounds the replies of all lines."""

    limits_replies = True

    async def run_agent(self, agent: AgentEpisode) -> None:
        with tempfile.TemporaryDirectory(prefix="envsdk-door-") as folder:
            socket = Path(folder) / "socket"
            async with agent.door(socket):
                await agent.env.play(AgentDoor(socket=socket, api_key=agent.api_key, model=agent.model))
