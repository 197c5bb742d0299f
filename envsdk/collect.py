"""`envsdk collect ENV_OR_YAML --out DIR`: play episodes with no trainer, write them as a data set.

collection = collect("envsdk/FrozenLake-v1", Path("demos"), num_episodes=1000, epsilon=0.3)
for path in collection.shards:
    trajectories = read_trajectories(path)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsdk.base.display.command_line import canonical_command
from envsdk.base.display.episode_progress import EpisodeProgress
from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.store.tally import Tally
from envsdk.base.store.trajectories import iter_trajectories
from envsdk.config.env_defaults import PLAYS_INSIDE
from envsdk.config.plugins import environment_notes
from envsdk.config.start_checks import prompt_notes
from envsdk.contracts.env import AnyTextEnv, EnvSpec
from envsdk.contracts.failures import ConfigurationError, Interrupted, RolloutStalled
from envsdk.managers.harness_env_manager import failed_programs
from envsdk.rollouts.play import collection
from envsdk.rollouts.play.collection import Collection, CollectOptions
from envsdk.rollouts.play.own_policies import form_or_name
from envsdk.rollouts.play.rollout_arguments import own_environment
from envsdk.rollouts.play.source import resolve_source
from envsdk.trainers.warm_start import make_tiny_policy

if TYPE_CHECKING:
    from envsdk.config import RunConfig

__all__ = ["CollectOptions", "Collection", "collect"]


def collect(
    source: str | Path | RunConfig | EnvSpec | Callable[..., AnyTextEnv],
    out: Path,
    *,
    supervised: bool = False,
    on_start: Callable[[int, int], None] | None = None,
    on_played: Callable[[Tally], None] | None = None,
    **options: Any,
) -> Collection:
    """Play the first tasks of a split into `out`, except those that are already there.

    `source` may also be an environment's class, or a function that makes one, which play in this process.
    `options` are the fields of `CollectOptions`; `policy` may also be a function or a Policy object, as for
    `envsdk.rollout`: it plays in this process, and the manifest has its name alone, so that a
    caller that continues the collection must see to it that it is the same. The rest is as in
    `envsdk.rollouts.play.collection.collect`.
    With several workers the caller's main module must be importable, as `multiprocessing` demands.
    """
    form = form_or_name(options.get("policy"))
    if form is not None:
        del options["policy"]
    with own_environment(source) as known:
        if known is not source and options.get("num_workers", 1) > 1:
            raise ConfigurationError(
                "num_workers: an environment that is a class or a function plays in this process alone; "
                "register it for more: docs/writing-an-environment.md"
            )
        return collection.collect(
            CollectOptions.of(source=known, out=out, **options),
            form=form,
            supervised=supervised,
            on_start=on_start,
            on_played=on_played,
            make_tiny_policy=make_tiny_policy,
        )


def command(options: CollectOptions) -> None:
    """Play episodes with no trainer and write them as a data set.

    DIR receives part-00000.parquet, part-00001.parquet ..., manifest.json and README.md, the data set's
    card. A run that was interrupted or killed is continued by the same command, without repeats or gaps.
    """
    source = resolve_source(options.source, options.overrides)
    config = source.config
    tags = source.episodes_by_tag(options.num_episodes, split=options.split, tags=options.tags)
    for note in (*prompt_notes(config), *environment_notes(config, tags)):
        say(f"note: {note}", err=True)
    try:
        with EpisodeProgress("collecting", total=options.num_episodes) as progress:
            collected = collection.collect(
                options,
                command=canonical_command("collect", sys.argv),
                supervised=True,
                on_start=progress.start,
                on_played=lambda played: progress.played(
                    played.num_episodes, played.num_successes, played.num_failed
                ),
                make_tiny_policy=make_tiny_policy,
            )
    except KeyboardInterrupt:
        raise Interrupted("interrupted: the same command continues where it stopped") from None
    episodes = chain.from_iterable(map(iter_trajectories, collected.shards))
    has_programs = any(env.env_manager_cls == PLAYS_INSIDE for env in config.custom_envs.values())
    if has_programs and (warning := failed_programs(episodes)):
        say(warning, err=True)
    _print_summary(collected)


def _print_summary(collection: Collection) -> None:
    manifest = collection.manifest
    for tag, tally in manifest.tally_by_tag.items():
        solved = f"solved {tally.score}" if tally.num_scored else str(tally.score)
        say(f"{tag}: {tally.num_episodes} episodes, {solved}")
    tally, played = manifest.tally, manifest.played
    for line in played.failed_tasks():
        say(line)
    if dropped := manifest.dropped:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items()))
        say(f"dropped {sum(dropped.values())} of {played.num_episodes} episodes played: {reasons}")
    for name, noted in sorted(manifest.exports.items()):
        say(f"{noted['episodes']} episodes as {name}: {collection.folder / name}")
    say(f"{tally.num_episodes} episodes in {len(collection.shards)} file(s): {collection.folder}")
    if not played.num_scored:
        raise RolloutStalled(f"all {played.num_episodes} episodes failed: {played.describe_failures()}")
    if not tally.num_episodes:
        raise RolloutStalled(f"none of the {played.num_episodes} episodes passed the filters")
    say(f"look at them with: envsdk view {collection.folder}")


app, main = command_of(CollectOptions, command, name="envsdk collect")

if __name__ == "__main__":
    sys.exit(main())
