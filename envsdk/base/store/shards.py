"""A collection on disk: numbered shards of trajectories, and a manifest that accounts for them.

    DIR/manifest.json  part-00000.parquet  part-00001.parquet ...  .lock

Episodes that filters drop are counted in their shard's footer. Where duplicates are dropped, a shard waits
in DIR/.played/ until those before it are done, since the first of each kind is kept.

The plan is a function of what was asked for: shard n always holds the same tasks, so the shards that
are there are the cursor. A run that was killed resumes by playing the missing shards, so no episode is
repeated or lost. Shards are written atomically (`envsdk.base.store.atomic`), and the
manifest is rewritten after each.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsdk.base.store.atomic import storage_error, write_json_atomically
from envsdk.base.store.file_lock import locked, wait_for_lock
from envsdk.base.store.shard_plan import ShardPlan
from envsdk.base.store.tally import Tally
from envsdk.base.store.trajectories import iter_trajectories, read_metadata, write_trajectories
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.contracts.trajectory import Trajectory

MANIFEST = "manifest.json"
FORMAT = "envsdk.collection/1"
PLAYED = ".played"
"""Folder of shards that were played and not yet searched for duplicates."""
_COUNTS_KEY = "envsdk.counts"
_LOCK_PATIENCE_S = 1.0
_WORKER_PATIENCE_S = 20.0
"""Workers of a killed run end within milliseconds, unless the machine is very busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """What the manifest knows of a shard that is on disk."""

    number: int
    file: str
    tag: str
    first_index: int
    num_episodes: int
    """In the file."""
    sha256: str
    tally: Tally
    """Tally of the episodes in the file."""
    selection: Selection | None = None
    """None when everything that was played is in the file."""

    @property
    def played(self) -> Tally:
        """Tally of all episodes played for this shard."""
        return self.tally if self.selection is None else self.selection.played

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "file": self.file,
            "tag": self.tag,
            "first_index": self.first_index,
            "episodes": self.num_episodes,
            "sha256": self.sha256,
            "counts": self.tally.to_json(),
            **({} if self.selection is None else self.selection.to_json()),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShardRecord:
        return cls(
            number=value["number"],
            file=value["file"],
            tag=value["tag"],
            first_index=value["first_index"],
            num_episodes=value["episodes"],
            sha256=value["sha256"],
            tally=Tally.from_json(value["counts"]),
            selection=Selection.from_json(value) if "played" in value else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was played for a shard from which episodes were dropped."""

    played: Tally
    dropped: Mapping[str, int]
    """Episodes by the reason why they are not in the file."""

    def to_json(self) -> dict[str, Any]:
        return {"played": self.played.to_json(), "dropped": dict(sorted(self.dropped.items()))}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Selection:
        return cls(played=Tally.from_json(value["played"]), dropped=dict(value["dropped"]))


def record_shard(
    folder: Path, plan: ShardPlan, tally: Tally, selection: Selection | None = None
) -> ShardRecord:
    """The record of a shard that was just written."""
    return ShardRecord(
        number=plan.number,
        file=plan.file_name,
        tag=plan.tag,
        first_index=plan.first_index,
        num_episodes=tally.num_episodes,
        sha256=file_sha256(folder / plan.file_name),
        tally=tally,
        selection=selection,
    )


def file_sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise storage_error("read", path, error) from error


@dataclass(slots=True)
class Manifest:
    """What is in a collection and how it was made.

    start or load -> add_shard* -> complete; saved after every step
    """

    config: dict[str, Any]
    """All that decides which episodes are played and how."""
    versions: dict[str, str]
    """Versions of Python, envsdk and the packages it builds on, when the collection was started."""
    command: list[str]
    """The latest command line, or empty when called from Python."""
    num_planned: int
    """Shards that will be there when the collection is complete."""
    created_at: str
    """UTC, ISO 8601."""
    shards: dict[int, ShardRecord] = field(default_factory=dict)
    """Shards by number."""
    exports: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Other formats by name: `of` (digest of the shards), `episodes`, `files` (a pattern, or None)."""
    license: dict[str, str] = field(default_factory=lambda: {"license": "unknown"})
    """Fields of the card's front matter."""
    card: str = ""
    """Digest of the card that was written last; empty before."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal `config`; stamped on every shard."""
        return fingerprint(self.config)

    @property
    def is_complete(self) -> bool:
        return len(self.shards) == self.num_planned

    @property
    def tally(self) -> Tally:
        """Tally of all shards on disk."""
        return Tally.sum(record.tally for record in self.shards.values())

    @property
    def played(self) -> Tally:
        """Tally of all episodes that were played, kept or not."""
        return Tally.sum(record.played for record in self.shards.values())

    @property
    def dropped(self) -> dict[str, int]:
        """Episodes by the reason why they were not kept."""
        total: Counter[str] = Counter()
        for record in self.shards.values():
            if record.selection is not None:
                total.update(record.selection.dropped)
        return dict(total)

    @property
    def tally_by_tag(self) -> dict[str, Tally]:
        tags = dict.fromkeys(self.shards[number].tag for number in sorted(self.shards))
        return {
            tag: Tally.sum(record.tally for record in self.shards.values() if record.tag == tag)
            for tag in tags
        }

    def to_json(self) -> dict[str, Any]:
        has_selection = any(record.selection is not None for record in self.shards.values())
        return {
            "format": FORMAT,
            "complete": self.is_complete,
            "created_at": self.created_at,
            "updated_at": utc_now(),
            "command": self.command,
            "config": self.config,
            "versions": self.versions,
            "counts": {
                **self.tally.to_json(),
                "by_tag": {tag: tally.to_json() for tag, tally in self.tally_by_tag.items()},
            },
            **({"played": self.played.to_json(), "dropped": self.dropped} if has_selection else {}),
            "license": self.license,
            "exports": self.exports,
            "card": self.card,
            "planned_shards": self.num_planned,
            "shards": [self.shards[number].to_json() for number in sorted(self.shards)],
        }

    def save(self, folder: Path) -> None:
        write_json_atomically(folder / MANIFEST, self.to_json())

    def add_shard(
        self, folder: Path, plan: ShardPlan, episodes: Sequence[Trajectory], selection: Selection | None
    ) -> None:
        """Write a shard, as `write_shard`, and save its record."""
        self.shards[plan.number] = write_shard(folder, plan, episodes, self.fingerprint, selection)
        self.save(folder)

    @classmethod
    def load(cls, folder: Path) -> Manifest | None:
        """The manifest in `folder`, None when there is none; StorageError when it is damaged."""
        path = folder / MANIFEST
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            if value["format"] != FORMAT:
                raise StorageError(
                    f"{path} has format {value['format']!r}, not {FORMAT!r}: choose another folder."
                )
            records = [ShardRecord.from_json(entry) for entry in value["shards"]]
            return cls(
                config=value["config"],
                versions=value["versions"],
                command=value["command"],
                num_planned=value["planned_shards"],
                created_at=value["created_at"],
                shards={record.number: record for record in records},
                exports=value.get("exports", {}),
                license=value.get("license", {"license": "unknown"}),
                card=value.get("card", ""),
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read", path, error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(
                f"{path} is damaged ({type(error).__name__}: {error}). "
                "Delete it together with its shards, or choose another folder."
            ) from error


def fingerprint(config: Mapping[str, Any]) -> str:
    """A digest of a JSON-like value; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:32]


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def shard_metadata(
    config_fingerprint: str, plan: ShardPlan, selection: Selection | None = None
) -> dict[str, str]:
    """Stamped on a shard, so that it is known without the manifest."""
    counts = {} if selection is None else {_COUNTS_KEY: json.dumps(selection.to_json())}
    return {"envsdk.collection": config_fingerprint, "envsdk.shard": str(plan.number), **counts}


def write_shard(
    folder: Path,
    plan: ShardPlan,
    episodes: Sequence[Trajectory],
    config_fingerprint: str,
    selection: Selection | None = None,
) -> ShardRecord:
    """Write the episodes that are kept, with what is known of the others. Raises StorageError."""
    metadata = shard_metadata(config_fingerprint, plan, selection)
    write_trajectories(folder / plan.file_name, episodes, metadata=metadata)
    return record_shard(folder, plan, Tally.of(episodes), selection)


def check_stamp(path: Path, plan: ShardPlan, config_fingerprint: str) -> None:
    """StorageError unless the shard at `path` is that one of this collection."""
    found = {key: value.decode(errors="replace") for key, value in read_metadata(path).items()}
    if not shard_metadata(config_fingerprint, plan).items() <= found.items():
        raise StorageError(
            f"{path} belongs to another collection. Delete it, or choose another folder for this one."
        )


def read_selection(path: Path) -> Selection | None:
    """What a shard's footer says of the episodes played for it; None when nothing was dropped."""
    counts = read_metadata(path).get(_COUNTS_KEY)
    return None if counts is None else Selection.from_json(json.loads(counts))


def check_same_config(folder: Path, there: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse to mix two collections in one folder; the error names what differs."""
    differences = list(_differences(there, asked))
    if differences:
        listed = "\n".join(f"  {line}" for line in differences[:10])
        more = f"\n  and {len(differences) - 10} more" if len(differences) > 10 else ""
        raise ConfigurationError(
            f"{folder} holds another collection:\n{listed}{more}\n"
            "Repeat the earlier command to continue it, or choose another --out."
        )


def _differences(there: Any, asked: Any, path: str = "") -> Iterator[str]:
    if isinstance(there, Mapping) and isinstance(asked, Mapping):
        for key in dict.fromkeys([*there, *asked]):
            at = f"{path}.{key}" if path else str(key)
            if key not in there:
                yield f"{at}: absent there, {_short(asked[key])} now"
            elif key not in asked:
                yield f"{at}: {_short(there[key])} there, absent now"
            else:
                yield from _differences(there[key], asked[key], at)
    elif there != asked:
        yield f"{path}: {_short(there)} there, {_short(asked)} now"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def account_for_shards(folder: Path, plans: Sequence[ShardPlan], manifest: Manifest) -> list[ShardPlan]:
    """Bring `manifest` in line with the files in `folder`; returns the shards still to be played.

    A shard whose content is not what was recorded, or that belongs to another collection, is a
    StorageError: deleting it is for the user to decide.
    """
    recorded, manifest.shards = manifest.shards, {}
    missing: list[ShardPlan] = []
    for plan in plans:
        path = folder / plan.file_name
        if not path.exists():
            missing.append(plan)
            continue
        record = recorded.get(plan.number)
        if record is None:
            # Written just before the run was killed, before the manifest was.
            check_stamp(path, plan, manifest.fingerprint)
            record = record_shard(folder, plan, Tally.of(iter_trajectories(path)), read_selection(path))
        elif file_sha256(path) != record.sha256:
            raise StorageError(
                f"{path} is not the file that {folder / MANIFEST} records. "
                "Delete it, and run the same command again to collect its episodes anew."
            )
        manifest.shards[plan.number] = record
    return missing


def refuse_foreign_shards(folder: Path) -> None:
    """Refuse shards without a manifest: they belong to something else and are not overwritten."""
    shard = next(iter(sorted(folder.glob("part-*.parquet"))), None)
    if shard is not None:
        raise StorageError(
            f"{folder} holds {shard.name} but no {MANIFEST}: it is no collection that can be continued. "
            "Choose another folder, or delete its shards."
        )


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep a second collection out of `folder`; the lock goes with the process, however it ends."""
    taken = StorageError(
        f"Another process is collecting into {folder}. Wait for it, or choose another folder."
    )
    with locked(folder / ".lock", patience_s=_LOCK_PATIENCE_S, taken=taken):
        yield


def share_worker_lock(folder: Path) -> None:
    """Called once by a worker process: its death can then be waited for with `wait_for_workers`."""
    global _worker_lock
    _worker_lock = (folder / ".workers.lock").open("w")
    wait_for_lock(_worker_lock.fileno(), fcntl.LOCK_SH, _WORKER_PATIENCE_S)


_worker_lock: Any = None
"""Open as long as this worker process lives."""


def wait_for_workers(folder: Path) -> None:
    """Let the workers of a run that was killed end before the folder is looked at."""
    taken = StorageError(
        f"Workers of an earlier run still write into {folder}. End them, or choose another folder."
    )
    with locked(folder / ".workers.lock", patience_s=_WORKER_PATIENCE_S, taken=taken):
        pass
