"""How a store is made; the command line is `envsdk.envs.webshop.build`.

    sources -> table -> products -> goals, labels, index -> manifest

Products are saved every `_SAVE_EVERY` records, in one transaction of the table's database with how far
they are; after a kill their files are cut back to that. What follows takes less and is done again.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envsdk.base.store.atomic import fsync_path, make_folder, storage_error, write_json_atomically
from envsdk.base.store.file_lock import locked
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.webshop.columns import PIECE, create_column
from envsdk.envs.webshop.goal_files import write_goals
from envsdk.envs.webshop.goals import PRICE_SEED
from envsdk.envs.webshop.index import RANKS
from envsdk.envs.webshop.index_builder import IndexBuilder
from envsdk.envs.webshop.json_stream import ArrayReader, BadData, read_object
from envsdk.envs.webshop.nouns import Tagger, make_tagger
from envsdk.envs.webshop.product_files import ProductFiles, write_grouped
from envsdk.envs.webshop.products import BadRecord, Product, index_text, is_skipped, is_unicode, load_product
from envsdk.envs.webshop.store import (
    BY_CATEGORY,
    BY_QUERY,
    FILES,
    FORMAT,
    LABELS,
    MANIFEST,
    file_digest,
    is_complete,
)

_SAVE_EVERY = 20_000
_BATCH = 500
_WORK = ".build"
_WORK_FORMAT = 2
"""Format of the files in it; with others a build starts anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What decides a store besides the files."""

    items: str | None = None
    """Name of the file of products; by default the only `items_shuffle*.json`, or `items_shuffle.json`."""
    tagger: str = "auto"
    """See `envsdk.envs.webshop.nouns.make_tagger`."""
    num_products: int | None = None
    """Records of the file to use, before any is left out."""
    skip_bad: bool = False
    """Leave out records that cannot be loaded."""
    price_seed: int = PRICE_SEED


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The raw files."""

    items: Path
    attributes: Path
    human: Path

    def describe(self) -> list[dict[str, Any]]:
        stats = [(path.name, path.stat()) for path in (self.items, self.attributes, self.human)]
        return [{"name": name, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns} for name, stat in stats]


@dataclass(slots=True, kw_only=True)
class _State:
    """How far the products are."""

    made_of: dict[str, Any]
    is_read: bool = False
    """All of them."""
    offset: int = 0
    num_read: int = 0
    num_products: int = 0
    num_runs: int = 0
    skipped: dict[str, int] = field(default_factory=lambda: {"asin": 0, "duplicate": 0, "bad": 0})
    labels: dict[str, dict[str, int]] = field(default_factory=lambda: {"query": {}, "category": {}})


def build(
    data: Path,
    out: Path,
    options: BuildOptions | None = None,
    *,
    tell: Callable[[str, float], None] = lambda what, share: None,
    tagger: Tagger | None = None,
) -> None:
    """Make the store of the raw files in `data`, or what is missing of it, in `out`.

    Args:
        tagger: Replaces the one that `options` name.

    A complete store of the same files and options is left as it is. Raises BadData (ConfigurationError) when
    a file is missing or holds a record that cannot be loaded, StorageError when `out` cannot be written.
    """
    options = options or BuildOptions()
    try:
        tagger = tagger or make_tagger(options.tagger)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    sources = find_sources(data, options.items)
    made_of = {"files": sources.describe(), **asdict(options), "tagger": tagger.name, "format": FORMAT}
    make_folder(out)
    try:
        with locked(out / ".lock", patience_s=math.inf):
            manifest = json.loads((out / MANIFEST).read_text()) if is_complete(out) else {}
            if manifest.get("made_of") != made_of:
                _Build(sources, out, options, tagger, made_of, tell).run()
    except OSError as error:
        raise storage_error("write", out, error) from error


def find_sources(data: Path, items: str | None = None) -> Sources:
    """The raw files in `data`; BadData says which is missing and where WebShop's are to be had."""
    full = data / "items_shuffle.json"
    chosen = data / items if items is not None else full
    if items is None and not full.exists():
        found = sorted(data.glob("items_shuffle*.json"))
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise BadData(f"{data}: has several files of products ({names}); choose one with --items")
        chosen = found[0] if found else full
    size = chosen.stem.removeprefix("items_shuffle")
    attributes = data / f"items_ins_v2{size}.json"
    if not attributes.exists():
        attributes = data / "items_ins_v2.json"
    sources = Sources(items=chosen, attributes=attributes, human=data / "items_human_ins.json")
    for path in (sources.items, sources.attributes, sources.human):
        if not path.is_file():
            raise BadData(
                f"{path}: missing. WebShop's data are items_shuffle.json, items_ins_v2.json and "
                "items_human_ins.json (or the first two with _1000); setup.sh of princeton-nlp/WebShop "
                "downloads them"
            )
    return sources


