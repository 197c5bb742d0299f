"""Shell: finishes a collection after its last episode: duplicates, other formats, the card.

    shards in .played/ --drop_duplicates--> shards --write_formats--> FORMAT/ --write_card--> README.md

Each step can be killed and done again; what is done is not repeated.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from envsdk.datasets.card import CARD, card_text
from envsdk.datasets.formats import ExportFormat, export, make_formats
from envsdk.datasets.reading import DataSet, tag_records
from envsdk.datasets.selection import DUPLICATE, Deduplicator, Duplicates
from envsdk.failures import StorageError
from envsdk.store.atomic import storage_error, write_atomically
from envsdk.store.shard_plan import ShardPlan
from envsdk.store.shards import (
    PLAYED,
    Manifest,
    Selection,
    check_stamp,
    read_selection,
    record_shard,
    write_shard,
)
from envsdk.store.tally import Tally
from envsdk.store.trajectories import iter_trajectories


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
            write_shard(final, plan, kept, manifest.fingerprint, selection)
            manifest.shards[plan.number] = record_shard(folder, plan, Tally.of(kept), selection)
            manifest.save(folder)
        try:
            waiting.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error("remove", waiting, error) from error
    shutil.rmtree(folder / PLAYED, ignore_errors=True)


def write_formats(folder: Path, manifest: Manifest, wanted: Sequence[ExportFormat]) -> None:
    """Write the requested formats, and earlier ones that no longer match the shards."""
    asked = {format.name: format for format in wanted}
    earlier = make_formats(name for name in manifest.exports if name not in asked)
    dataset = DataSet(
        folder=folder,
        shards=[folder / manifest.shards[number].file for number in sorted(manifest.shards)],
        tags=tag_records(manifest.config),
        manifest=manifest,
    )
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
