"""Play the episodes of a data set into its folder, except those that are already there.

    collection = collect(CollectOptions.of(source="FrozenLake", out="demos", num_episodes=1000, epsilon=0.3))
    for path in collection.shards:
        trajectories = read_trajectories(path)

`envsdk.base.store.shards` explains the folder's files and how a killed collection resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from envsdk.base.processes.forked import check_guard
from envsdk.base.settings.options import Count, Option, Options, split_names
from envsdk.base.store.atomic import make_folder, remove_leftovers
from envsdk.base.store.shard_plan import plan_shards, usual_shard_size
from envsdk.base.store.shards import PLAYED, Manifest, ShardRecord
from envsdk.base.store.tally import Tally
from envsdk.contracts.failures import ConfigurationError
from envsdk.rollouts.datasets.card import License
from envsdk.rollouts.datasets.finishing import collection_in, drop_duplicates, waiting_shards
from envsdk.rollouts.datasets.formats import make_formats
from envsdk.rollouts.datasets.reading import tag_records
from envsdk.rollouts.datasets.selection import Duplicates, EpisodeFilters, selection_config
from envsdk.rollouts.play.model import TinyPolicyMaker
from envsdk.rollouts.play.options import PlayOptions, TaskOptions
from envsdk.rollouts.play.player import make_player, package_versions
from envsdk.rollouts.play.policy_form import PolicyForm
from envsdk.rollouts.play.shard_play import Event, ShardJob, play_in_processes, play_shards
from envsdk.rollouts.play.source import resolve_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A complete data set on disk."""

    folder: Path
    manifest: Manifest

    @property
    def shards(self) -> list[Path]:
        """Its Parquet files, in order; `envsdk.base.store.trajectories.read_trajectories` reads one."""
        return [self.folder / self.manifest.shards[number].file for number in sorted(self.manifest.shards)]


class _Destination(Options):
    """Where a collection goes: the first option."""

    out: Annotated[Path | None, Option("--out", "-o", metavar="DIR")] = None
    """Where the data set goes; continued if it is there. `data/NAME` when absent."""


class CollectOptions(TaskOptions, _Destination):
    """What `envsdk collect` takes."""

    num_episodes: Annotated[Count, Option("--episodes", "-n")] = 100
    """Episodes, over all tags."""
    samples_per_task: Annotated[Count, Option("--samples-per-task", "-k")] = 1
    """Episodes of each task; their sampling differs."""
    num_workers: Annotated[Count, Option("--workers")] = 1
    """Processes that play."""
    shard_size: Count | None = None
    """Episodes per file: what a kill can cost each worker. A sixteenth of all, within 20 to 500, when
    absent."""
    options: PlayOptions = PlayOptions()
    filters: EpisodeFilters = EpisodeFilters()
    deduplicate: Duplicates | None = None
    """Keep the first of episodes that are the same in every observation and reply (episode), or in the first
    observation (task)."""
    formats: Annotated[tuple[str, ...], Option("--format", metavar="NAME", reads=split_names)] = ()
    """Also write messages, messages-parquet, minari or a plug-in's format; repeat the option, or separate
    them by commas."""
    license: License | None = None

    @property
    def folder(self) -> Path:
        """Folder of the data set: `data/` and the name of the environment or file where none is given."""
        name = Path(str(self.source)).name
        return self.out or Path("data") / (name.removesuffix(".yaml").removesuffix(".yml") or "collection")