class _Build:
    """One build: owns the work folder and the database in it."""

    def __init__(
        self,
        sources: Sources,
        out: Path,
        options: BuildOptions,
        tagger: Tagger,
        made_of: dict[str, Any],
        tell: Callable[[str, float], None],
    ) -> None:
        self._sources, self._out, self._options, self._tagger = sources, out, options, tagger
        self._work = out / _WORK
        self._state = _State(made_of=made_of)
        self._tell = tell
        self._index = IndexBuilder(self._work)
        (self._out / MANIFEST).unlink(missing_ok=True)
        self._work.mkdir(exist_ok=True)
        self._table = sqlite3.connect(self._work / "table.db")

    def run(self) -> None:
        with closing(self._table):
            if not self._resume():
                self._make_table()
            self._index.resume(self._state.num_products, self._state.num_runs)
            if not self._state.is_read:
                self._read_products()
            if not self._state.num_products:
                raise BadData(f"{self._sources.items}: holds no product that can be used")
            self._write_ranks()
        self._tell("goals", 0.0)
        num_goals = write_goals(self._work, seed=self._options.price_seed, tell=self._tell)
        self._write_labels()
        self._tell("search index", 0.0)
        self._index.finish(self._work, tell=lambda share: self._tell("search index", share))
        self._finish(num_goals)

    def _resume(self) -> bool:
        """Go on where another build of the same was; False when there is none."""
        try:
            [version] = self._table.execute("PRAGMA user_version").fetchone()
            row = self._table.execute("SELECT state FROM state").fetchone()
        except sqlite3.DatabaseError:
            return False
        if row is None or version != _WORK_FORMAT:
            return False
        state = _State(**json.loads(row[0]))
        if state.made_of != self._state.made_of:
            return False
        self._state = state
        return True

    def _make_table(self) -> None:
        """Attributes and instructions by asin, on disk."""
        self._table.executescript(
            f"""
            PRAGMA user_version = {_WORK_FORMAT};
            DROP TABLE IF EXISTS attributes; DROP TABLE IF EXISTS human;
            DROP TABLE IF EXISTS seen; DROP TABLE IF EXISTS state;
            CREATE TABLE attributes (asin TEXT, entry TEXT);
            CREATE TABLE human (asin TEXT, entry TEXT);
            CREATE TABLE seen (asin TEXT PRIMARY KEY, product INTEGER) WITHOUT ROWID;
            CREATE TABLE state (id INTEGER PRIMARY KEY, state TEXT);
            """
        )
        for table, path in (("attributes", self._sources.attributes), ("human", self._sources.human)):
            self._tell(path.name, 0.0)
            # No product has an asin that is no Unicode.
            rows = ((asin, json.dumps(entry)) for asin, entry in read_object(path) if is_unicode(asin))
            self._table.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)
            # Made afterwards, by sorting: rows that are put in at random places take far longer.
            self._table.execute(f"CREATE INDEX {table}_asin ON {table} (asin)")
        self._save_state()

    def _save_state(self) -> None:
        state = json.dumps(asdict(self._state))
        self._table.execute("INSERT OR REPLACE INTO state VALUES (0, ?)", (state,))
        self._table.commit()

    def _read_products(self) -> None:
        state, limit = self._state, self._options.num_products
        size = max(self._sources.items.stat().st_size, 1)
        batch: list[tuple[int, Any]] = []
        with (
            ProductFiles(self._work, state.num_products) as files,
            ArrayReader(self._sources.items, offset=state.offset, num_read=state.num_read) as reader,
        ):
            if limit is None or reader.num_read < limit:
                for record in reader:
                    batch.append((reader.num_read - 1, record))
                    is_last = limit is not None and reader.num_read >= limit
                    if len(batch) == _BATCH and not is_last:
                        self._add(batch, files)
                        batch = []
                        self._tell("products", reader.offset / size)
                        if reader.num_read - state.num_read >= _SAVE_EVERY:
                            self._save_products(reader, files)
                    if is_last:
                        break
            self._add(batch, files)
            state.is_read = True
            self._save_products(reader, files)

    def _save_products(self, reader: ArrayReader, files: ProductFiles) -> None:
        """What is read so far survives a kill from here on."""
        files.flush()
        self._index.flush()
        state = self._state
        state.num_products, state.num_runs = self._index.num_documents, self._index.num_runs
        state.offset, state.num_read = reader.offset, reader.num_read
        self._save_state()

    def _add(self, batch: Sequence[tuple[int, Any]], files: ProductFiles) -> None:
        from envsdk.envs.webshop.analyzer import tokens

        loaded: list[Product] = []
        for number, raw in batch:
            product = self._load(number, raw, self._index.num_documents + len(loaded))
            if product is not None:
                loaded.append(product)
        titles = [product.title for product in loaded]
        queries, categories = self._state.labels["query"], self._state.labels["category"]
        for product, nouns in zip(loaded, self._tagger.nouns(titles), strict=True):
            tagged = replace(product, nouns=tuple(nouns))
            query_id = queries.setdefault(tagged.query, len(queries))
            category_id = categories.setdefault(tagged.category, len(categories))
            files.add(tagged, query_id, category_id)
            self._index.add(tokens(index_text(tagged)))

    def _load(self, number: int, raw: Any, position: int) -> Product | None:
        """The product of a record, at this position of the catalogue; None when it is left out."""
        skipped = self._state.skipped
        where = f"{self._sources.items}: record {number}"
        asin: str | None = None
        try:
            asin = _asin(raw)
            where += f" (asin {asin})"
            if is_skipped(asin):
                skipped["asin"] += 1
                return None
            row = (asin, position)
            if self._table.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", row).rowcount == 0:
                skipped["duplicate"] += 1
                return None
            return self._load_with_entries(raw, asin)
        except BadRecord as error:
            if self._options.skip_bad:
                if asin is not None:
                    self._table.execute("UPDATE seen SET product = NULL WHERE asin = ?", (asin,))
                skipped["bad"] += 1
                return None
            file = {"attributes": self._sources.attributes, "human": self._sources.human}.get(error.entry)
            entry = f"its entry in {file.name}: " if file else ""
            raise BadData(f"{where}: {entry}{error}. --skip-bad leaves such records out") from error

    def _load_with_entries(self, raw: dict[str, Any], asin: str) -> Product:
        attributes, human = self._entry("attributes", asin), self._entry("human", asin)
        if attributes is not None and not isinstance(attributes, dict):
            raise BadRecord(f"its entry in {self._sources.attributes.name} must be an object")
        if human is not None and not isinstance(human, list):
            raise BadRecord(f"its entry in {self._sources.human.name} must be a list")
        return load_product(raw, attributes, human)

    def _entry(self, table: str, asin: str) -> Any:
        # Of an entry that is there twice the last one counts, as for any JSON object.
        query = f"SELECT entry FROM {table} WHERE asin = ? ORDER BY rowid DESC LIMIT 1"
        row = self._table.execute(query, (asin,)).fetchone()
        return None if row is None else json.loads(row[0])

    def _write_ranks(self) -> None:
        """The place of each product among the asins in order."""
        ranks = create_column(self._work / RANKS, np.uint32, self._state.num_products)
        rows = self._table.execute("SELECT product FROM seen WHERE product IS NOT NULL ORDER BY asin")
        rank = 0
        while piece := rows.fetchmany(PIECE):
            ranks[[product for (product,) in piece]] = np.arange(rank, rank + len(piece))
            rank += len(piece)

    def _write_labels(self) -> None:
        """Products by query and by category."""
        files: tuple[tuple[Literal["query", "category"], str], ...]
        files = (("query", BY_QUERY), ("category", BY_CATEGORY))
        labels = self._state.labels
        spans = {
            kind: write_grouped(self._work, self._work / file, kind, list(labels[kind]))
            for kind, file in files
        }
        write_json_atomically(self._work / LABELS, spans)

    def _finish(self, num_goals: dict[str, int]) -> None:
        """Move the files to their place and write the manifest."""
        files = {}
        for number, name in enumerate(FILES):
            self._tell("checksums", number / len(FILES))
            path = self._work / name
            files[name] = {"size": path.stat().st_size, "blake2b": file_digest(path)}
        for name in FILES:
            os.replace(self._work / name, self._out / name)
        fsync_path(self._out)
        manifest = {
            "format": FORMAT,
            "num_products": self._state.num_products,
            "num_goals": num_goals,
            "skipped": self._state.skipped,
            "tagger": self._tagger.name,
            "made_of": self._state.made_of,
            "files": files,
        }
        write_json_atomically(self._out / MANIFEST, manifest)
        shutil.rmtree(self._work)


def _asin(raw: Any) -> str:
    asin = raw.get("asin") if isinstance(raw, dict) else None
    if not isinstance(asin, str):
        raise BadRecord("asin: missing, or no text")
    if not is_unicode(asin):
        raise BadRecord(f"asin: holds half of a surrogate pair: {asin!r}")
    return asin
