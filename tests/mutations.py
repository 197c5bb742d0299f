"""Plants the faults of tests/mutations.toml one after another and says which the tests find.

    python -m tests.mutations                    # all: `make test-mutations`
    python -m tests.mutations buffer ledger.py   # of these wings and files
    python -m tests.mutations --jobs 2           # two at a time
    python -m tests.mutations --list

Each fault is planted in a copy of the working tree, in which its test files run. Without a fault they run
too: a test that fails anyway finds nothing. The exit code is 0 when every fault is found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
FAULTS = ROOT / "tests/mutations.toml"
_FAILED, _PASSED = 1, 0
"""Exit codes of pytest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One change that makes the product wrong."""

    wing: str
    file: str
    what: str
    """What is wrong then."""
    old: str
    """Occurs once in the file."""
    new: str
    tests: Sequence[str]
    """Files of which one fails at least; `FILE::TEST` where the others of its file take long."""

    def problem(self, root: Path = ROOT) -> str:
        """Why the fault cannot be planted; empty where it can."""
        file = root / self.file
        if not file.is_file():
            return f"there is no {self.file}"
        if (count := file.read_text(encoding="utf-8").count(self.old)) != 1:
            return f"{self.file} has {count} times, not once: {self.old!r}"
        for test in self.tests:
            path, _, name = test.partition("::")
            if not (root / path).is_file() or f"def {name}" not in (root / path).read_text(encoding="utf-8"):
                return f"there is no {test}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the tests of a fault said."""

    fault: Fault
    said: str
    seconds: float


def read_faults() -> list[Fault]:
    return [Fault(**each) for each in tomllib.loads(FAULTS.read_text(encoding="utf-8"))["faults"]]


def chosen(faults: Sequence[Fault], words: Sequence[str]) -> list[Fault]:
    """The faults of these wings and of files whose paths hold these words; all without words."""
    return [each for each in faults if not words or any(w == each.wing or w in each.file for w in words)]


def copied(folder: Path) -> Path:
    """A copy of the files that git tracks or would add, links as links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in sorted(set(os.fsdecode(listed).split("\0")) - {""}):
        source, target = ROOT / name, folder / name
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


class Copy:
    """A copy of the working tree in which one fault at a time is planted."""

    def __init__(self, folder: Path) -> None:
        self._root = copied(folder)
        self._written_at = time.time()

    def try_out(self, fault: Fault) -> Outcome:
        """Run the tests of the fault, planted."""
        if problem := fault.problem(self._root):
            return Outcome(fault=fault, said=f"ERROR: {problem}", seconds=0.0)
        whole = (self._root / fault.file).read_text(encoding="utf-8")
        began = time.monotonic()
        try:
            self._write(fault.file, whole.replace(fault.old, fault.new))
            code, said = self.run(fault.tests)
        finally:
            self._write(fault.file, whole)
        verdict = {_FAILED: "found", _PASSED: "NOT FOUND"}.get(
            code, f"ERROR: pytest ended with {code}: {said}"
        )
        return Outcome(fault=fault, said=verdict, seconds=time.monotonic() - began)

    def run(self, tests: Sequence[str]) -> tuple[int, str]:
        """Exit code of pytest, and the test that failed, or else the last line that it printed."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        # The same examples in every run: a fault is found or not, whatever the day.
        command += ["--hypothesis-seed", "0", "--hypothesis-profile", "unshrunk"]
        paths = [str(self._root), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [*command, "-m", "not slow and not gpu", *tests],
            cwd=self._root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = (done.stdout + done.stderr).strip().splitlines()
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return done.returncode, (failed or lines or [""])[-1]

    def _write(self, name: str, text: str) -> None:
        """With a time of its own, to the second: by it Python knows that a compiled module is out of date."""
        self._written_at += 2
        (self._root / name).write_text(text, encoding="utf-8")
        os.utime(self._root / name, (self._written_at, self._written_at))


def table(outcomes: Sequence[Outcome]) -> str:
    rows = ["| wing | fault | outcome | seconds |", "| --- | --- | --- | --- |"]
    rows += [f"| {e.fault.wing} | {e.fault.what} | {e.said} | {e.seconds:.0f} |" for e in outcomes]
    num_found = sum(each.said == "found" for each in outcomes)
    seconds = sum(each.seconds for each in outcomes)
    return "\n".join(
        [*rows, "", f"{num_found} of {len(outcomes)} faults found in {seconds / 60:.1f} minutes"]
    )


def try_out(faults: Sequence[Fault], num_jobs: int) -> list[Outcome]:
    """The outcome of each fault, in order; each job has a copy of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="envsdk-mutations-") as folder,
        ThreadPoolExecutor(num_jobs) as jobs,
    ):
        copies = SimpleQueue[Copy]()
        for number in range(num_jobs):
            copies.put(Copy(Path(folder) / str(number)))

        def one(fault: Fault) -> Outcome:
            copy = copies.get()
            try:
                outcome = copy.try_out(fault)
            finally:
                copies.put(copy)
            print(f"{fault.wing}: {fault.what}: {outcome.said}, {outcome.seconds:.0f} s", flush=True)
            return outcome

        return list(jobs.map(one, faults))


def without_fault(faults: Sequence[Fault]) -> str:
    """What fails without any fault; empty where nothing does."""
    with tempfile.TemporaryDirectory(prefix="envsdk-mutations-") as folder:
        code, said = Copy(Path(folder)).run(sorted({test for each in faults for test in each.tests}))
    return "" if code == _PASSED else said


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("words", nargs="*", help="wings, and parts of files' paths; all faults without one")
    parser.add_argument("--jobs", type=int, default=1, help="faults that are tried at a time")
    parser.add_argument("--list", action="store_true", help="name the faults")
    parser.add_argument("--only-faults", action="store_true", help="where the tests are known to pass")
    options = parser.parse_args(arguments)
    planted = chosen(read_faults(), options.words)
    if not planted:
        print(f"no such wing or file: {' '.join(options.words)}", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{each.wing}: {each.what} ({each.file})" for each in planted))
        return 0
    outcomes = try_out(planted, options.jobs)
    print(f"\n{table(outcomes)}", flush=True)
    if not options.only_faults:
        print("Without a fault all of these tests must pass; they run now, some minutes.", flush=True)
        if said := without_fault(planted):
            print(f"tests fail without a fault too: {said}", file=sys.stderr)
            return 1
    return int(any(each.said != "found" for each in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
