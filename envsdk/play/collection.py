"""Play the episodes of a data set into its folder; what is there already is not played again.

    player = make_player(source, tags=episodes_by_tag, policy="oracle")
    collection = play_into(Path("demos"), player, episodes_by_tag, split="train", shard_size=100)

What is in the folder, and why a killed run can be continued, is said in `envsdk.store.shards`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envsdk.datasets.card import License
from envsdk.datasets.finishing import (
    drop_duplicates,
    refuse_foreign_card,
    waiting_shards,
    write_card,
    write_formats,
)
from envsdk.datasets.formats import make_formats
from envsdk.datasets.reading import tag_records
from envsdk.datasets.selection import Duplicates, EpisodeFilters, selection_config
from envsdk.failures import ConfigurationError
from envsdk.play.player import Player, package_versions
from envsdk.play.shard_play import Played, ShardJob, play_in_processes, play_shards
from envsdk.store.atomic import make_folder, remove_leftovers
from envsdk.store.shards import (
    PLAYED,
    Manifest,
    ShardRecord,
    account_for_shards,
    check_same_config,
    locked_folder,
    plan_shards,
    refuse_foreign_shards,
    utc_now,
    wait_for_workers,
)

_MIN_SHARD_SIZE, _MAX_SHARD_SIZE, _USUAL_NUM_SHARDS = 20, 500, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A complete data set on disk."""

    folder: Path
    manifest: Manifest

    @property
    def shards(self) -> list[Path]:
        """Its Parquet files, in order; `envsdk.store.trajectories.read_trajectories` reads one."""
        return [self.folder / self.manifest.shards[number].file for number in sorted(self.manifest.shards)]


def usual_shard_size(num_episodes: int) -> int:
    """A sixteenth of all episodes, within limits."""
    return min(_MAX_SHARD_SIZE, max(_MIN_SHARD_SIZE, -(-num_episodes // _USUAL_NUM_SHARDS)))


def play_into(
    out: Path,
    player: Player,
    episodes_by_tag: Mapping[str, int],
    *,
    split: str,
    shard_size: int,
    num_workers: int = 1,
    filters: EpisodeFilters | None = None,
    deduplicate: Duplicates | None = None,
    formats: Sequence[str] = (),
    license: License | None = None,
    command: Sequence[str] = (),
    supervised: bool = False,
    on_start: Callable[[int, int], None] | None = None,
    on_played: Callable[[Played], None] | None = None,
) -> Collection:
    """Play the first tasks of `split` into `out`, as many of each tag as given, except those that are there.

    The arguments are those of `envsdk.collect.collect`. Raises ConfigurationError and StorageError.
    """
    filters = filters or EpisodeFilters()
    if filters.max_tokens is not None and player.model is None:
        raise ConfigurationError(f"--max-tokens: the policy {player.policy} keeps no tokens; use --max-turns")
    num_episodes = sum(episodes_by_tag.values())
    plans = plan_shards(episodes_by_tag, split=split, shard_size=shard_size)
    config = {
        "episodes": dict(episodes_by_tag),
        "split": split,
        "shard_size": shard_size,
        **player.describe(),
        **selection_config(filters, deduplicate),
    }
    wanted = make_formats(formats)
    for each in wanted:
        each.check(tag_records(config))

    make_folder(out)
    with locked_folder(out):
        wait_for_workers(out)
        manifest = Manifest.load(out)
        if manifest is None:
            refuse_foreign_shards(out)
            refuse_foreign_card(out)
            manifest = Manifest(
                config=config,
                versions=package_versions(with_model=player.model is not None),
                command=list(command),
                num_planned=len(plans),
                created_at=utc_now(),
            )
        check_same_config(out, manifest.config, config)
        if license is not None:
            manifest.license = license.to_json()
        remove_leftovers(out)
        to_play = account_for_shards(out, plans, manifest)
        num_waiting = 0
        if deduplicate is not None:
            make_folder(out / PLAYED)
            remove_leftovers(out / PLAYED)
            waiting = waiting_shards(out, to_play, manifest.fingerprint)
            num_waiting = sum(plan.num_episodes for plan in to_play if plan.number in waiting)
            to_play = [plan for plan in to_play if plan.number not in waiting]
        manifest.save(out)
        if on_start is not None:
            on_start(manifest.played.num_episodes + num_waiting, num_episodes)

        def on_event(event: Played | ShardRecord) -> None:
            if not isinstance(event, ShardRecord):
                if on_played is not None:
                    on_played(event)
            elif deduplicate is None:
                manifest.shards[event.number] = event
                manifest.save(out)

        job = ShardJob(
            player=player,
            out=out,
            to=out if deduplicate is None else out / PLAYED,
            fingerprint=manifest.fingerprint,
            filters=filters,
        )
        if num_workers == 1 and not (supervised and player.may_hang):
            play_shards(job, to_play, on_event)
        else:
            play_in_processes(job, to_play, num_workers, on_event)
        if deduplicate is not None:
            drop_duplicates(out, plans, manifest, deduplicate)
        if manifest.tally.num_episodes:
            write_formats(out, manifest, wanted)
        write_card(out, manifest)
    return Collection(folder=out, manifest=manifest)
