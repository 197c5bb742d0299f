"""Making the tasks of one package.

measure -> candidates on covered lines -> mutant runs twice -> the same tests fail both times -> row
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import platform
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from envsdk.base.store.atomic import make_folder, write_atomically, write_json_atomically
from envsdk.envs.swe.evaluator.stripping import is_protected
from envsdk.envs.swe.evaluator.trial import observe
from envsdk.envs.swe.make_tasks.baseline import HASH_SEEDS, MUTANT_HASH_SEEDS, Baseline, measure, whole_task
from envsdk.envs.swe.make_tasks.journal import Journal
from envsdk.envs.swe.make_tasks.mutations import Mutation, NotDifferent, Source, apply, mutations
from envsdk.envs.swe.make_tasks.options import MakeTasksOptions
from envsdk.envs.swe.make_tasks.package import Package
from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.task import Outcome, Task, TaskLimits, TestPlan
from envsdk.rewards.sandbox.contract import ExecEnd, SandboxBackend

_CREATED_AT = "2020-01-01T00:00:00Z"
_MAX_FAILING = 10
_MAX_FAILING_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A mutation of one file."""

    path: str
    mutation: Mutation

    @property
    def key(self) -> str:
        mutation = self.mutation
        text = f"{self.path} {mutation.operator} {mutation.start} {mutation.end} {mutation.replacement}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]


@dataclass(slots=True, kw_only=True)
class Progress:
    """Counts while tasks are made."""

    num_candidates: int
    outcomes: Counter[str] = field(default_factory=Counter)
    """Candidates by what was decided: `valid`, `survived`, `too_broad` ..."""
    fresh: Counter[str] = field(default_factory=Counter)
    """Those of them that this run decided."""
    search_s: float = 0.0
    """What deciding took."""

    @property
    def num_valid(self) -> int:
        return self.outcomes["valid"]