def collect(
    options: CollectOptions,
    *,
    command: Sequence[str] = (),
    supervised: bool = False,
    on_start: Callable[[int, int], None] | None = None,
    on_played: Callable[[Tally], None] | None = None,
    make_tiny_policy: TinyPolicyMaker | None = None,
    form: PolicyForm | None = None,
) -> Collection:
    """Play the first tasks of `options.split` into `options.folder`, except those that are already there.

    Args:
        command: For the manifest: what was typed.
        supervised: Play in another process even with one worker. An environment that hangs where nothing can
            end it (in this process, in the event loop) then costs its own episode and not the call.
        on_start: Called once with the number of episodes on disk and the number wanted.
        on_played: Called about ten times a second, with the episodes that ended since.
        make_tiny_policy: Called where the policy is the tiny one of the YAML.
        form: A policy that is an object; it plays instead of `options.policy`, in this process.

    Failed episodes are part of the collection. The same options give the same episodes, whatever the
    number of workers and however often it was killed.

    Raises:
        ConfigurationError: An option is wrong, or the folder holds a different collection.
        StorageError: The folder cannot be written or is damaged.
    """
    if supervised or options.num_workers > 1:
        check_guard()
    _check(options, form)
    samples, filters = options.samples_per_task, options.filters
    resolved = resolve_source(options.source, options.overrides)
    tasks_by_tag = resolved.episodes_by_tag(
        options.num_episodes // samples, split=options.split, tags=options.tags
    )
    episodes_by_tag = {tag: count * samples for tag, count in tasks_by_tag.items()}
    player = make_player(
        resolved,
        options,
        options.options,
        tags=episodes_by_tag,
        num_processes=options.num_workers,
        make_tiny_policy=make_tiny_policy,
        form=form,
    )
    if filters.max_tokens is not None and player.model is None:
        raise ConfigurationError(f"--max-tokens: the policy {player.policy} keeps no tokens; use --max-turns")
    shard_size = options.shard_size or usual_shard_size(options.num_episodes)
    shard_size = -(-shard_size // samples) * samples
    config = {
        "episodes": dict(episodes_by_tag),
        **({"samples_per_task": samples} if samples > 1 else {}),
        "split": options.split,
        "shard_size": shard_size,
        **player.describe(),
        **selection_config(filters, options.deduplicate),
    }
    formats = make_formats(options.formats)
    for each in formats:
        each.check(tag_records(config))
    out = options.folder
    plans = plan_shards(episodes_by_tag, split=options.split, shard_size=shard_size, samples_per_task=samples)
    with collection_in(
        out,
        config,
        plans,
        formats,
        versions=package_versions(with_model=player.model is not None),
        command=command,
        license=None if options.license is None else options.license.to_json(),
    ) as (manifest, missing):
        waiting = set[int]()
        if options.deduplicate is not None:
            make_folder(out / PLAYED)
            remove_leftovers(out / PLAYED)
            waiting = waiting_shards(out, missing, manifest.fingerprint)
        if on_start is not None:
            num_waiting = sum(plan.num_episodes for plan in missing if plan.number in waiting)
            on_start(manifest.played.num_episodes + num_waiting, options.num_episodes)

        def on_event(event: Event) -> None:
            if not isinstance(event, ShardRecord):
                if on_played is not None:
                    on_played(event)
            elif options.deduplicate is None:
                manifest.shards[event.number] = event
                manifest.save(out)

        job = ShardJob(
            player=player,
            out=out,
            to=out if options.deduplicate is None else out / PLAYED,
            fingerprint=manifest.fingerprint,
            filters=filters,
        )
        to_play = [plan for plan in missing if plan.number not in waiting]
        if form is not None or (options.num_workers == 1 and not (supervised and player.may_hang)):
            play_shards(job, to_play, on_event)
        else:
            play_in_processes(job, to_play, options.num_workers, on_event)
        if options.deduplicate is not None:
            drop_duplicates(out, plans, manifest, options.deduplicate)
    return Collection(folder=out, manifest=manifest)


def _check(options: CollectOptions, form: PolicyForm | None) -> None:
    """ConfigurationError for options that do not go together."""
    samples = options.samples_per_task
    if not options.split:
        raise ConfigurationError("--split: name a split, such as train or val")
    if options.num_episodes % samples:
        raise ConfigurationError(
            f"--episodes: {options.num_episodes} is no multiple of --samples-per-task {samples}: groups are "
            "complete"
        )
    if samples > 1 and options.deduplicate is Duplicates.TASK:
        raise ConfigurationError(
            "--deduplicate task keeps one episode of each first observation, and --samples-per-task asks for "
            f"{samples}: use --deduplicate episode, or one of the two alone"
        )
    if form is not None and options.num_workers > 1:
        raise ConfigurationError(
            "num_workers: a policy that is an object plays in this process alone; name it for more, as "
            "package.module:Class"
        )
    if any(item.startswith("max_failed_share=") for item in options.overrides):
        raise ConfigurationError(
            "max_failed_share is a limit of evaluations: leave it out. A data set keeps what has a score; "
            "its card says how many failed"
        )
