"""HarnessEnvManager: the program that an environment runs inside its sandbox plays the episodes of one slot.

    lease -> reset -> the door opens -> the environment plays -> the door closes -> submit -> lease -> ...

The sandbox has no network. The session's endpoint comes in through a Unix socket that no other sandbox has,
and which serves replies alone. `EnvSpec.program_argument` names the argument that has a program play.
"""

from __future__ import annotations

from collections.abc import Iterable

from envsdk.contracts.agent_door import AgentDoor
from envsdk.contracts.trajectory import Trajectory
from envsdk.managers.agent_env_manager import AgentEnvManager, AgentEpisode
from envsdk.rewards.sandbox.scratch import scratch_folder


class HarnessEnvManager(AgentEnvManager):
    """Plays each episode by `AsyncTextEnv.play`. The tag's `max_steps` bounds the replies of all lines."""

    limits_replies = True

    async def run_agent(self, agent: AgentEpisode) -> None:
        async with scratch_folder() as folder:
            socket = folder / "socket"
            async with agent.door(socket):
                await agent.env.play(AgentDoor(socket=socket, api_key=agent.api_key, model=agent.model))


def failed_programs(episodes: Iterable[Trajectory]) -> str:
    """A warning of programs with an exit code other than 0, and the last words of one; empty without any."""
    ends = [each.final_observation.partition("<submission>")[0] for each in episodes]
    failed = [" ".join(end.split())[-500:] for end in ends if 'exit_status="NonZeroExit"' in end]
    share = f"the programs of {len(failed)} of {len(ends)} episodes ended with an exit code other than 0"
    return f"warning: {share}: {failed[0]}" if failed else ""