async def make(
    package: Package,
    plan: TestPlan,
    out: Path,
    backend: SandboxBackend,
    options: MakeTasksOptions,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Write `out/tasks.jsonl` until it has `num_tasks` rows of this package, or no candidate is left.

    Every decision is kept in `out`; the same call resumes where another was stopped.

    Raises ConfigurationError: the tests of the package cannot be run.
    """
    work = out / "work" / package.label
    make_folder(work)
    baseline = await _baseline(package, plan, work, backend, options)
    plan = replace(plan, deselected=tuple(baseline.deselected))
    limits = TaskLimits(timeout_s=round(baseline.timeout_s, 1), memory_mb=options.memory_mb)
    maker = _Maker(package, whole_task(package, plan, limits), baseline, backend, options)
    journal = Journal(work / "journal.jsonl")
    try:
        await _run(maker, journal, out, options, on_progress)
    finally:
        journal.close()
    return maker.progress


async def _baseline(
    package: Package, plan: TestPlan, work: Path, backend: SandboxBackend, options: MakeTasksOptions
) -> Baseline:
    file = work / "baseline.json"
    if file.is_file():
        return Baseline(**json.loads(file.read_text()))
    baseline = await measure(
        package, plan, backend, max_test_s=options.max_test_s, memory_mb=options.memory_mb
    )
    write_json_atomically(file, asdict(baseline))
    return baseline


async def _run(
    maker: _Maker,
    journal: Journal,
    out: Path,
    options: MakeTasksOptions,
    on_progress: Callable[[Progress], None],
) -> None:
    for record in journal.records:
        maker.count(record)
    waiting = iter([found for found in maker.candidates if found.key not in maker.decided])
    on_progress(maker.progress)
    started = time.monotonic()

    async def work() -> None:
        for candidate in waiting:
            if maker.progress.num_valid >= options.num_tasks:
                return
            if maker.per_function[candidate.path, candidate.mutation.function] >= options.per_function:
                continue
            record = await maker.decide(candidate)
            if record["outcome"] == "valid" and maker.progress.num_valid >= options.num_tasks:
                return
            journal.append(record)
            maker.count(record)
            maker.progress.fresh[record["outcome"]] += 1
            maker.progress.search_s = time.monotonic() - started
            if record["outcome"] == "valid":
                _write_rows(out)
            on_progress(maker.progress)

    async with asyncio.TaskGroup() as group:
        for _ in range(options.num_jobs):
            group.create_task(work())
    _write_rows(out)


def _write_rows(out: Path) -> None:
    """All rows of all packages in `out`, by package and in the order in which they were found."""
    lines = []
    for file in sorted(out.glob("work/*/journal.jsonl")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if record["outcome"] == "valid":
                lines.append(json.dumps(record["row"]))
    write_atomically(out / "tasks.jsonl", "".join(f"{line}\n" for line in lines).encode())


class _Maker:
    """Decides about candidates of one package."""

    def __init__(
        self,
        package: Package,
        task: Task,
        baseline: Baseline,
        backend: SandboxBackend,
        options: MakeTasksOptions,
    ) -> None:
        self._package = package
        self._task = task
        self._baseline = baseline
        self._backend = backend
        self._sources = {
            path: Source((package.tree / path).read_text())
            for path in sorted(baseline.covered)
            if not is_protected(path)
        }
        self.candidates = list(self._in_order(options.seed))
        self.decided: set[str] = set()
        self.per_function: Counter[tuple[str, str]] = Counter()
        self.progress = Progress(num_candidates=len(self.candidates))

    def count(self, record: dict[str, Any]) -> None:
        """Take a decision into account."""
        self.decided.add(record["key"])
        self.progress.outcomes[record["outcome"]] += 1
        if record["outcome"] == "valid":
            self.per_function[record["path"], record["function"]] += 1

    def _in_order(self, seed: int) -> Iterator[Candidate]:
        """Mutations of covered lines, one of each operator in turn, at random within each."""
        found: dict[str, list[Candidate]] = defaultdict(list)
        for path, source in self._sources.items():
            lines = self._baseline.covered[path]
            for mutation in mutations(source):
                if str(mutation.first_line) in lines:
                    found[mutation.operator].append(Candidate(path=path, mutation=mutation))
        generator = random.Random(seed)
        for operator in sorted(found):
            generator.shuffle(found[operator])
        while any(found.values()):
            for operator in sorted(found):
                if found[operator]:
                    yield found[operator].pop()

    async def decide(self, candidate: Candidate) -> dict[str, Any]:
        """The journal's record on a candidate."""
        record: dict[str, Any] = {
            "key": candidate.key,
            "path": candidate.path,
            "function": candidate.mutation.function,
            "operator": candidate.mutation.operator,
        }
        try:
            text = apply(self._sources[candidate.path], candidate.mutation)
        except NotDifferent:
            return {**record, "outcome": "not_different"}
        first = await self._failing(candidate.path, text, MUTANT_HASH_SEEDS[0])
        if isinstance(first, str):
            return {**record, "outcome": first}
        second = await self._failing(candidate.path, text, MUTANT_HASH_SEEDS[1])
        if isinstance(second, str) or second.keys() != first.keys():
            return {**record, "outcome": "unstable"}
        return {**record, "outcome": "valid", "row": self._row(candidate, text, first)}

    async def _failing(self, path: str, text: str, hash_seed: int) -> dict[str, str] | str:
        """The stable tests that fail in the mutant, with their messages; else why it is no task."""
        run = await observe(self._task, self._backend, hash_seed=hash_seed, files={path: text})
        if run.result.reason is not ExecEnd.EXIT:
            return run.result.reason.value
        if run.report is None or run.distrusted is not None or run.report.collect_errors:
            return "broken"
        outcomes = run.report.outcomes
        seen = {test: outcomes.get(test, Outcome.MISSING) for test in self._baseline.stable}
        failing = [test for test, outcome in seen.items() if outcome is not Outcome.PASSED]
        if not failing:
            return "survived"
        limit = max(_MAX_FAILING, _MAX_FAILING_SHARE * len(seen))
        if len(failing) > limit or any(seen[test] is Outcome.MISSING for test in failing):
            return "too_broad"
        return {test: run.report.messages.get(test, "") for test in failing}

    def _row(self, candidate: Candidate, text: str, failing: dict[str, str]) -> dict[str, Any]:
        """In the format of SWE-bench, with the record of how it was made as `envsdk`."""
        package, mutation = self._package, candidate.mutation
        original = self._sources[candidate.path].text
        files = dict.fromkeys(test.split("::")[0] for test in failing)
        hidden = {path: (package.tree / path).read_text() for path in files}
        commit = hashlib.sha1(f"{package.label} {candidate.key}".encode()).hexdigest()
        covering = self._baseline.covered[candidate.path].get(str(mutation.first_line), 0)
        return {
            "repo": f"pypi/{package.name}",
            "instance_id": f"{package.name}__{package.version}.{mutation.operator}.{candidate.key}",
            "base_commit": commit,
            "patch": diff({candidate.path: text}, {candidate.path: original}),
            "test_patch": diff({}, hidden),
            "problem_statement": describe(candidate.path, mutation.function, package, failing),
            "hints_text": "",
            "created_at": _CREATED_AT,
            "version": package.version,
            "FAIL_TO_PASS": list(failing),
            "PASS_TO_PASS": [test for test in self._baseline.stable if test not in failing],
            "environment_setup_commit": commit,
            "envsdk": {
                "tree": f"trees/{package.label}",
                "split": "train",
                "licence": package.licence,
                "tests": _plan_values(self._task.tests, package),
                "limits": {
                    "timeout_s": self._task.limits.timeout_s,
                    "memory_mb": self._task.limits.memory_mb,
                },
                "metadata": {
                    "operator": mutation.operator,
                    "file": candidate.path,
                    "function": mutation.function,
                    "line": mutation.first_line,
                    "covering_tests": covering,
                    "baseline_runs": len(HASH_SEEDS),
                    "baseline_hash_seeds": list(HASH_SEEDS),
                    "mutant_hash_seeds": list(MUTANT_HASH_SEEDS),
                    "reference_s": round(self._baseline.reference_s, 3),
                    "versions": {"python": platform.python_version(), "pytest": version("pytest")},
                },
            },
        }


def _plan_values(plan: TestPlan, package: Package) -> dict[str, Any]:
    values: dict[str, Any] = {
        "paths": list(plan.paths),
        "python_path": list(plan.python_path),
        "plugins": list(plan.plugins),
        "options": list(plan.options),
        "deselected": list(plan.deselected),
        "env": dict(plan.env),
    }
    if plan.site is not None:
        values["site"] = f"sites/{package.label}"
    return values


_MAX_LINES = 14
_MAX_EXAMPLES = 2


def describe(path: str, function: str, package: Package, failing: Mapping[str, str]) -> str:
    """`failing`: the messages of pytest by node id; their `E` lines are what is shown."""
    module = ".".join(PurePosixPath(path).relative_to(package.python_path).with_suffix("").parts)
    module = module.removesuffix(".__init__")
    parts = [
        f"{package.name} {package.version}: `{module}` does not do what it should\n",
        f"Something is wrong in or around `{function}`. It worked in an earlier version.\n",
    ]
    examples = list(dict.fromkeys(text for text in map(_seen, failing.values()) if text))[:_MAX_EXAMPLES]
    for example in examples:
        parts.append(f"What is seen:\n\n```\n{example}\n```\n")
    number = len(failing)
    parts.append(
        f"{number} {'case is' if number == 1 else 'cases are'} known to be affected. "
        "Please find the cause and repair it; other behavior should stay as it is.\n"
    )
    return "\n".join(parts)


def _seen(message: str) -> str:
    """What pytest marks with `E`, without the tests' own names."""
    lines = [line[1:].strip() for line in message.splitlines() if line.startswith("E ")]
    return "\n".join([line for line in lines if line and "test_" not in line][:_MAX_LINES])
