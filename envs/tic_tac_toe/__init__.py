"""Tic-tac-toe as text, for two players."""

from envsdk.contracts.env import EnvSpec, Isolation
from envsdk.envs.tic_tac_toe.env import TicTacToeEnv

SPEC = EnvSpec(
    id="envsdk/TicTacToe-v1",
    entry_point="envsdk.envs.tic_tac_toe:TicTacToeEnv",
    isolation=Isolation.INLINE,
    description="Two players, X and O, take turns on a board of nine squares; three in a row win.",
    action_format="Reply with the number of a free square in tags, such as <answer>5</answer>.",
    prompt="envsdk.envs.tic_tac_toe.env:system_prompt",
)

__all__ = ["SPEC", "TicTacToeEnv"]
