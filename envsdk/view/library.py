"""The sources of a folder: opened on the first request, read again when their files change.

Library -> OpenSource (one per run or data set) -> overview | progress | search | trajectory | group ...

The methods return JSON-ready values, which the pure modules of this package make.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from envsdk import tracking
from envsdk.base.settings.extras import require
from envsdk.base.store.shards import MANIFEST
from envsdk.base.store.tally import Tally
from envsdk.base.store.trajectories import read_rows
from envsdk.buffer.contract import BUFFER_FILE
from envsdk.contracts.failures import EnvsdkError, StorageError
from envsdk.managers.ledger_history import replay
from envsdk.managers.ledger_log import LOG_NAME, read_log
from envsdk.tracking import jsonl, timeline
from envsdk.tracking.learning_signs import signs_of
from envsdk.tracking.run_record import read_kernels
from envsdk.view.columns import finite, list_columns
from envsdk.view.filters import Filter
from envsdk.view.index import TrajectoryIndex, key, parse_key
from envsdk.view.run_view import (
    QUIET_S,
    RunFiles,
    curves_view,
    ended_view,
    facts_view,
    failed_view,
    headline,
    headline_view,
    headlines_view,
    percent,
    progress_view,
    staleness_view,
)
from envsdk.view.sources import CONFIG_FILE, TRAJECTORY_FOLDER, Kind, Source, find_sources, read_config
from envsdk.view.token_text import Decode, find_tokenizer, load_decoder, token_texts
from envsdk.view.trajectory_view import group_view, row_view, trajectory_view
from envsdk.view.waiting import MAX_SPANS, timeline_view

MAX_MEMBERS = 64
"""Members of a group, shown side by side."""

_RESCAN_S = 2.0
_INDEX_WAIT_S = 0.5
_PATIENCE_S = 20.0
_READ_SHARE = 10
"""A job's buffer is not read for this many times as long as the last reading took."""


class Library:
    """Everything under one folder. Thread-safe."""

    def __init__(
        self, root: Path, *, tokenizer: Path | None = None, index_folder: Path | None = None
    ) -> None:
        """ConfigurationError when there is nothing to look at, or `tokenizer` is none."""
        self.root = root
        self._decode = None if tokenizer is None else load_decoder(tokenizer)
        self._index_folder = index_folder
        self._lock = threading.Lock()
        self._open: dict[str, OpenSource] = {}
        self._scanned_at = 0.0
        self._rescan()

    def sources(self) -> list[OpenSource]:
        """All sources by name, including runs that were started since the last call."""
        with self._lock:
            if time.monotonic() - self._scanned_at > _RESCAN_S:
                try:
                    self._rescan()
                except EnvsdkError:
                    self._open = {}
            return list(self._open.values())

    def get(self, source_id: str) -> OpenSource | None:
        return next((each for each in self.sources() if each.source.source_id == source_id), None)

    def _rescan(self) -> None:
        found = find_sources(self.root)
        self._open = {
            source.source_id: self._open.get(source.source_id)
            or OpenSource(source, decode=self._decode, index_folder=self._index_folder)
            for source in found
        }
        self._scanned_at = time.monotonic()


