"""A thousand faults: runs jobs, makes things go wrong by a seeded plan, and audits what is on disk.

    python benchmarks/soak.py --seed 1 --faults 40 --out /tmp/soak
    python benchmarks/soak.py --seed 1 --only 17 --out /tmp/soak      one fault of that plan

Each job is a small run: agents, prompts with rewards, repositories in sandboxes, or explorers and a trainer
as programs of their own. After every death of a program the same command goes on. Each fault waits until the
run goes on again, which is measured. After each end `audit_run.py`, which shares no code with envsdk, reads
the run's folder. At the end nothing may be left: processes, mounts, shared memory, temporary files.

The exit code is 1 when anything was lost, doubled, too old or left behind; the folder is kept. Faults that
cannot be made on this machine are skipped and named.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.audit_run import Finding, audit
from benchmarks.soak_parts.faults import Control, NotPossible, happening
from benchmarks.soak_parts.job import INSIDE, REPOSITORY, Job
from benchmarks.soak_parts.patience import Patience
from benchmarks.soak_parts.plan import Fault, faults
from benchmarks.soak_parts.recipes import MAIN, RECIPES

STUCK_S = 240.0
"""A run that does not go on for so long, after the fault is over, hangs; longer on a busy machine."""
LEFT_S = 90.0
"""How long processes may take to end after the program: Ray's agents look once a minute."""
POLL_S = 0.1


@dataclass
class Outcome:
    """What one fault did."""

    fault: Fault
    result: str
    """`went on`, `began again`, `skipped: ...`, `stuck`."""
    lost_s: float = 0.0
    """Seconds until the next batch, beyond what a step takes."""
    exit_code: int | None = None
    said: str = ""
    """The last line of a program that ended."""
    job: str = ""
    """The recipe."""


@dataclass
class Soak:
    """State of one soak."""

    folder: Path
    control: Control
    environment: dict[str, str]
    outcomes: list[Outcome] = field(default_factory=list)
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    """Seconds between batches while nothing was wrong."""
    memory: dict[str, list[tuple[int, int, float]]] = field(default_factory=lambda: defaultdict(list))
    """By role: process, batches, MB."""

    def num_made(self) -> int:
        """Faults that could be made."""
        return sum(not each.result.startswith("skipped") for each in self.outcomes)

    def found(self, where: str, findings: list[Finding]) -> None:
        """Remember broken promises, and say so at once."""
        for finding in findings:
            self.findings.append((where, finding))
            print(f"BROKEN after {where}: {finding}", flush=True)

    def job(self, job: Job, plan: Iterator[Fault]) -> None:
        """Run one job to its end while the faults of the plan happen that it can have."""
        last: Outcome | None = None
        fault: Fault | None = None
        num_fruitless = 0
        while True:
            began_with = job.num_batches()
            job.start()
            if not self._goes_on(job, job.num_batches()) and job.exit_code is None:
                self._stuck(job, last)
            while job.exit_code is None:
                fault = next(filter(job.recipe.may_have, plan), None)
                if fault is None:
                    self._wait_for_end(job)
                    break
                last = self._one(job, fault)
                last.job = job.name.rpartition("-")[0]
                self.outcomes.append(last)
                with (self.folder / "faults.jsonl").open("a") as file:
                    file.write(json.dumps(asdict(last)) + "\n")
                print(
                    f"{len(self.outcomes):4d} {job.name} {fault}: {last.result}, {last.lost_s:.1f} s",
                    flush=True,
                )
            where = str(last.fault) if last is not None else "no fault"
            if last is not None and job.exit_code != 0:
                last.exit_code, last.said = job.exit_code, job.last_words(1)
            if job.exit_code == 0:
                late = job.wait_for_explorers(Patience(STUCK_S))
                self._judge(where, job, late)
                if late:
                    job.end()
                self.found(where, audit(job.run, finished=True))
                return
            # Explorers go on while the trainer is dead, so their part of the job is judged at the end.
            self.found(where, audit(job.run) if job.run.exists() and not job.recipe.explorers else [])
            self._judge(where, job, {MAIN: job.exit_code})
            num_fruitless = 0 if job.num_batches() > began_with else num_fruitless + 1
            if num_fruitless == 4:
                self.found(where, [Finding("the run goes on", job.name, job.last_words())])
                return

    def _judge(self, where: str, job: Job, codes: Mapping[str, int | None]) -> None:
        """A program may be killed, or fail with a message."""
        wrong = {name: code for name, code in codes.items() if code not in (0, 1, -signal.SIGKILL)}
        self.found(
            where,
            [
                Finding("a failure has a message", f"{name}: exit {code}", job.last_words(name=name))
                for name, code in wrong.items()
            ],
        )

    def _one(self, job: Job, fault: Fault) -> Outcome:
        self._usual_step(job, fault.after_s)
        if job.exit_code is not None:
            return Outcome(fault, "skipped: the run had ended")
        began, before = time.monotonic(), job.num_batches()
        try:
            with happening(fault, job, self.control) as happened:
                over = began + fault.lasts_s
                while time.monotonic() < over and job.exit_code is None:
                    time.sleep(POLL_S)
                patience = time.monotonic() + 30.0
                while not happened() and job.exit_code is None and time.monotonic() < patience:
                    time.sleep(POLL_S)
                if not happened():
                    return Outcome(fault, "skipped: nobody came by")
        except NotPossible as error:
            return Outcome(fault, f"skipped: {error}")
        if self._goes_on(job, max(before, job.num_batches())):
            usual = statistics.median(self.step_s) if self.step_s else 0.0
            self._weigh(job)
            return Outcome(fault, "went on", max(0.0, time.monotonic() - began - usual))
        if job.exit_code is not None:
            return Outcome(fault, "ended" if job.exit_code == 0 else "began again", time.monotonic() - began)
        outcome = Outcome(fault, "stuck", time.monotonic() - began)
        self._stuck(job, outcome)
        return outcome

    def _usual_step(self, job: Job, after_s: float) -> None:
        """Let one step go by with nothing wrong, and a little more."""
        began, before = time.monotonic(), job.num_batches()
        if self._goes_on(job, before):
            self.step_s.append(time.monotonic() - began)
        time.sleep(after_s)

    def _goes_on(self, job: Job, before: int) -> bool:
        """Wait for another batch; False when the program ended first, or hangs."""
        patience = Patience(STUCK_S)
        while not patience.is_over():
            self._judge(job.name, job, job.tend())
            if job.num_batches() > before:
                return True
            if job.exit_code is not None:
                return False
            if job.num_batches() >= job.max_steps:
                self._wait_for_end(job)
                return False
            time.sleep(POLL_S)
        return False

    def _wait_for_end(self, job: Job) -> None:
        patience = Patience(STUCK_S)
        before = job.num_batches()
        while job.exit_code is None:
            self._judge(job.name, job, job.tend())
            if job.num_batches() != before:
                before, patience = job.num_batches(), Patience(STUCK_S)
            if patience.is_over():
                self._stuck(job, None)
            time.sleep(POLL_S)

    def _stuck(self, job: Job, outcome: Outcome | None) -> None:
        where = str(outcome.fault) if outcome is not None else "the start"
        self.found(where, [Finding("the run goes on", f"{job.num_batches()} batches", job.last_words())])
        job.end()

    def _weigh(self, job: Job) -> None:
        for role in ("driver", "scheduler"):
            for process in job.processes(role)[:1]:
                try:
                    size = process.memory_info().rss / 1e6
                except psutil.NoSuchProcess:
                    continue
                self.memory[role].append((process.pid, job.num_batches(), size))

    def growth(self) -> dict[str, float]:
        """MB per 100 batches behind a process's first 20, the median over processes that saw 20 more."""
        found = {}
        for role, points in self.memory.items():
            slopes = []
            for _, group in itertools.groupby(points, key=lambda point: point[0]):
                points_of_one = list(group)
                seen = [point for point in points_of_one if point[1] >= points_of_one[0][1] + 20]
                batches = seen[-1][1] - seen[0][1] if seen else 0
                if batches >= 20:
                    slopes.append(100 * (seen[-1][2] - seen[0][2]) / batches)
            if slopes:
                found[role] = statistics.median(slopes)
        return found


