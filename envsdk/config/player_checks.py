"""Checks of `players` and `opponents`: every player has a name that stands for one."""

from __future__ import annotations

from collections.abc import Iterator

from envsdk.base.plugins import plugin_names
from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.config.env_models import CustomEnv
from envsdk.config.plugins import POLICIES, is_importable
from envsdk.contracts.players import POLICY

BUILT_IN = ("oracle", "random")


def player_problems(path: KeyPath, env: CustomEnv) -> Iterator[Problem]:
    """Problems of a tag's players."""
    known = (POLICY, *BUILT_IN, *plugin_names(POLICIES))
    for name in env.player_names:
        if name not in known and not is_importable(name):
            hint = suggest(name, known, known="players")
            yield Problem((*path, "players"), f"there is no player {name!r}; {hint}")
