"""Judges a run by what it left on disk, with no code of envsdk's.

    python benchmarks/audit_run.py runs/NAME [MORE ...] [--finished] [--json]

It reads batches, discarded trajectories, metrics, checkpoints with their weights and, of a job with
explorers, the buffer (SQLite). Each line of its answer names a broken promise, where, and the evidence; the
exit code is then 1. What cannot be read is such a line too, and the rest is judged without it.
`--finished` also asks for everything that a run which ended in success has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import sqlite3
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

COLUMNS = [
    *("trajectory_id", "group_id", "tag", "split", "index", "seed", "outcome", "success", "num_turns"),
    *("total_reward", "failure", "versions", "response_mask"),
]
ENDS = ("delivered", "filtered", "stale", "failed", "cancelled")
EXAMPLES = 4
WHOLE = "files are whole"
"""The promise that all that is on disk can be read."""


@dataclass(frozen=True)
class Finding:
    """One broken promise."""

    promise: str
    where: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.where}: {self.evidence}"


@dataclass
class Batch:
    """One file of delivered groups."""

    step: int
    path: Path
    rows: list[dict[str, Any]]
    metadata: Mapping[str, str]
    ledger: Mapping[str, Any] | None
    """The ledger's state with this batch; None in a job with explorers, whose buffer has it."""
    oldest: list[int | None] = field(default_factory=list)
    """Of each row: the oldest and the newest version among its sampled tokens."""
    newest: list[int | None] = field(default_factory=list)


@dataclass
class Run:
    """What is on disk."""

    folder: Path
    config: Mapping[str, Any]
    batches: list[Batch]
    discarded: list[dict[str, Any]]
    """Rows, each with `end`: how its lease ended and why; and `step`, the batch before which it ended."""
    metrics: list[dict[str, Any]]
    checkpoints: dict[int, dict[str, Any]]
    """By step: the contents of run.json."""
    unreadable: list[Finding]

    @property
    def is_of_own_trainer(self) -> bool:
        """Of `Rollouts`: batches of any size, and versions published when their trainer likes."""
        left = any((self.folder / name).exists() for name in ("metrics.jsonl", "timeline.json"))
        return not (left or self.checkpoints)


def read(folder: Path) -> Run:
    """Everything that the audit looks at. What cannot be read is a finding."""
    run = Run(folder, {}, [], [], [], {}, [])
    run.config = _read_config(run)
    # What a run that goes on writes last is read first: a checkpoint has its metrics, and these their batch.
    for path in sorted((folder / "checkpoints").glob("step_*")):
        if (found := re.fullmatch(r"step_(\d+)", path.name)) is None:
            continue
        try:
            run.checkpoints[int(found[1])] = _record(json.loads((path / "run.json").read_text()), "step")
        except (OSError, ValueError) as error:
            run.unreadable.append(Finding(WHOLE, f"checkpoints/{path.name}", str(error)))
    run.metrics = _read_metrics(run)
    for path in sorted((folder / "trajectories").glob("*.parquet")):
        kind = re.fullmatch(r"(discarded_)?step_(\d+)(?:_\d+)?\.parquet", path.name)
        if kind is None:
            continue
        try:
            if kind[1]:
                _read_discarded(run, path, int(kind[2]))
            else:
                run.batches.append(_read_batch(path, int(kind[2])))
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            run.unreadable.append(Finding(WHOLE, path.name, str(error)))
    return run


def _record(value: Any, *keys: str) -> dict[str, Any]:
    """This, which must be an object with these keys: whole numbers."""
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:40]} is no object")
    for key in keys:
        if not isinstance(value.get(key), int):
            raise ValueError(f"{key} is {value.get(key)}, no number")
    return value