def what_is_there(token: str, folders: Sequence[Path]) -> dict[str, set[str]]:
    """What a job may leave on the machine, as far as it can be told apart from others'."""
    processes = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get("SOAK_TOKEN") == token and process.status() != psutil.STATUS_ZOMBIE:
                processes.add(f"{process.pid} {' '.join(process.cmdline())[:100]}")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    temporary = folders[0]
    return {
        "process": processes,
        "mount": {mount for mount in mounts if any(Path(mount).is_relative_to(each) for each in folders)},
        "shared memory": {path.name for path in Path("/dev/shm").iterdir()},
        # Ray keeps the logs of sessions that were killed; empty folders do not grow.
        "temporary file": {
            str(path.relative_to(temporary))
            for path in temporary.rglob("*")
            if path.is_file() and path.relative_to(temporary).parts[0] != "ray"
        },
        "control group": {str(path) for path in Path("/sys/fs/cgroup").rglob("envsdk*") if path.is_dir()},
    }


def leftovers(token: str, folders: Sequence[Path], before: dict[str, set[str]]) -> list[Finding]:
    """What was not there before, once processes had their time to end."""
    deadline = time.monotonic() + LEFT_S
    while True:
        there = what_is_there(token, folders)
        left = {kind: names - before[kind] for kind, names in there.items()}
        if not any(left.values()) or time.monotonic() > deadline:
            break
        time.sleep(1.0)
    return [
        Finding("nothing is left behind", kind, name)
        for kind, names in left.items()
        for name in sorted(names)
    ]


def installed(folder: Path) -> Path:
    """A folder in which Python finds the soak's environment as that of an installed package."""
    package = folder / "inside" / "soak_env-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: soak-env\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        "[envsdk.envs]\nsoak/Lake-v1 = soak_env:SPEC\nsoak/SWE-v1 = soak_env:SWE_SPEC\n"
    )
    return package.parent


