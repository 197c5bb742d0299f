"""`envsdk replay DATASET`: play recorded actions again, report the first difference, or rescore."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from envsdk.base.display.command_line import canonical_command
from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Option, Options
from envsdk.contracts.failures import ConfigurationError, EnvsdkError
from envsdk.rollouts.datasets.reading import open_dataset
from envsdk.rollouts.play.replay import ReplayResult, replay, rescore

_MAX_SHOWN = 20


class ReplayOptions(Options):
    """What `envsdk replay` takes."""

    folder: Annotated[Path, Argument("DATASET")]
    """A folder that `collect` wrote, or a run's folder."""
    overrides: Annotated[tuple[str, ...], Argument("KEY=VALUE")] = ()
    """With --rescore: arguments of the environments, changed; with a reward function, its settings."""
    episodes: Annotated[int | None, Option("--episodes", "-n")] = None
    """Only the first ones."""
    tolerance: float = 0.0
    """How far apart rewards and metrics may be."""
    keep_going: bool = False
    """Look for a difference in every episode."""
    rescore: bool = False
    """Write a data set with the rewards that the environments, or --rewards, give now."""
    rewards: Annotated[str | None, Option(metavar="NAME|package.module:function")] = None
    """With --rescore: a reward function (prompts only), or a function of the trajectory."""
    out: Annotated[Path | None, Option("--out", "-o", metavar="DIR")] = None
    """With --rescore: the new data set."""


def command(options: ReplayOptions) -> None:
    """Play the recorded actions of a data set again and report the first difference.

    The exit code is 0 when every episode took the course that was recorded, and 1 when one did not.
    """
    from envsdk.base.display.episode_progress import EpisodeProgress

    episodes, out = options.episodes, options.out
    dataset = open_dataset(options.folder)
    num_recorded = 0 if dataset.manifest is None else dataset.manifest.tally.num_episodes
    if not options.rescore:
        for name, value in (("--rewards", options.rewards), ("--out", out), ("KEY=VALUE", options.overrides)):
            if value:
                raise ConfigurationError(f"{name} is for --rescore")
        total = min(episodes or num_recorded, num_recorded) or episodes or 0
        with EpisodeProgress("replaying", total=total) as progress:
            result = replay(
                dataset,
                num_episodes=episodes,
                tolerance=options.tolerance,
                keep_going=options.keep_going,
                on_played=lambda recorded: progress.played(1, int(recorded.success), 0),
            )
        _report(result)
        return
    if out is None:
        raise ConfigurationError("--rescore needs --out DIR: where the new data set goes")
    if episodes is not None:
        raise ConfigurationError("--episodes is not for --rescore: a data set is rescored as a whole")
    with EpisodeProgress("rescoring", total=num_recorded) as progress:
        manifest = rescore(
            dataset,
            out,
            rewards=options.rewards,
            overrides=options.overrides,
            command=canonical_command("replay", sys.argv),
            on_shard=lambda num_episodes: progress.played(num_episodes, 0, 0),
        )
    before = dataset.manifest.tally if dataset.manifest is not None else manifest.tally
    means = [each.mean_reward for each in (before, manifest.tally)]
    shown = " -> ".join("-" if mean is None else f"{mean:.3f}" for mean in means)
    say(f"{manifest.tally.num_episodes} episodes, mean reward {shown}: {out}")


def _report(result: ReplayResult) -> None:
    skipped = f"; {result.num_failed} that were recorded as failed were left out" if result.num_failed else ""
    played = f"{result.num_episodes} episodes, {result.num_turns} turns played again{skipped}"
    if not result.num_episodes:
        raise EnvsdkError(f"nothing to compare: {played}")
    if not result.differences:
        say(f"no difference: {played}")
        return
    for difference in result.differences[:_MAX_SHOWN]:
        say(difference)
    if len(result.differences) > _MAX_SHOWN:
        say(f"and {len(result.differences) - _MAX_SHOWN} more episodes")
    raise EnvsdkError(f"{len(result.differences)} episode(s) differ: {played}")


app, main = command_of(ReplayOptions, command, name="envsdk replay")

if __name__ == "__main__":
    sys.exit(main())
