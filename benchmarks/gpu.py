"""Everything that can be measured of sampling and learning on one device, in one process, without a network.

    python -m benchmarks.gpu --out DIR                    on the GPU; on a CPU at small sizes, as a check
    python -m benchmarks.gpu --out DIR --only speed       one part
    python -m benchmarks.gpu --wheels                     what to carry to a host that can install nothing

Parts: parity (does the device compute what a CPU computes), tests (those marked gpu), learning (the
quickstart in one process, two seeds), speed (engine over `generate`, trainers, weight updates), sharing
(trainer and engine in turns), transfer (weight updates between processes, NCCL between two cards), servers
(vLLM, SGLang); and, only where it is named, recipe (a real model learns three tasks to stated scores:
`--only recipe --minutes 60`). Each has a share of the time; what a part lacks is skipped and said.
DIR/gpu.json and DIR/gpu.md are written after every part, so that a run which is cut off keeps what it has.
It needs neither Ray nor PyArrow, and no installation: a checkout will do. The exit code is 1 when a part
broke, had no time for a single figure, or missed a bound.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu_parts.checkout import make_importable

make_importable()  # before envsdk is imported, which looks at once for what is installed

from benchmarks.gpu_parts.bench import (  # noqa: E402
    Bench,
    Broken,
    Part,
    Result,
    Row,
    Skipped,
    TimeUp,
    host,
    limited,
    missing,
)
from benchmarks.gpu_parts.wheels import lines  # noqa: E402


def _part(
    name: str,
    title: str,
    share: float,
    needs: Sequence[str] = ("torch", "transformers"),
    *,
    is_asked_for: bool = False,
) -> Part:
    module = {"tests": "marked_tests"}.get(name, name)

    def run(bench: Bench) -> Iterator[Row]:
        # Imported when its turn comes: a package that is missing costs its own part alone.
        rows: Iterator[Row] = import_module(f"benchmarks.gpu_parts.{module}").run(bench)
        return rows

    return Part(name=name, title=title, share=share, run=run, needs=tuple(needs), is_asked_for=is_asked_for)


PARTS = (
    _part("parity", "Does the device compute what a CPU computes?", 0.15),
    _part("speed", "How fast does it sample and learn?", 0.34),
    _part("sharing", "What do turns on one device take and cost?", 0.06),
    _part("learning", "Does the quickstart learn on it?", 0.20),
    _part("transfer", "How fast do weights reach another process?", 0.08),
    _part("tests", "The tests marked gpu", 0.10, ("torch", "transformers", "pytest", "hypothesis")),
    _part("servers", "vLLM, SGLang", 0.07),
    _part("recipe", "Does a real model learn within an hour?", 1.0, is_asked_for=True),
)
"""In the order of what is worth most when time runs out."""
NEEDED = (
    "torch",
    "transformers",
    "gymnasium",
    "jinja2",
    "numpy",
    "omegaconf",
    "psutil",
    "pydantic",
    "rich",
    "typer",
    "yaml",
)
"""Without which no part runs."""


STOPPED = "stopped by Ctrl-C"


def measured(part: Part, bench: Bench, seconds: float) -> Result:
    """Run one part within its time; it never raises."""
    result = Result(name=part.name, title=part.title)
    began = time.monotonic()
    bench.ends_at = began + seconds
    if absent := missing(part.needs):
        result.skipped = f"not installed: {', '.join(absent)}"
        return result
    try:
        with limited(seconds):
            for row in part.run(bench):
                result.rows.append(row)
                print(f"  {told(row)}", flush=True)
    except TimeUp:
        result.skipped, result.is_cut = f"the rest: its {seconds:.0f} s were over", True
    except KeyboardInterrupt:
        result.error = STOPPED
    except Skipped as reason:
        result.skipped = str(reason)
    except ModuleNotFoundError as error:
        from envsdk.base.settings.extras import missing_package

        if (reason := missing_package(error)) is None:
            result.error = traceback.format_exc()
        else:
            result.skipped = reason
    except Broken as reason:
        result.error = str(reason)
    except Exception:  # noqa: BLE001 - a part that breaks is a finding, and the others go on
        result.error = traceback.format_exc()
    result.seconds = time.monotonic() - began
    return result


def told(row: Row) -> str:
    """One row, as text."""
    bound = "" if row.at_most is None else f" (at most {row.at_most:g})"
    bound += "" if row.at_least is None else f" (at least {row.at_least:g})"
    note = f"  {row.note}" if row.note else ""
    return f"{row.what}: {row.value:.4g} {row.unit}{bound}{' MISSED' if row.is_missed else ''}{note}"


def spelled(machine: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The machine, for people."""
    for name, value in machine.items():
        if isinstance(value, dict):
            yield name, ", ".join(f"{key} {version}" for key, version in value.items())
        else:
            yield name, f"{value:.1f}" if isinstance(value, float) else str(value)