def shim(folder: Path) -> Path | None:
    """Compile the shim; None where there is no compiler."""
    target = folder / "shim.so"
    source = Path(__file__).parent / "soak_parts" / "shim.c"
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", target, source, "-ldl"], check=True)
    return target


def report(soak: Soak, seconds: float) -> dict[str, Any]:
    """Print the table; the figures as JSON."""
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in soak.outcomes:
        by_kind[f"{outcome.fault.kind} {outcome.fault.target}".strip()].append(outcome)
    rows = []
    print(f"\n{'fault':28s} {'made':>5} {'went on':>8} {'began again':>12} {'median s lost':>14} {'most':>6}")
    for kind, outcomes in sorted(by_kind.items()):
        made = [each for each in outcomes if not each.result.startswith("skipped")]
        lost = [each.lost_s for each in made]
        row = {
            "fault": kind,
            "made": len(made),
            "skipped": len(outcomes) - len(made),
            "went_on": sum(each.result == "went on" for each in made),
            "began_again": sum(each.result == "began again" for each in made),
            "median_s": statistics.median(lost) if lost else None,
            "most_s": max(lost, default=None),
        }
        rows.append(row)
        times = f"{row['median_s']:14.1f} {row['most_s']:6.1f}" if lost else ""
        print(f"{kind:28s} {len(made):5d} {row['went_on']:8d} {row['began_again']:12d} {times}")
    made = sum(row["made"] for row in rows)
    print(
        f"\n{made} faults in {seconds / 60:.1f} min, {len(soak.outcomes) - made} skipped, "
        f"{len(soak.findings)} broken promises; "
        + ", ".join(f"{role} grew {mb:.1f} MB per 100 batches" for role, mb in soak.growth().items())
    )
    return {
        "rows": rows,
        "faults": made,
        "seconds": seconds,
        "growth_mb_per_100_batches": soak.growth(),
        "findings": [{"after": where, **asdict(finding)} for where, finding in soak.findings],
        "ended": [
            {"fault": str(each.fault), "exit_code": each.exit_code, "said": each.said}
            for each in soak.outcomes
            if each.exit_code is not None
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--faults", type=int, default=40, help="how many faults are made, skipped ones aside (default 40)"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no fault after so long")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="only this fault of the plan")
    parser.add_argument(
        "--longest-stop-s", type=float, default=60.0, help="of a stopped process (default 60)"
    )
    parser.add_argument("--steps", type=int, default=60, help="steps of each job (default 60)")
    parser.add_argument(
        "--jobs",
        nargs="+",
        choices=RECIPES,
        default=list(RECIPES),
        help="kinds of jobs, in turn (default all)",
    )
    parser.add_argument("--out", type=Path, required=True, help="new folder for everything")
    options = parser.parse_args()

    out: Path = options.out.resolve()
    out.mkdir(parents=True)
    temporary = Path(tempfile.mkdtemp(prefix="soak-"))  # short: Ray's sockets lie below it
    control = Control(out)
    token = f"soak-{os.getpid()}"
    environment = {
        "SOAK_TOKEN": token,
        "SOAK_CONTROL": str(control.path),
        "SOAK_FOLDER": str(out / "runs"),
        "SOAK_TROUBLE": str(control.trouble),
        "PYTHONPATH": os.pathsep.join(map(str, [REPOSITORY, INSIDE, installed(out)])),
        "TMPDIR": str(temporary),
        "RAY_TMPDIR": str(temporary),
        "ENVSDK_CACHE": str(out / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    if (preloaded := shim(out)) is not None:
        environment["LD_PRELOAD"] = str(preloaded)
    else:
        print("no C compiler: no full or slow disk, and no jumps of the clock")
    began = time.monotonic()
    every = faults(options.seed, longest_stop_s=options.longest_stop_s)
    if options.only is not None:
        every = itertools.islice(every, options.only, options.only + 1)
    plan = itertools.takewhile(
        lambda _: soak.num_made() < options.faults and time.monotonic() - began < 60 * options.minutes,
        every,
    )

    folders = (temporary, out)
    before = what_is_there(token, folders)
    soak = Soak(out, control, environment)
    settings = itertools.cycle(
        [{"alpha": 1, "bound": 1}, {"alpha": 1, "bound": 2}, {"alpha": 0, "bound": "null"}]
    )
    for number, kind in enumerate(itertools.cycle(options.jobs)):
        num_before = len(soak.outcomes)
        job = Job(
            out,
            f"{kind}-{number}",
            RECIPES[kind],
            environment,
            seed=options.seed + number,
            steps=options.steps if options.only is None else 8,
            val=0 if number % 2 else 8,
            **next(settings),
        )
        soak.job(job, plan)
        if len(soak.outcomes) == num_before or options.only is not None or soak.num_made() >= options.faults:
            break
    soak.found("the last job", leftovers(token, folders, before))
    result = report(soak, time.monotonic() - began)
    result |= {"seed": options.seed, "load": os.getloadavg()[0]}
    (out / "result.json").write_text(json.dumps(result, indent=2))
    shutil.rmtree(temporary, ignore_errors=True)
    return 1 if soak.findings else 0


if __name__ == "__main__":
    sys.exit(main())
