"""Sokoban as text: push every box onto a target."""

from envsdk.contracts.env import EnvSpec, Isolation
from envsdk.envs.grid import ACTION_FORMAT, TEXT_PIECES
from envsdk.envs.sokoban.env import PRESETS, SokobanEnv

SPEC = EnvSpec(
    id="envsdk/Sokoban-v1",
    entry_point="envsdk.envs.sokoban:SokobanEnv",
    isolation=Isolation.INLINE,
    description="Walk (P) and push every box (X) onto a target (O); walls (#) and other boxes stop a box.",
    action_format=ACTION_FORMAT,
    # The frame of the room is the same in every room. Its cells stay tokens of their own.
    text_pieces=(r"^#+\n#", r"#\n#+$", r"#\n#", *TEXT_PIECES),
)

__all__ = ["PRESETS", "SPEC", "SokobanEnv"]