def markdown(machine: dict[str, Any], results: Sequence[Result], when: str) -> str:
    """The report."""
    text = ["# GPU benchmark", "", when, "", *(f"- {name}: {value}" for name, value in spelled(machine)), ""]
    for result in results:
        text += [f"## {result.title}", ""]
        if result.rows:
            text += ["| | value | bound | |", "| --- | --- | --- | --- |"]
        for row in result.rows:
            bound = f"≤ {row.at_most:g}" if row.at_most is not None else ""
            bound = bound or (f"≥ {row.at_least:g}" if row.at_least is not None else "")
            note = "MISSED" if row.is_missed else ""
            note = "; ".join(filter(None, [note, row.note]))
            text.append(f"| {row.what} | {row.value:.4g} {row.unit} | {bound} | {note} |")
        text += [""] if result.rows else []
        text += [f"Skipped: {result.skipped}", ""] if result.skipped else []
        text += ["Broke:", "", "```text", result.error.rstrip(), "```", ""] if result.error else []
        text += [f"{result.seconds:.0f} s", ""]
    return "\n".join(text)


def write(out: Path, machine: dict[str, Any], results: Sequence[Result]) -> None:
    """Both files."""
    when = datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC")
    record = {"when": when, "host": machine, "parts": [asdict(result) for result in results]}
    (out / "gpu.json").write_text(json.dumps(record, indent=2))
    (out / "gpu.md").write_text(markdown(machine, results, when))


def keep_earlier(out: Path) -> None:
    """Earlier reports get another name."""
    number = next(n for n in itertools.count(1) if not (out / f"gpu-{n}.json").exists())
    for name in ("gpu.json", "gpu.md"):
        if (out / name).exists():
            (out / name).rename((out / name).with_stem(f"gpu-{number}"))
            print(f"the earlier {name} is now gpu-{number}{(out / name).suffix}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where gpu.json and gpu.md go; earlier ones are kept as gpu-1"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="for all parts together (default 8)")
    parser.add_argument("--device", help="a torch device; the first GPU, or the CPU, when absent")
    parser.add_argument(
        "--sizes",
        choices=("small", "full"),
        help="of models and runs; when absent, full on a GPU alone",
    )
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], metavar="PART")
    parser.add_argument("--wheels", action="store_true", help="print what to carry to a host, and end")
    options = parser.parse_args(arguments)
    if options.wheels:
        print("\n".join(lines()))
        return 0
    if options.out is None:
        parser.error("--out: name a folder for the results")
    if absent := missing(NEEDED):
        parser.error(f"not installed: {', '.join(absent)}. `--wheels` names what to carry; see docs/gpu.md")
    if not 0 < options.minutes < math.inf:
        parser.error(f"--minutes: expected a number of minutes, not {options.minutes:g}")

    import torch

    device = options.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        if torch.empty(1, device=device).device.type not in ("cpu", "cuda"):
            parser.error(f"--device: expected cpu or a CUDA device such as cuda:0, not {device}")
    except (RuntimeError, AssertionError) as error:
        parser.error(f"--device: {device} cannot be used here: {str(error).splitlines()[0]}")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        keep_earlier(options.out)
        write(options.out, {}, [])
    except OSError as error:
        parser.error(f"--out: {options.out} cannot be written to: {error.strerror}")
    folder = Path(tempfile.mkdtemp(prefix="envsdk-gpu-"))
    os.environ["ENVSDK_CACHE"] = str(folder / "cache")
    sizes = options.sizes or ("full" if device.startswith("cuda") else "small")
    bench = Bench(device=device, is_small=sizes == "small", folder=folder)
    machine = host(device) | {"sizes": sizes}
    print(", ".join(f"{name}: {value}" for name, value in spelled(machine)), flush=True)

    asked = options.only or [part.name for part in PARTS if not part.is_asked_for]
    parts = [part for part in PARTS if part.name in asked]
    ends_at, results = time.monotonic() + 60 * options.minutes, list[Result]()
    try:
        for index, part in enumerate(parts):
            left = ends_at - time.monotonic()
            # What a part leaves over goes to the others.
            seconds = left * part.share / sum(each.share for each in parts[index:])
            print(f"{part.title} ({seconds:.0f} s)", flush=True)
            results.append(measured(part, bench, seconds))
            for word, text in (("skipped", results[-1].skipped), ("broke", results[-1].error)):
                if text:
                    print(f"  {word}: {text}", flush=True)
            write(options.out, machine, results)
            if results[-1].error == STOPPED:
                break
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"written: {options.out / 'gpu.md'}")
    missed = [row for result in results for row in result.rows if row.is_missed]
    failed = [result.name for result in results if result.error or (result.is_cut and not result.rows)]
    return 1 if missed or failed else 0


if __name__ == "__main__":
    sys.exit(main())
