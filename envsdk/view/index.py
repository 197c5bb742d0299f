"""An index of a source's trajectories in the cache folder, for lists, filters and searches.

    open (creates it if needed) -> refresh (reads new files) -> search | locate ...

One SQLite file per source. A trajectory file is written once and never changed, so the index of a running
job only reads new files. A resumed run may replace a file; the index then reads it again. The trajectories
stay in their files; a row holds the position.

    index = TrajectoryIndex.open(source)
    index.refresh()
    index.search(Filter(tag="Sokoban", success="no", limit=20))
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from envsdk.base.store.atomic import make_folder
from envsdk.base.store.cache import cache_folder
from envsdk.base.store.file_lock import locked
from envsdk.contracts.failures import EnvsdkError, StorageError
from envsdk.view.columns import COLUMNS
from envsdk.view.filters import Filter, FilterError
from envsdk.view.rows import IndexRow, rows_of_file
from envsdk.view.sources import Source, file_role, spread

SEARCH_LIMIT_S = 15.0
"""For one search."""
_BUSY_S = 60
"""Another viewer of the same source may be writing."""

_NAMES = ", ".join(each.name for each in COLUMNS)
_TABLES = f"""
CREATE TABLE files (
    id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    error TEXT NOT NULL
);
CREATE TABLE next (id INTEGER NOT NULL);
INSERT INTO next VALUES (1);
CREATE TABLE trajectories (id INTEGER PRIMARY KEY, file INTEGER NOT NULL, {_NAMES});
CREATE INDEX by_group ON trajectories (origin, grp);
CREATE INDEX by_task ON trajectories (split, task);
CREATE INDEX by_failure ON trajectories (boundary, failure) WHERE boundary <> '';
CREATE VIRTUAL TABLE texts USING fts5(text, content='', columnsize=0, tokenize="unicode61 tokenchars '_'");
"""
_FORMAT = zlib.crc32(_TABLES.encode()) % 2**31
"""An index of other tables is deleted and built again."""

_LISTED = f"t.id, f.name AS file, {', '.join(f't.{each.name}' for each in COLUMNS)}"

_JOINED = "trajectories t JOIN files f ON f.id = t.file"

Progress = Callable[[int, int], None]
"""Called with the numbers of files read and to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One page of what a filter finds."""

    total: int
    rows: list[dict[str, Any]]
    facets: dict[str, list[tuple[str, int]]]
    """For each field one may filter by: its values and how many trajectories each would leave."""


class TrajectoryIndex:
    """The index of one source. Thread-safe: each call opens a connection of its own."""

    def __init__(self, source: Source, path: Path) -> None:
        self.source = source
        self.path = path

    @classmethod
    def open(cls, source: Source, *, folder: Path | None = None) -> Self:
        """The index in `folder`, the cache by default. StorageError when it cannot be written there."""
        folder = folder or cache_folder() / "view"
        make_folder(folder)
        index = cls(source, folder / f"{source.source_id}.sqlite")
        # Half of what another process creates would look damaged.
        with locked(folder / f".{source.source_id}.lock", patience_s=_BUSY_S):
            try:
                index._create()
            except sqlite3.DatabaseError:
                # Damaged, or of another program: everything in it can be read again.
                for path in folder.glob(f"{index.path.name}*"):
                    path.unlink(missing_ok=True)
                index._create()
        return index

    def refresh(self, on_progress: Progress | None = None) -> int:
        """Read the new files of the source; returns their number.

        A file that cannot be read is noted (`problems`), and tried again when it changes.
        """
        there = {}
        for path in self.source.trajectory_files():
            try:
                stat = path.stat()
            except OSError:
                continue
            there[path.name] = (path, stat.st_size, stat.st_mtime_ns)
        with self._connect() as db:
            known = {
                name: (size, mtime)
                for name, size, mtime in db.execute("SELECT name, size, mtime_ns FROM files")
            }
        changed = [name for name, (_, *stamp) in there.items() if known.get(name) != tuple(stamp)]
        gone = known.keys() - there.keys()
        if gone:
            with self._connect() as db:
                for name in gone:
                    self._forget(db, name)
        for number, name in enumerate(changed):
            if on_progress is not None:
                on_progress(number, len(changed))
            self._read(*there[name])
        if on_progress is not None and changed:
            on_progress(len(changed), len(changed))
        return len(changed)

    def search(self, wanted: Filter) -> Found:
        """One page, the number of all, and how many each value of a facet would leave."""
        with self._connect() as db, _limited(db):
            found = _holding(db, wanted)
            where, values = wanted.where()
            # Only ids are sorted; the rows of the page are looked up by them.
            order = f"ORDER BY {wanted.order()}"
            ids = f"SELECT t.id FROM trajectories t WHERE {where}{found} {order} LIMIT ? OFFSET ?"
            page = f"SELECT {_LISTED} FROM {_JOINED} WHERE t.id IN ({ids}) {order}"
            rows = [dict(row) for row in db.execute(page, [*values, wanted.limit, wanted.offset])]
            total, facets = self._facets(db, wanted, found)
        return Found(total=total, rows=rows, facets=facets)

    def locate(self, file: str, row: int) -> dict[str, Any] | None:
        """The row of one trajectory; None when the index has none."""
        query = f"SELECT {_LISTED} FROM {_JOINED} WHERE f.name = ? AND t.row = ?"
        with self._connect() as db:
            found = db.execute(query, (file, row)).fetchone()
        return None if found is None else dict(found)

    def neighbors(self, wanted: Filter, file: str, row: int) -> tuple[str | None, str | None, int, int]:
        """Before and behind one in a filter's order: their keys, its place from 0, and the total.

        The place is -1 when the filter does not find it.
        """
        with self._connect() as db, _limited(db):
            found = _holding(db, wanted)
            where, values = wanted.where()
            names = dict(tuple(row) for row in db.execute("SELECT id, name FROM files"))
            query = f"SELECT t.file, t.row FROM trajectories t WHERE {where}{found} ORDER BY {wanted.order()}"
            places = [(names[number], at) for number, at in db.execute(query, values)]
        try:
            place = places.index((file, row))
        except ValueError:
            return None, None, -1, len(places)
        before = key(*places[place - 1]) if place else None
        behind = key(*places[place + 1]) if place + 1 < len(places) else None
        return before, behind, place, len(places)

    def failures(self) -> list[dict[str, Any]]:
        """Counts by boundary, kind and tag, each with one message, the most frequent first."""
        query = (
            "SELECT boundary, failure AS kind, tag, count(*) AS count, min(step) AS first_step,"
            " max(step) AS last_step, message FROM trajectories WHERE boundary <> ''"
            " GROUP BY boundary, failure, tag ORDER BY count(*) DESC"
        )
        with self._connect() as db:
            return [dict(row) for row in db.execute(query)]

    def summary(self) -> dict[str, Any]:
        """Counts over everything: trajectories, successes, failures, sampled tokens, by tag."""
        query = (
            "SELECT tag, use, count(*) AS count, sum(outcome = 'failed') AS failed,"
            " coalesce(sum(success), 0) AS successes,"
            " sum(sampled) AS sampled, avg(CASE WHEN outcome <> 'failed' THEN reward END) AS reward,"
            " avg(CASE WHEN outcome <> 'failed' THEN turns END) AS turns FROM trajectories"
            " GROUP BY tag, use ORDER BY tag, use"
        )
        with self._connect() as db:
            by_tag = [dict(row) for row in db.execute(query)]
        return {"count": sum(row["count"] for row in by_tag), "by_tag": by_tag}

    def examples(self) -> list[dict[str, str]]:
        """The best, the worst and the last failed trajectory of each tag: `tag`, `why` and `key`.

        Of several that are equally good or bad it is the last.
        """
        found = []
        with self._connect() as db:
            for why, (where, order) in _EXAMPLES.items():
                ranked = (
                    f"SELECT *, row_number() OVER (PARTITION BY tag ORDER BY {order} id DESC) AS place"
                    f" FROM trajectories WHERE {where}"
                )
                joined = f"({ranked}) t JOIN files f ON f.id = t.file"
                query = f"SELECT t.tag, f.name, t.row FROM {joined} WHERE place = 1"
                found += [{"tag": tag, "why": why, "key": key(*row)} for tag, *row in db.execute(query)]
        return sorted(found, key=lambda one: (one["tag"], list(_EXAMPLES).index(one["why"])))

    def count(self) -> int:
        """Trajectories in it."""
        with self._connect() as db:
            (count,) = db.execute("SELECT count(*) FROM trajectories").fetchone()
        return int(count)

    def sample(self, number: int) -> list[dict[str, Any]]:
        """At most `number` trajectories in the order of writing: see `pick`. Examples are among them."""
        places = [parse_key(one["key"]) for one in self.examples()]
        examples = [self.locate(*place) for place in places if place is not None]
        with self._connect() as db:
            query = "SELECT id, origin || '/' || grp, outcome = 'failed' FROM trajectories ORDER BY id"
            rows = [tuple(row) for row in db.execute(query)]
            ids = pick(rows, number, first=[one["id"] for one in examples if one is not None])
            listed = f"SELECT {_LISTED} FROM {_JOINED} WHERE t.id = ?"
            return [dict(db.execute(listed, (each,)).fetchone()) for each in ids]

    def problems(self) -> list[str]:
        """One sentence for each file that cannot be read."""
        with self._connect() as db:
            return [
                error for (error,) in db.execute("SELECT error FROM files WHERE error <> '' ORDER BY name")
            ]

    def _facets(
        self, db: sqlite3.Connection, wanted: Filter, found: str
    ) -> tuple[int, dict[str, list[tuple[str, int]]]]:
        """How many trajectories the filter finds, and how many each value of a facet would leave.

        One pass counts all combinations; a facet that is chosen takes another, without its own condition.
        """
        where, values = wanted.where()
        names = ", ".join(_FACETS.values())
        query = f"SELECT {names}, count(*) FROM trajectories t WHERE {where}{found} GROUP BY {names}"
        combinations = [tuple(row) for row in db.execute(query, values)]
        facets = {}
        for place, (name, expression) in enumerate(_FACETS.items()):
            counts: Counter[str] = Counter()
            if getattr(wanted, name):
                where, values = wanted.where(without=name)
                query = f"SELECT {expression}, count(*) FROM trajectories t WHERE {where}{found} GROUP BY 1"
                counts.update(dict(tuple(row) for row in db.execute(query, values)))
            else:
                for row in combinations:
                    counts[row[place]] += row[-1]
            facets[name] = sorted((value, count) for value, count in counts.items() if value)
        return sum(row[-1] for row in combinations), facets

    def _read(self, path: Path, size: int, mtime_ns: int) -> None:
        """Put one file into the index, in one transaction."""
        with self._connect() as db:
            db.execute("BEGIN IMMEDIATE")
            same = "SELECT 1 FROM files WHERE name = ? AND size = ? AND mtime_ns = ?"
            if db.execute(same, (path.name, size, mtime_ns)).fetchone():
                return
            if db.execute("SELECT 1 FROM files WHERE name = ?", (path.name,)).fetchone():
                self._forget(db, path.name)
            # Texts of removed rows stay in `texts`, under ids that are never used again.
            (first,) = db.execute("SELECT id FROM next").fetchone()
            error, num_rows = "", 0
            file_id = db.execute(
                "INSERT INTO files (name, size, mtime_ns, error) VALUES (?, ?, ?, '')",
                (path.name, size, mtime_ns),
            ).lastrowid
            assert file_id is not None
            db.execute("SAVEPOINT rows")
            try:
                for rows in rows_of_file(path, file_role(path.name, self.source.kind)):
                    _insert(db, file_id, first + num_rows, rows)
                    num_rows += len(rows)
            except EnvsdkError as problem:
                db.execute("ROLLBACK TO rows")
                error, num_rows = str(problem), 0
            db.execute("UPDATE files SET error = ? WHERE id = ?", (error, file_id))
            db.execute("UPDATE next SET id = id + ?", (num_rows,))

    def _forget(self, db: sqlite3.Connection, name: str) -> None:
        db.execute("DELETE FROM trajectories WHERE file IN (SELECT id FROM files WHERE name = ?)", (name,))
        db.execute("DELETE FROM files WHERE name = ?", (name,))

    def _create(self) -> None:
        with self._connect() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == _FORMAT:
                return
            if version != 0 or db.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise sqlite3.DatabaseError(f"index of format {version}")
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(f"{_TABLES} PRAGMA user_version = {_FORMAT};")

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """Commits when the block ends well."""
        try:
            db = sqlite3.connect(self.path, timeout=_BUSY_S)
        except sqlite3.OperationalError as error:
            raise StorageError(
                f"the index {self.path} cannot be opened ({error}): set ENVSDK_CACHE to another folder"
            ) from error
        try:
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA synchronous = OFF")  # Lost with a power cut, made again.
            db.execute("PRAGMA temp_store = MEMORY")
            with db:
                yield db
        finally:
            db.close()


def _holding(db: sqlite3.Connection, wanted: Filter) -> str:
    """A further condition: that a trajectory holds the words of the filter, which are looked up once."""
    if not wanted.text:
        return ""
    db.execute("CREATE TEMP TABLE found (id INTEGER PRIMARY KEY)")
    if wanted.match:
        db.execute("INSERT INTO found SELECT rowid FROM texts WHERE texts MATCH ?", (wanted.match,))
    return " AND t.id IN (SELECT id FROM found)"


@contextmanager
def _limited(db: sqlite3.Connection) -> Iterator[None]:
    """FilterError when the block takes longer than `SEARCH_LIMIT_S`."""
    until = time.monotonic() + SEARCH_LIMIT_S
    db.set_progress_handler(lambda: int(time.monotonic() > until), 1_000)
    try:
        yield
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        raise FilterError(
            f"q: the search took more than {SEARCH_LIMIT_S:.0f} s; put its words in quotes, or filter by more"
        ) from error
    finally:
        db.set_progress_handler(None, 0)


_EXAMPLES = {
    "best": ("outcome <> 'failed'", "success DESC, reward DESC,"),
    "worst": ("outcome <> 'failed'", "success, reward,"),
    "failed": ("outcome = 'failed'", ""),
}
"""Trajectories worth reading: which are candidates, and in which order."""

_FACETS = {
    "tag": "t.tag",
    "use": "t.use",
    "success": "CASE WHEN t.outcome = 'failed' THEN 'failed' WHEN t.success THEN 'yes' ELSE 'no' END",
    "failure": "CASE WHEN t.boundary = '' THEN '' ELSE t.boundary || '/' || t.failure END",
}


def pick(rows: Sequence[tuple[int, str, int]], number: int, *, first: Sequence[int] = ()) -> list[int]:
    """Ids of at most `number` of the rows `(id, group, is_failed)`, in their order.

    The ids in `first` come first. Of the rest up to a quarter are failed ones; the others are complete
    groups, those of `first` and then others at even distances, as far as they fit.
    """
    picked = set(first[:number])
    failed = [row for row, _, is_failed in rows if is_failed and row not in picked]
    picked.update(spread(failed, min(number // 4, number - len(picked))))
    groups: dict[str, list[int]] = {}
    for row, group, is_failed in rows:
        if not is_failed:
            groups.setdefault(group, []).append(row)
    begun = [members for members in groups.values() if picked.intersection(members)]
    others = [members for members in groups.values() if not picked.intersection(members)]
    room = number - len(picked) - sum(len(set(members) - picked) for members in begun)
    if others:
        begun += spread(others, max(1, int(room * len(others) / sum(map(len, others)))))
    for members in begun:
        picked.update([row for row in members if row not in picked][: number - len(picked)])
    return sorted(picked)


def key(file: str, row: int) -> str:
    """How a URL names a trajectory: `step_000004:17`."""
    return f"{file.removesuffix('.parquet')}:{row}"


def parse_key(text: str) -> tuple[str, int] | None:
    """The file and the row that `key` named; None when it is no key."""
    stem, _, row = text.rpartition(":")
    return (f"{stem}.parquet", int(row)) if stem and row.isdecimal() and len(row) < 10 else None


def _insert(db: sqlite3.Connection, file_id: int, first: int, rows: list[IndexRow]) -> None:
    marks = ", ".join("?" * (2 + len(COLUMNS)))
    db.executemany(
        f"INSERT INTO trajectories VALUES ({marks})",
        ((first + offset, file_id, *values) for offset, (values, _) in enumerate(rows)),
    )
    db.executemany(
        "INSERT INTO texts (rowid, text) VALUES (?, ?)",
        ((first + offset, text) for offset, (_, text) in enumerate(rows)),
    )
