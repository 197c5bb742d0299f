"""Tic-tac-toe as text, for two players."""

from envsdk.contracts.env import EnvSpec, Isolation
from envsdk.envs.tic_tac_toe.env import TicTacToeEnv

SPEC = EnvSpec(
    id="envsdk/TicTacToe-v1",
    entry_point="envsdk.envs.tic_tac_toe:TicTacToeEnv",
    isolation=Isolation.INLINE,
    description="Tic-tac-toe for two players: three in a row win; free squares show their number.",
    action_format="You are {role}. Reply with the number of a free square, such as <answer>5</answer>.",
)

__all__ = ["SPEC", "TicTacToeEnv"]
