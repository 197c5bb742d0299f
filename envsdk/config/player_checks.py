"""Checks of `players` and `opponents`: every player has a name that stands for one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from envsdk.base.plugins import plugin_names
from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.config.env_models import CustomEnv
from envsdk.config.models import RunConfig
from envsdk.config.plugins import POLICIES, is_importable
from envsdk.contracts.players import POLICY

BUILT_IN = ("oracle", "random")


def player_problems(path: KeyPath, env: CustomEnv, models: Iterable[str]) -> Iterator[Problem]:
    """Problems of a tag's players, which may be `models`."""
    known = (POLICY, *BUILT_IN, *models, *plugin_names(POLICIES))
    for name in env.player_names:
        if name not in known and not is_importable(name):
            hint = suggest(name, known, known="players")
            said = f"there is no player {name!r} and `opponents` has none; {hint}"
            yield Problem((*path, "players"), said)


def opponent_problems(config: RunConfig) -> Iterator[Problem]:
    """Problems of the models that play against the policy."""
    asked = {name for env in config.custom_envs.values() for name in env.player_names}
    for name, opponent in config.opponents.items():
        path, every = ("opponents", name), opponent.refresh_steps
        if name in (POLICY, *BUILT_IN) or "/" in name:
            yield Problem(path, f"`{name}` is no name for an opponent; choose another, without a slash")
        elif name not in asked:
            yield Problem(path, "no tag has it among its players; name it there, or leave it out")
        if every is None:
            continue
        if opponent.pretrain is not None:
            yield Problem((*path, "pretrain"), "the run's checkpoints are what it plays; leave it out")
        if config.mode != "both":
            yield Problem((*path, "refresh_steps"), f"mode: {config.mode} has no checkpoints; leave it out")
        if not config.save_steps or every % config.save_steps:
            yield Problem(
                (*path, "refresh_steps"),
                f"its weights are those of checkpoints: take a multiple of save_steps, {config.save_steps}",
            )