def _read_config(run: Run) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load((run.folder / "config.yaml").read_text(encoding="utf-8"))
        return _record(found)
    except FileNotFoundError:
        # A job's trainer and its explorers may all have been killed before one wrote it.
        if any((run.folder / "trajectories").glob("step_*.parquet")):
            run.unreadable.append(Finding(WHOLE, "config.yaml", "is missing"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        run.unreadable.append(Finding(WHOLE, "config.yaml", " ".join(str(error).split())))
    return {}


def _read_table(path: Path) -> tuple[pa.Table, dict[str, str]]:
    file = pq.ParquetFile(path)
    if missing := sorted(set(COLUMNS) - set(file.schema_arrow.names)):
        raise ValueError(f"there is no column {_some(missing)}")
    metadata = {
        key.decode(): value.decode(errors="replace")
        for key, value in (file.metadata.metadata or {}).items()
        if key != b"ARROW:schema"
    }
    return file.read(columns=COLUMNS), metadata


def _read_batch(path: Path, step: int) -> Batch:
    table, metadata = _read_table(path)
    ledger = None
    if "ledger_state" in metadata:
        ledger = _record(json.loads(metadata["ledger_state"]), "next_lease_id")
        missing = sorted({"ends", "cursors", "unfinished"} - ledger.keys())
        if missing or set(ENDS) - ledger["ends"].keys():
            raise ValueError(f"its ledger_state lacks {_some(missing or ['ends'])}")
    rows = table.drop_columns(["versions", "response_mask"]).to_pylist()
    batch = Batch(step, path, rows, metadata, ledger)
    _read_versions(batch, table)
    return batch


def _read_discarded(run: Run, path: Path, step: int) -> None:
    table, metadata = _read_table(path)
    rows = table.drop_columns(["versions", "response_mask"]).to_pylist()
    ends = json.loads(metadata.get("ends", "[]"))
    said = [end for end in ends if end]
    if len(said) != len(rows):
        run.unreadable.append(
            Finding("what is dropped has a reason", path.name, f"{len(said)} of {len(rows)}")
        )
    run.discarded += [{**row, "end": end, "step": step} for row, end in zip(rows, ends, strict=False)]


def _read_metrics(run: Run) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    path = run.folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(_record(json.loads(line), "step"))
        except ValueError as error:
            # The last line may have been under way when the program was killed.
            if number < len(lines) or not isinstance(error, json.JSONDecodeError):
                run.unreadable.append(Finding(WHOLE, f"metrics.jsonl:{number}", str(error)))
    return rows


def _read_versions(batch: Batch, rows: pa.Table) -> None:
    for versions, mask in zip(rows["versions"].to_pylist(), rows["response_mask"].to_pylist(), strict=True):
        sampled = [] if versions is None else np.asarray(versions)[np.asarray(mask, bool)]
        batch.oldest.append(int(min(sampled)) if len(sampled) else None)
        batch.newest.append(int(max(sampled)) if len(sampled) else None)


def audit(folder: Path, *, finished: bool = False) -> list[Finding]:
    """All broken promises of the run in this folder."""
    run = read(folder)
    has_buffer = (folder / "buffer.db").is_file()
    if not (has_buffer or run.batches or run.config or run.unreadable or run.checkpoints):
        return [Finding("there is a run", str(folder), "no config.yaml, batch, checkpoint or buffer is here")]
    checks = [
        _batches_are_complete,
        _groups_are_pure,
        _each_group_once,
        _nothing_is_too_old,
        _counts_add_up,
        _no_task_is_skipped,
        _failures_are_masked,
        _one_row_of_metrics_per_step,
        _what_is_trained_is_told,
        _checkpoints_fit,
        _weights_are_as_written,
    ]
    if has_buffer:
        checks += [_buffer, _batches_hold_what_was_put]
    if finished:
        checks.append(_has_everything)
    return run.unreadable + [finding for check in checks for finding in _asked(check, run)]


def _asked(check: Callable[[Run], Iterator[Finding]], run: Run) -> Iterator[Finding]:
    """What this check finds; data of another form than a run's is a finding too."""
    try:
        yield from check(run)
    except (KeyError, TypeError, ValueError, AttributeError, sqlite3.Error) as error:
        yield Finding(WHOLE, check.__name__.strip("_").replace("_", " "), f"{type(error).__name__}: {error}")


def _bound(config: Mapping[str, Any]) -> int | None:
    """How many versions a sample may be behind; None where the configuration that says it is lost."""
    given = config.get("max_staleness")
    if given is not None:
        return int(given)
    ratio = config.get("async_generation_ratio")
    if ratio == "auto":
        return 1
    return None if ratio is None else math.ceil(float(ratio))


def _some(values: Sequence[Any]) -> str:
    more = f" and {len(values) - EXAMPLES} more" if len(values) > EXAMPLES else ""
    return ", ".join(map(str, values[:EXAMPLES])) + more


def _batches_are_complete(run: Run) -> Iterator[Finding]:
    steps = [batch.step for batch in run.batches]
    missing = sorted(set(range(max(steps, default=-1) + 1)) - set(steps))
    if missing:
        yield Finding("no batch is lost", "trajectories", f"no batch of step {_some(missing)}")
    size = run.config.get("rollout_batch_size", 0) * (run.config.get("num_return_sequences_in_group") or 1)
    for batch in run.batches:
        if size and len(batch.rows) != size and not run.is_of_own_trainer:
            yield Finding("batches are complete", batch.path.name, f"{len(batch.rows)} rows, not {size}")


def _groups_are_pure(run: Run) -> Iterator[Finding]:
    for batch in run.batches:
        groups = defaultdict(list)
        for row in batch.rows:
            groups[row["group_id"]].append(row)
        manager = run.config.get("train_env_manager") or {}
        size = int(batch.metadata.get("group_size") or manager.get("group_size") or 0)
        for group_id, rows in groups.items():
            where = f"{batch.path.name}, group {group_id}"
            if size and len(rows) != size:
                yield Finding("groups are whole", where, f"{len(rows)} members, not {size}")
            tasks = {(row["tag"], row["split"], row["index"], row["seed"]) for row in rows}
            if len(tasks) != 1:
                yield Finding("groups are of one task", where, _some(sorted(tasks)))


def _each_group_once(run: Run) -> Iterator[Finding]:
    for what, key in (
        ("trajectory", lambda row: row["trajectory_id"]),
        ("group", None),
        ("task", None),
    ):
        seen: dict[Any, str] = {}
        for batch in run.batches:
            if key is not None:
                keys = [key(row) for row in batch.rows]
            elif what == "group":
                keys = list({row["group_id"] for row in batch.rows})
            else:
                keys = list({(row["tag"], row["index"]) for row in batch.rows})
            for each in keys:
                if each in seen:
                    where = f"{seen[each]} and {batch.path.name}"
                    yield Finding("each is trained once", where, f"{what} {each}")
                seen[each] = batch.path.name
    delivered = {row["trajectory_id"]: batch.path.name for batch in run.batches for row in batch.rows}
    last = max((batch.step for batch in run.batches), default=-1)
    for row in run.discarded:
        # A killed program may leave files before the next batch; whoever continues replaces them.
        if row["step"] <= last and (where := delivered.get(row["trajectory_id"])):
            yield Finding(
                "each is trained once",
                f"{where} and discarded_step_{row['step']:06d}",
                f"trajectory {row['trajectory_id']} is trained and discarded ({row['end']})",
            )


def _nothing_is_too_old(run: Run) -> Iterator[Finding]:
    bound = _bound(run.config)
    for batch in run.batches:
        version = int(batch.metadata.get("version", batch.step))
        old = [oldest for oldest in batch.oldest if oldest is not None and oldest < version - (bound or 0)]
        if old and bound is not None:
            yield Finding(
                "nothing is too old",
                batch.path.name,
                f"{len(old)} trajectories, down to version {min(old)}; at {version} the bound is {bound}",
            )
        if early := [newest for newest in batch.newest if newest is not None and newest > version]:
            yield Finding(
                "no token is from the future", batch.path.name, f"version {max(early)} at {version}"
            )
        is_paired = run.config.get("mode", "both") == "both" and not run.is_of_own_trainer
        if is_paired and version != batch.step:
            yield Finding(
                "a version for each step", batch.path.name, f"version {version} at step {batch.step}"
            )


def _counts_add_up(run: Run) -> Iterator[Finding]:
    delivered, failed = 0, 0
    before: Mapping[str, int] = {}
    for batch in run.batches:
        delivered += sum(row["outcome"] != "failed" for row in batch.rows)
        failed += sum(row["outcome"] == "failed" for row in batch.rows)
        state = batch.ledger
        if state is None:
            if run.config.get("mode", "both") == "both" and not (run.folder / "buffer.db").is_file():
                yield Finding("counts add up", batch.path.name, "the ledger's state is not with it")
            continue
        ends = state["ends"]
        if sum(ends.values()) != state["next_lease_id"]:
            yield Finding(
                "counts add up",
                batch.path.name,
                f"{sum(ends.values())} ends of {state['next_lease_id']} leases",
            )
        if ends["delivered"] != delivered:
            yield Finding(
                "counts add up", batch.path.name, f"{ends['delivered']} delivered, {delivered} are on disk"
            )
        if ends["failed"] < failed:
            yield Finding("counts add up", batch.path.name, f"{ends['failed']} failed, {failed} are on disk")
        # Open leases are saved as cancelled, so that count may fall when they end in another way.
        falls = [name for name in ENDS if name != "cancelled" and ends[name] < before.get(name, 0)]
        if falls:
            yield Finding("counts add up", batch.path.name, f"fewer than before: {_some(falls)}")
        before = ends


def _no_task_is_skipped(run: Run) -> Iterator[Finding]:
    states = [(batch, batch.ledger) for batch in run.batches]
    last = next((state for _, state in reversed(states) if state is not None), None)
    if last is None:
        return
    indices: dict[str, set[int]] = defaultdict(set)
    for batch in run.batches:
        for row in batch.rows:
            indices[row["tag"]].add(row["index"])
    for group in last["unfinished"]:
        if group["index"] in indices[group["tag"]]:
            yield Finding(
                "each is trained once",
                "ledger state",
                f"task {group['tag']} {group['index']} is delivered and still open",
            )
        indices[group["tag"]].add(group["index"])
    dropped = {
        (group["tag"], group["index"])
        for _, state in states
        if state is not None
        for group in state.get("dropped", ())
    }
    for tag, index in sorted(dropped):
        if index in indices[tag]:
            yield Finding(
                "each is trained once", "ledger state", f"task {tag} {index} is dropped and trained or open"
            )
    for tag, cursor in last["cursors"].items():
        beyond = [index for index in indices[tag] if index >= cursor]
        if beyond:
            yield Finding(
                "the cursor is past every task", tag, f"{_some(sorted(beyond))}; the cursor is {cursor}"
            )
        holes = [i for i in range(cursor) if i not in indices[tag] and (tag, i) not in dropped]
        if holes:
            yield Finding("no task is skipped", tag, f"neither trained, dropped nor open: {_some(holes)}")


def _failures_are_masked(run: Run) -> Iterator[Finding]:
    by_step = {row["step"]: row for row in run.metrics if "reward/mean" in row}
    for batch in run.batches:
        rewards: dict[str, list[float]] = defaultdict(list)
        for row in batch.rows:
            if (row["outcome"] == "failed") != (row["failure"] is not None):
                yield Finding(
                    "a failure is named",
                    batch.path.name,
                    f"{row['trajectory_id']}: {row['outcome']}, {row['failure']}",
                )
            if row["failure"] is None:
                rewards[row["tag"]].append(row["total_reward"])
                if not math.isfinite(row["total_reward"]):
                    yield Finding("rewards are numbers", batch.path.name, row["trajectory_id"])
            elif row["success"]:
                yield Finding("a failure is no success", batch.path.name, row["trajectory_id"])
        metrics = by_step.get(batch.step)
        if metrics is None:
            continue
        share = sum(map(len, rewards.values())) / max(1, len(batch.rows))
        counted = metrics.get("rollout/valid_share")
        if counted is None or not math.isclose(counted, share, abs_tol=1e-6):
            yield Finding("failures are masked", batch.path.name, f"{share} are valid, {counted} counted")
        for tag, values in rewards.items():
            told, mean = metrics.get(f"reward/{tag}"), float(np.mean(values))
            if told is None or not math.isclose(told, mean, rel_tol=1e-5, abs_tol=1e-6):
                yield Finding(
                    "failures are masked", batch.path.name, f"reward of {tag} is {mean}, and {told} is told"
                )


def _one_row_of_metrics_per_step(run: Run) -> Iterator[Finding]:
    if run.config.get("logging_steps", 1) != 1:
        return
    trained = [row["step"] for row in run.metrics if "reward/mean" in row]
    twice = [step for step, count in Counter(trained).items() if count > 1]
    if twice:
        yield Finding("one row per step", "metrics.jsonl", f"step {_some(twice)} is there more than once")
    if trained and sorted(set(trained)) != list(range(max(trained) + 1)):
        yield Finding("one row per step", "metrics.jsonl", f"steps {_some(_holes(trained))} are missing")
    without = sorted(set(trained) - {batch.step for batch in run.batches})
    if without:
        yield Finding("each step has a batch", "metrics.jsonl", f"step {_some(without)} has none")


def _what_is_trained_is_told(run: Run) -> Iterator[Finding]:
    """A checkpoint is written after the rows of its steps."""
    if run.config.get("logging_steps", 1) != 1:
        return
    told = {row["step"] for row in run.metrics if "reward/mean" in row}
    lacking = sorted(set(range(max(run.checkpoints, default=0))) - told)
    if lacking:
        yield Finding(
            "one row per step", "metrics.jsonl", f"step {_some(lacking)} is in a checkpoint and has none"
        )


def _holes(steps: Sequence[int]) -> list[int]:
    return sorted(set(range(max(steps) + 1)) - set(steps))


def _checkpoints_fit(run: Run) -> Iterator[Finding]:
    by_step = {batch.step: batch for batch in run.batches}
    for step, state in run.checkpoints.items():
        where = f"checkpoints/step_{step:06d}"
        if state["step"] != step:
            yield Finding("checkpoints fit their batches", where, f"says step {state['step']}")
        batch = by_step.get(step - 1)
        if batch is None:
            yield Finding("checkpoints fit their batches", where, f"there is no batch of step {step - 1}")
        elif batch.ledger is not None and state.get("ledger") is None:
            yield Finding("checkpoints fit their batches", where, "run.json has no ledger")
        elif batch.ledger is not None and state["ledger"] != batch.ledger:
            yield Finding("checkpoints fit their batches", where, "another ledger than the batch's")


def _weights_are_as_written(run: Run) -> Iterator[Finding]:
    """By the numbers in run.json; a file without one, by the length in its header."""
    for step, state in run.checkpoints.items():
        folder = run.folder / "checkpoints" / f"step_{step:06d}"
        written = state.get("files") or {}
        found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        for name in sorted(written.keys() | found.keys()):
            path = found.get(name)
            if path is None:
                problem = "is missing"
            elif name in written:
                crc = 0
                with path.open("rb") as file:
                    while chunk := file.read(1 << 22):
                        crc = zlib.crc32(chunk, crc)
                now = f"{path.stat().st_size} bytes, crc32 {crc:08x}"
                problem = "" if now == written[name] else f"{now}; {written[name]} were written"
            else:
                problem = _cut(path) if path.suffix == ".safetensors" else ""
            if problem and folder.is_dir():  # a run that goes on removes old ones
                yield Finding("weights are as they were written", f"{folder.name}/{name}", problem)


def _cut(path: Path) -> str:
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        last = max(
            (each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"), default=0
        )
    except (ValueError, KeyError, MemoryError, OverflowError) as error:
        return f"its header cannot be read: {error}"
    return "" if size == 8 + length + last else f"{size} bytes, and its header tells of {8 + length + last}"


def _batches_hold_what_was_put(run: Run) -> Iterator[Finding]:
    """Each group of a batch is, bit for bit, what its explorer put, as long as the buffer has that."""
    database = sqlite3.connect(f"file:{run.folder / 'buffer.db'}?mode=ro", uri=True)
    try:
        put = database.execute(
            "SELECT step, payloads.group_id, data FROM payloads JOIN batch_groups USING (group_id) "
            "WHERE step < (SELECT step FROM job) ORDER BY step"
        ).fetchall()
    finally:
        database.close()
    files = {batch.step: batch.path for batch in run.batches}
    for step, group, data in put:
        if step not in files:
            continue  # told elsewhere
        if hashlib.blake2b(data[16:], digest_size=16).digest() != data[:16]:
            yield Finding(WHOLE, "buffer.db", f"the trajectories of group {group} are damaged")
            continue
        original = pa.ipc.open_stream(data[16:]).read_all()
        table = pq.ParquetFile(files[step]).read()
        rows = table.filter(pc.equal(table["group_id"], group))
        if differing := [
            name
            for name in original.column_names
            if rows.num_rows != original.num_rows
            or str(rows[name].to_pylist()) != str(original[name].to_pylist())
        ]:
            where = f"{files[step].name}, group {group}"
            yield Finding(
                "batches hold what was put", where, f"another {_some(differing)} than in the buffer"
            )


def _buffer(run: Run) -> Iterator[Finding]:
    """Of a job with explorers: the buffer against the trainer's batches."""
    database = sqlite3.connect(f"file:{run.folder / 'buffer.db'}?mode=ro", uri=True)
    try:
        rows = database.execute(
            "SELECT id, tag, task_index, state, reason, oldest_version, step, rests_until FROM groups"
        ).fetchall()
        held = database.execute("SELECT step, group_id FROM batch_groups").fetchall()
        cursors = dict(database.execute("SELECT tag, next_index FROM cursors").fetchall())
        versions = dict(database.execute("SELECT step, version FROM batches").fetchall())
    finally:
        database.close()
    groups = {row[0]: row for row in rows}
    tasks = Counter((tag, index) for _, tag, index, *_ in rows)
    if doubled := [task for task, count in tasks.items() if count > 1]:
        yield Finding("each is trained once", "buffer.db", f"tasks in several groups: {_some(doubled)}")
    for tag, cursor in cursors.items():
        if holes := [index for index in range(cursor) if (tag, index) not in tasks]:
            yield Finding("no task is skipped", f"buffer.db, {tag}", _some(holes))
    if silent := [row[0] for row in rows if row[3] == "dropped" and not row[4]]:
        yield Finding("what is dropped has a reason", "buffer.db", f"groups {_some(silent)}")
    once = Counter(group for _, group in held)
    keys = ((run.config.get("buffer") or {}).get("trainer_input") or {}).get("experience_buffer") or {}
    most = int(keys.get("max_uses", 1))
    if doubled := [group for group, count in once.items() if count > most]:
        yield Finding("each is trained once", "buffer.db", f"groups in several batches: {_some(doubled)}")
    for group, count in once.items():
        state = groups[group][3] if group in groups else "taken"
        # A group that may be used again rests until after the step of its last batch.
        again = state == "ready" and count < most and groups[group][7] > groups[group][6]
        if state not in ("taken", "trained") and not again:
            where = f"buffer.db, group {group}"
            yield Finding("each is trained once", where, f"it is in a batch, and {state}")
    bound = _bound(run.config)
    if unknown := [group for _, group in held if group not in groups]:
        yield Finding("batches are those of the buffer", "buffer.db", f"no group {_some(unknown)}")
        return
    for step, group in held:
        oldest = groups[group][5]
        if None not in (oldest, bound) and oldest < versions[step] - bound:
            yield Finding(
                "nothing is too old", f"buffer.db, step {step}", f"group {group} has version {oldest}"
            )
    of_step: dict[int, set[int]] = defaultdict(set)
    for step, group in held:
        of_step[step].add(group)
    for batch in run.batches:
        on_disk = {row["group_id"] for row in batch.rows}
        if of_step.get(batch.step) != on_disk:
            yield Finding("batches are those of the buffer", batch.path.name, _some(sorted(on_disk)))
    if trained := [row[0] for row in rows if row[3] == "trained" and row[0] not in once]:
        yield Finding("batches are those of the buffer", "buffer.db", f"trained in none: {_some(trained)}")


def _has_everything(run: Run) -> Iterator[Finding]:
    wanted = run.config.get("max_steps")
    if wanted is None or run.config["mode"] == "explore":
        return
    if len(run.batches) != wanted:
        yield Finding("a finished run is whole", "trajectories", f"{len(run.batches)} batches of {wanted}")
    if wanted not in run.checkpoints:
        yield Finding("a finished run is whole", "checkpoints", f"none of step {wanted}")
    trained = {row["step"] for row in run.metrics if "reward/mean" in row}
    if run.config.get("logging_steps", 1) == 1 and len(trained) != wanted:
        yield Finding("a finished run is whole", "metrics.jsonl", f"{len(trained)} steps of {wanted}")
    left = [
        str(path.relative_to(run.folder))
        for path in run.folder.rglob("*")
        if re.search(r"(\.tmp|\.partial|\.part)(\.|$)|^\.tmp", path.name)
    ]
    if left:
        yield Finding("no temporary file is left", "run folder", _some(left))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--finished", action="store_true", help="ask for what a run that succeeded has")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON, by folder")
    options = parser.parse_args()
    found = {str(folder): audit(folder, finished=options.finished) for folder in options.folders}
    if options.json:
        print(json.dumps({name: [asdict(each) for each in findings] for name, findings in found.items()}))
    else:
        for name, findings in found.items():
            print(f"{name}: {'nothing found' if not findings else f'{len(findings)} broken promises'}")
            for finding in findings:
                print(f"  {finding}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
