"""FrozenLake as text: cross the ice to the goal without stepping into a hole."""

from envsdk.contracts.env import EnvSpec, Isolation
from envsdk.envs.frozen_lake.env import FrozenLakeEnv
from envsdk.envs.grid import ACTION_FORMAT, TEXT_PIECES

SPEC = EnvSpec(
    id="envsdk/FrozenLake-v1",
    entry_point="envsdk.envs.frozen_lake:FrozenLakeEnv",
    isolation=Isolation.INLINE,
    description="Walk (P) over the ice (_) to the goal (G); a hole (O) ends the episode.",
    action_format=ACTION_FORMAT,
    text_pieces=TEXT_PIECES,
)

__all__ = ["SPEC", "FrozenLakeEnv"]