class OpenSource:
    """One run or data set. Thread-safe."""

    def __init__(self, source: Source, *, decode: Decode | None, index_folder: Path | None) -> None:
        self.source = source
        self._given_decode = decode
        self._found_decode: tuple[Path, Decode] | None = None
        self._index_folder = index_folder
        self._index: TrajectoryIndex | None = None
        self._indexing: threading.Thread | None = None
        self._indexed = (0, 0)
        self._index_error = ""
        self._lock = threading.Lock()
        self._run: tuple[tuple[Any, ...], RunFiles] | None = None
        self._programs: dict[str, Any] | None = None
        self._programs_until = 0.0
        self._decided: dict[str, Any] = {"steps": [], "note": ""}
        self._decided_at = -1
        """Size of the log that `_decided` is of."""

    def listed(self, now: float) -> dict[str, Any]:
        """One line of the list of sources."""
        about = {"id": self.source.source_id, "name": self.source.name, "kind": self.source.kind.value}
        if self.source.kind is Kind.RUN:
            run = self.run_files()
            about_run = progress_view(run, now) | headline_view(run.metrics)
            return about | about_run | {"has_programs": _has_programs(run, self.source.folder)}
        written_at = _written_at(self.source)
        return about | _manifest_facts(self.source.folder, now - written_at) | {"written_at": written_at}

    def overview(self, now: float) -> dict[str, Any]:
        """The data of a source's first page; starts an update of the index."""
        self.refresh_soon()
        about = self.listed(now) | {"folder": str(self.source.folder), "indexing": self.indexing()}
        index = self.index()
        about["problems"] = self.problems()
        about["summary"] = index.summary()
        about["examples"] = index.examples()
        about["files_left_out"] = self.source.num_files_left_out()
        headlines = []
        if self.source.kind is Kind.RUN:
            run = self.run_files()
            headlines = headlines_view(run)
            about["problems"] = [*run.missing, *about["problems"]]
            about |= {"facts": facts_view(run), "curves": curves_view(run.metrics)}
            about["signs"] = [f"After step {step}: {sign}" for step, sign in signs_of(run.metrics)]
            config = yaml.safe_dump(dict(run.config), sort_keys=False) if run.config else ""
            about |= {"staleness": staleness_view(run), "config": config}
        elif about["success_rate"] is not None:
            headlines = [headline(percent(about["success_rate"]), "success", about["success_of"])]
        return about | {"headlines": [*headlines, _num_trajectories(about)]}

    def progress(self, now: float) -> dict[str, Any]:
        """What changes while a run is training; `stamp` changes when anything else did."""
        self.refresh_soon()
        indexing = self.indexing()
        if self.source.kind is Kind.RUN:
            run = self.run_files()
            assert self._run is not None
            view = progress_view(run, now)
            return view | {"indexing": indexing, "stamp": f"{hash(self._run[0])}-{indexing['trajectories']}"}
        facts = _manifest_facts(self.source.folder, now - _written_at(self.source))
        stamp = f"{facts['state']}-{facts['shards']}-{indexing['trajectories']}"
        return {"indexing": indexing, "state": facts["state"], "stamp": stamp}

    def timeline(self, max_spans: int = MAX_SPANS) -> dict[str, Any]:
        """`timeline_view` of the run so far."""
        if self.source.kind is not Kind.RUN:
            return timeline_view([], max_spans)
        return timeline_view(self.run_files().timeline, max_spans) | {"decisions": self._decisions()}

    def _decisions(self) -> dict[str, Any]:
        """`decisions_view`, made again when the log has grown."""
        with self._lock:
            with suppress(OSError):
                stamp = (self.source.folder / LOG_NAME).stat().st_size
                if stamp != self._decided_at:
                    self._decided_at, self._decided = stamp, decisions_view(self.source.folder)
            return self._decided

    def programs(self, now: float) -> dict[str, Any] | None:
        """`programs_view` of a run whose explorers and trainer are programs of their own; None of others.

        Read again when that took a small part of the time since; `{"problem": sentence}` when it cannot be.
        """
        if self.source.kind is not Kind.RUN or not _has_programs(self.run_files(), self.source.folder):
            return None
        with self._lock:
            if self._programs is None or time.monotonic() > self._programs_until:
                began = time.monotonic()
                try:
                    require("the page of a job's programs", "sqlalchemy")
                    from envsdk.view.programs import read_programs

                    self._programs = read_programs(self.source.folder, now)
                except EnvsdkError as error:
                    self._programs = {"problem": str(error)}
                ended = time.monotonic()
                self._programs_until = ended + _READ_SHARE * (ended - began)
            return self._programs

    def failures(self) -> dict[str, Any]:
        """Failed episodes by boundary, kind and tag, and how episodes ended."""
        found = {"failures": self.index().failures(), "files_left_out": self.source.num_files_left_out()}
        if self.source.kind is Kind.DATA:
            return found | {"curves": {}, "ended": [], "totals": []}
        run = self.run_files()
        curves = curves_view(run.metrics, ("failures/", "filter/", "waste/"))
        return found | {"curves": curves, "ended": ended_view(run), "totals": failed_view(run)}

    def search(self, wanted: Filter) -> dict[str, Any]:
        """One page of a filter's trajectories, with counts."""
        self.refresh_soon()
        found = self.index().search(wanted)
        view = asdict(found)
        view["rows"] = [row_view(row) for row in found.rows]
        view["columns"] = list_columns()
        view["indexing"] = self.indexing()
        return view

    def trajectory(self, trajectory_key: str, wanted: Filter | None = None) -> dict[str, Any] | None:
        """One trajectory and its place among those that a filter finds; None when there is none."""
        place = parse_key(trajectory_key)
        if place is None:
            return None
        about = self.index().locate(*place)
        if about is None:
            self._catch_up()
            about = self.index().locate(*place)
        if about is None:
            return None
        (view,) = self.views([about])
        before, behind, at, total = self.index().neighbors(wanted or Filter(), *place)
        return view | {"before": before, "behind": behind, "place": at, "total": total}

    def group(self, group: str) -> dict[str, Any] | None:
        """`group_view` of `origin/number`; None when there is no such group."""
        return self._side_by_side(Filter(group=group, limit=MAX_MEMBERS))

    def same_task(self, task: str) -> dict[str, Any] | None:
        """`group_view` of all plays of a task, `split/index`, in their order; None when there is none."""
        return self._side_by_side(Filter(task=task, limit=MAX_MEMBERS))

    def _side_by_side(self, wanted: Filter) -> dict[str, Any] | None:
        found = self.index().search(wanted)
        if not found.rows:
            self._catch_up()
            found = self.index().search(wanted)
        if not found.rows:
            return None
        return group_view(self.views(found.rows)) | {"total": found.total}

    def views(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The trajectories of some rows of the index, in their order; each file is opened once."""
        decode = self._decoder()
        by_file: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_file.setdefault(row["file"], []).append(row)
        views = {}
        for file, own in by_file.items():
            path = self.source.trajectory_folder / file
            try:
                trajectories = read_rows(path, [row["row"] for row in own])
            except IndexError as error:
                raise StorageError(f"{path} was written anew; reload the page") from error
            for row, trajectory in zip(own, trajectories, strict=True):
                texts = token_texts(trajectory, decode)
                own_key = key(file, row["row"])
                views[own_key] = trajectory_view(trajectory, key=own_key, about=row, texts=texts)
        return [views[key(row["file"], row["row"])] for row in rows]

    def index(self) -> TrajectoryIndex:
        with self._lock:
            if self._index is None:
                self._index = TrajectoryIndex.open(self.source, folder=self._index_folder)
            return self._index

    def refresh(self) -> None:
        """Bring the index up to date, here and now."""
        self.index().refresh(self._note_progress)

    def refresh_soon(self) -> None:
        """Bring the index up to date in a thread of its own, unless one is running."""
        index = self.index()
        with self._lock:
            if self._indexing is not None and self._indexing.is_alive():
                return

            def work() -> None:
                try:
                    index.refresh(self._note_progress)
                    self._index_error = ""
                except EnvsdkError as error:
                    self._index_error = str(error)

            self._indexing = threading.Thread(target=work, name="index", daemon=True)
            self._indexing.start()
        # Usually there is nothing to do, and the caller then sees the newest state.
        self._indexing.join(timeout=_INDEX_WAIT_S)

    def _catch_up(self) -> None:
        """Wait for the index, within reason: a link into a source may be its first request."""
        self.refresh_soon()
        if self._indexing is not None:
            self._indexing.join(timeout=_PATIENCE_S)

    def indexing(self) -> dict[str, Any]:
        """How many files the index has read, and how many trajectories it holds."""
        done, files = self._indexed
        is_running = self._indexing is not None and self._indexing.is_alive()
        return {
            "is_running": is_running,
            "files": files,
            "done": done,
            "trajectories": self.index().count(),
        }

    def problems(self) -> list[str]:
        """One sentence for each thing that is missing or cannot be read."""
        problems = self.index().problems()
        if self._index_error:
            problems.append(self._index_error)
        return problems

    def _note_progress(self, done: int, files: int) -> None:
        self._indexed = (done, files)

    def _decoder(self) -> Decode | None:
        if self._given_decode is not None:
            return self._given_decode
        path = find_tokenizer(self.source)
        if path is None:
            return None
        if self._found_decode is None or self._found_decode[0] != path:
            try:
                self._found_decode = path, load_decoder(path)
            except EnvsdkError:
                return None
        return self._found_decode[1]

    def run_files(self) -> RunFiles:
        """The run's small files, read again when something was written."""
        folder, trajectories = self.source.folder, self.source.trajectory_folder
        names = (CONFIG_FILE, timeline.FILE_NAME)
        paths = (*(folder / name for name in names), *tracking.metric_files(folder), folder, trajectories)
        stamps = tuple(map(_stamp, paths))
        with self._lock:
            if self._run is None or self._run[0] != stamps:
                self._run = stamps, self._read_run(folder)
            return self._run[1]

    def _read_run(self, folder: Path) -> RunFiles:
        metrics, trace = folder / jsonl.FILE_NAME, folder / timeline.FILE_NAME
        has_trace = trace.is_file()
        config, problem = read_config(folder / CONFIG_FILE)
        rows = tracking.read_run_metrics(folder)
        events = timeline.read_timeline(trace) if has_trace else []
        missing = {
            problem: bool(problem),
            f"{metrics.name}: nothing has been logged, so there are no curves": not rows,
            f"{trace.name}: nothing is recorded of what ran when": not events,
            f"{TRAJECTORY_FOLDER}/: there are no trajectories": not self.source.trajectory_files(),
        }
        return RunFiles(
            config=config,
            metrics=rows,
            timeline=events,
            is_closed=has_trace and trace.read_bytes()[-16:].rstrip().endswith(b"]"),
            written_at=_written_at(self.source),
            kernels=read_kernels(folder),
            missing=[sentence for sentence, is_missing in missing.items() if is_missing],
        )


def _has_programs(run: RunFiles, folder: Path) -> bool:
    return run.config.get("mode") == "train" or (folder / BUFFER_FILE).is_file()


def _written_at(source: Source) -> float:
    """When the newest of a source's files was written, Unix time."""
    folder = source.folder
    places = (
        folder,
        source.trajectory_folder,
        folder / jsonl.FILE_NAME,
        folder / timeline.FILE_NAME,
    )
    return max((stamp[1] / 1e9 for path in places if (stamp := _stamp(path)) is not None), default=0.0)


def _manifest_facts(folder: Path, quiet_s: float) -> dict[str, Any]:
    """What the manifest of a collection says; other data sets have none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        counts = manifest["counts"]
        going_on = "running" if quiet_s < QUIET_S else "stopped"
        return {
            "state": "finished" if manifest["complete"] else going_on,
            "shards": len(manifest["shards"]),
            "planned_shards": int(manifest["planned_shards"]),
            "episodes": int(counts["episodes"]),
            "success_rate": finite(counts["success_rate"]),
            "success_of": Tally.from_json(counts).score.of,
            "command": " ".join(map(str, manifest.get("command", []))),
            "config": yaml.safe_dump(manifest["config"], sort_keys=False),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {"state": "", "shards": None, "episodes": None, "success_rate": None}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _num_trajectories(about: Mapping[str, Any]) -> dict[str, str]:
    count, failed = about["summary"]["count"], sum(row["failed"] for row in about["summary"]["by_tag"])
    if about["indexing"]["is_running"] and not count:
        return headline("…", "trajectories", "being read")
    if left_out := about["files_left_out"]:
        return headline(f"{count:,}", "trajectories read", f"{left_out:,} of the files were left out")
    return headline(f"{count:,}", "trajectories", f"{failed:,} failed" if failed else "none failed")


MOST_LOG_BYTES = 1 << 20
"""A longer log is for the command: about 100,000 trajectories, whose decisions take some seconds."""
MOST_STEPS = 1_000
"""Steps that are explained, the newest."""


def decisions_view(run: Path) -> dict[str, Any]:
    """`steps`: of each step its number, the seconds waited and the reason in sentences; or a `note`."""
    path = run / LOG_NAME
    if not path.is_file():
        return {"steps": [], "note": ""}
    if path.stat().st_size > MOST_LOG_BYTES:
        return {"steps": [], "note": f"The log is long: ask envsdk replay-run {run} --why-step N."}
    try:
        history = replay(read_log(run))
    except StorageError as error:
        return {"steps": [], "note": str(error)}
    note = "" if history.difference is None else f"Not all of the log can be explained: {history.difference}"
    waits = sorted(history.waits.values(), key=lambda wait: wait.step)[-MOST_STEPS:]
    steps = [
        {
            "step": wait.step,
            "waited_s": wait.taken_s - wait.asked_s,
            "said": " ".join(history.why_step(wait.step)),
        }
        for wait in waits
    ]
    return {"steps": steps, "note": note}
