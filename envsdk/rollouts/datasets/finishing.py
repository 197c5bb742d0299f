"""Shell: opens a collection, and finishes it after its last episode: duplicates, other formats, the card.

    with collection_in(folder, config, plans, formats, ...) as (manifest, missing):
        ...  # writes the missing shards and notes them in the manifest

    shards in .played/ --drop_duplicates--> shards --write_formats--> FORMAT/ --write_card--> README.md

Each step can be killed and done again; what is done is not repeated.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envsdk.base.store.atomic import make_folder, remove_leftovers, storage_error, write_atomically
from envsdk.base.store.shard_plan import ShardPlan
from envsdk.base.store.shards import (
    PLAYED,
    Manifest,
    Selection,
    account_for_shards,
    check_same_config,
    check_stamp,
    locked_folder,
    read_selection,
    refuse_foreign_shards,
    utc_now,
    wait_for_workers,
)
from envsdk.base.store.tally import Tally
from envsdk.base.store.trajectories import iter_trajectories
from envsdk.contracts.failures import StorageError
from envsdk.rollouts.datasets.card import CARD, card_text
from envsdk.rollouts.datasets.formats import ExportFormat, export, make_formats
from envsdk.rollouts.datasets.reading import DataSet
from envsdk.rollouts.datasets.selection import DUPLICATE, Deduplicator, Duplicates


@contextmanager
def collection_in(
    folder: Path,
    config: Mapping[str, Any],
    plans: Sequence[ShardPlan],
    formats: Sequence[ExportFormat],
    *,
    versions: Mapping[str, str],
    command: Sequence[str],
    license: Mapping[str, str] | None,
) -> Iterator[tuple[Manifest, list[ShardPlan]]]:
    """The manifest of the collection in `folder`, begun where there is none, and the plans that it lacks.

    Nobody else writes into the folder within the block. After it come formats and card.

    Args:
        versions: Of packages, for a new manifest.
        command: What was typed, for a new manifest.
        license: None keeps what the manifest has.

    Raises:
        ConfigurationError: The folder holds a different collection.
        StorageError: The folder cannot be written or is damaged.
    """
    make_folder(folder)
    with locked_folder(folder):
        wait_for_workers(folder)
        manifest = Manifest.load(folder)
        if manifest and manifest.config != dict(config) and not _has_episodes(folder, manifest):
            manifest = None  # of a start that was refused
        if manifest is None:
            refuse_foreign_shards(folder)
            refuse_foreign_card(folder)
            manifest = Manifest(
                config=dict(config),
                versions=dict(versions),
                command=list(command),
                num_planned=len(plans),
                created_at=utc_now(),
            )
        check_same_config(folder, manifest.config, dict(config))
        if license is not None:
            manifest.license = dict(license)
        remove_leftovers(folder)
        missing = account_for_shards(folder, plans, manifest)
        manifest.save(folder)
        yield manifest, missing
        if manifest.tally.num_episodes:
            write_formats(folder, manifest, formats)
        write_card(folder, manifest)


def _has_episodes(folder: Path, manifest: Manifest) -> bool:
    return bool(manifest.shards) or any(folder.rglob("part-*.parquet"))


def waiting_shards(folder: Path, plans: Sequence[ShardPlan], config_fingerprint: str) -> set[int]:
    """Numbers of the played shards that wait; StorageError names one of another collection."""
    found: set[int] = set()
    for plan in plans:
        path = folder / PLAYED / plan.file_name
        if path.exists():
            check_stamp(path, plan, config_fingerprint)
            found.add(plan.number)
    return found


def drop_duplicates(folder: Path, plans: Sequence[ShardPlan], manifest: Manifest, kind: Duplicates) -> None:
    """Move every waiting shard to its place, in order, without episodes that repeat earlier ones."""
    seen = Deduplicator(kind)
    last_missing = max((plan.number for plan in plans if plan.number not in manifest.shards), default=-1)
    for plan in plans:
        waiting, final = folder / PLAYED / plan.file_name, folder / plan.file_name
        if plan.number in manifest.shards:
            # Only what comes before a missing shard is asked for.
            for trajectory in iter_trajectories(final) if plan.number < last_missing else ():
                seen.is_new(trajectory)
        else:
            episodes = list(iter_trajectories(waiting))
            kept = [trajectory for trajectory in episodes if seen.is_new(trajectory)]
            earlier = read_selection(waiting) or Selection(played=Tally.of(episodes), dropped={})
            dropped = dict(earlier.dropped)
            if len(kept) < len(episodes):
                dropped[DUPLICATE] = len(episodes) - len(kept)
            selection = Selection(played=earlier.played, dropped=dropped)
            manifest.add_shard(folder, plan, kept, selection)
        try:
            waiting.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error("remove", waiting, error) from error
    shutil.rmtree(folder / PLAYED, ignore_errors=True)


def write_formats(folder: Path, manifest: Manifest, wanted: Sequence[ExportFormat]) -> None:
    """Write the requested formats, and earlier ones that no longer match the shards."""
    asked = {format.name: format for format in wanted}
    earlier = make_formats(name for name in manifest.exports if name not in asked)
    dataset = DataSet.collected(folder, manifest)
    for format in [*earlier, *wanted]:
        export(dataset, format, manifest)


def write_card(folder: Path, manifest: Manifest) -> None:
    """Write `README.md`; one that was edited by hand stays as it is."""
    path = folder / CARD
    text = card_text(manifest, name=folder.resolve().name).encode()
    try:
        there = path.read_bytes()
    except FileNotFoundError:
        there = None
    except OSError as error:
        raise storage_error("read", path, error) from error
    if there is not None and _digest(there) not in (manifest.card, _digest(text)):
        return
    # Noted before it is there: a kill in between leaves a card that is known as ours.
    if manifest.card != _digest(text):
        if there is not None:
            path.unlink()
        manifest.card = _digest(text)
        manifest.save(folder)
    write_atomically(path, text)


def refuse_foreign_card(folder: Path) -> None:
    """Refuse a README in a folder without a manifest: it belongs to something else."""
    if (folder / CARD).exists():
        raise StorageError(
            f"{folder} holds a {CARD}, which the data set's card would replace: choose another folder."
        )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
