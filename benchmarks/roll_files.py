"""ROLL's own files under `--preset tiny`: how many train to the end, how long each takes, why others do not.

    python benchmarks/roll_files.py FOLDER --out OUT [--only PATTERN] [--first N] [--again] [KEY=VALUE ...]

FOLDER is a checkout of ROLL (https://github.com/alibaba/ROLL), or a folder of its YAML files. Each file is
run by `envsdk train FILE --preset tiny`, one after the other. A file that does not load with `--explain` is
refused: it is counted, and not run. Results go to OUT/results.jsonl, logs to OUT/logs. A call continues where
the last one stopped; `--again` repeats the files that did not end well. A run is at its end when it exits
with 0 and its metrics.jsonl holds every step. The exit code is 1 when a file that loads did not end well.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from envsdk.config.loading import load_config
from envsdk.contracts.failures import ConfigurationError

TO_THE_END, REFUSED, ERROR, TIMED_OUT = "to the end", "refused", "error", "time limit"
SHARED = "config"
"""Folder of ROLL's with files that others name under `defaults`."""
_REASON_WIDTH = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one file."""

    file: str
    """Relative to the folder of files."""
    outcome: str
    seconds: float
    reason: str = ""
    """Why it did not run to the end."""
    tags: Sequence[str] = ()
    """Those that were trained."""
    load: float = 0.0
    """Load average of the machine at the end, over a minute."""


def files_in(folder: Path) -> list[Path]:
    """The files of runs, in order."""
    root = folder / "examples" if (folder / "examples").is_dir() else folder
    return sorted(file for file in root.rglob("*.yaml") if file.parent.name != SHARED)


def outcome_of(
    file: Path, name: str, out: Path, *, steps: int, timeout_s: float, more: Sequence[str]
) -> Outcome:
    """Load the file, and run it if it loads."""
    started = time.monotonic()
    try:
        load_config(file, to_explain=True)
    except ConfigurationError as error:
        return Outcome(
            file=name, outcome=REFUSED, seconds=time.monotonic() - started, reason=_one_line(str(error))
        )
    run = name.removesuffix(".yaml").replace("/", "-")
    log = out / "logs" / f"{run}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out / "runs" / run, ignore_errors=True)
    command = [sys.executable, "-m", "envsdk", "train", str(file), "--preset", "tiny"]
    keys = [f"max_steps={steps}", f"output_dir={out / 'runs'}", f"exp_name={run}", *more]
    with log.open("w") as written:
        code = _run([*command, *keys], written.fileno(), timeout_s=timeout_s)
    seconds = time.monotonic() - started
    num_steps, tags = _trained(out / "runs" / run / "metrics.jsonl")
    done = {"file": name, "seconds": seconds, "tags": tags, "load": os.getloadavg()[0]}
    if code is None:
        return Outcome(outcome=TIMED_OUT, reason=f"after {timeout_s:g} s: {_last_line(log)}", **done)  # type: ignore[arg-type]
    if code != 0 or num_steps < steps:
        reason = _last_error(log) if code else f"{num_steps} of {steps} steps: {_last_line(log)}"
        return Outcome(outcome=ERROR, reason=reason, **done)  # type: ignore[arg-type]
    shutil.rmtree(out / "runs" / run, ignore_errors=True)
    return Outcome(outcome=TO_THE_END, **done)  # type: ignore[arg-type]


def _run(command: Sequence[str], output: int, *, timeout_s: float) -> int | None:
    """The exit code; None when the time is over."""
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return None


def _trained(metrics: Path) -> tuple[int, list[str]]:
    """Steps, those whose batch was masked included, and tags that were in them."""
    steps, tags = 0, set[str]()
    with metrics.open() if metrics.is_file() else open(os.devnull) as lines:
        for line in lines:
            row = json.loads(line)
            if "time/wait_batch_s" in row:
                steps += 1
            tags |= {key.partition("/")[2] for key in row if key.startswith("success/")} - {"mean"}
    return steps, sorted(tags)


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    begin = next((i for i in reversed(range(len(lines))) if "rror" in lines[i][:40]), max(0, len(lines) - 3))
    return _one_line(" ".join(lines[begin:]))


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return _one_line(lines[-1]) if lines else ""


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _REASON_WIDTH else f"{text[: _REASON_WIDTH - 3]}..."


def read_results(file: Path) -> dict[str, Outcome]:
    """The last outcome of each file."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return {row["file"]: Outcome(**row) for row in map(json.loads, lines)}


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """One row per file that loads, then how many ended how, then the files that are refused."""
    loaded = [each for each in outcomes if each.outcome != REFUSED]
    yield "| file | outcome | seconds | trained | reason |"
    yield "| --- | --- | --- | --- | --- |"
    for each in loaded:
        cells = (each.file, each.outcome, f"{each.seconds:.0f}", ", ".join(each.tags), each.reason)
        yield "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
    counts = Counter(each.outcome for each in loaded)
    seconds = sum(each.seconds for each in loaded)
    ended = f"{counts[TO_THE_END]} of {len(loaded)} files that load ran to the end"
    yield f"\n{ended}, in {seconds / 60:.0f} minutes; {len(outcomes) - len(loaded)} are refused"
    if loaded:
        loads = [each.load for each in loaded]
        yield f"load average from {min(loads):.0f} to {max(loads):.0f}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="overrides for each file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--only", default="*", help="pattern of names, such as 'qwen3*'")
    parser.add_argument("--first", type=int, help="run so many files at most")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one file")
    parser.add_argument("--again", action="store_true", help="repeat files that did not end well")
    args = parser.parse_intermixed_args(argv)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    known = read_results(out / "results.jsonl")
    root = args.folder / "examples" if (args.folder / "examples").is_dir() else args.folder
    names = {str(file.relative_to(root)): file.resolve() for file in files_in(args.folder)}
    names = {name: file for name, file in names.items() if fnmatch.fnmatch(name, args.only)}
    is_over = (TO_THE_END, REFUSED) if args.again else (TO_THE_END, REFUSED, ERROR, TIMED_OUT)
    waiting = [name for name in names if name not in known or known[name].outcome not in is_over]
    num_run = 0
    for name in waiting:
        if args.first is not None and num_run >= args.first:
            break
        found = outcome_of(names[name], name, out, steps=args.steps, timeout_s=args.timeout, more=args.keys)
        num_run += found.outcome != REFUSED
        known[name] = found
        with (out / "results.jsonl").open("a") as file:
            file.write(json.dumps(asdict(found)) + "\n")
        if found.outcome != REFUSED:
            print(f"{name}: {found.outcome}, {found.seconds:.0f} s {found.reason}", flush=True)
    outcomes = [known[name] for name in names if name in known]
    print("\n".join(table(outcomes)))
    return int(any(each.outcome in (ERROR, TIMED_OUT) for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
