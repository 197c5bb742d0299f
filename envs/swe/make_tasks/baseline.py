"""What the unchanged tests of a package do: which are stable, how long they take, which lines they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.evaluator.report import Report
from envsdk.envs.swe.evaluator.run import TestRun
from envsdk.envs.swe.evaluator.trial import observe, passed
from envsdk.envs.swe.make_tasks.package import Package
from envsdk.envs.swe.tasks.task import Task, TaskLimits, TestPlan, TreeSource
from envsdk.rewards.sandbox.contract import WORKDIR, ExecEnd, SandboxBackend

HASH_SEEDS = (0, 17, 34)
MUTANT_HASH_SEEDS = (0, 99)
_FIRST_TIMEOUT_S = 1800.0
_MIN_TIMEOUT_S = 15.0
_TIMEOUT_FACTOR = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the tests of one package do as they are; JSON values."""

    stable: list[str]
    """Node ids that passed in every run, in order."""
    deselected: list[str]
    """Node ids that are left out: not stable, or too slow."""
    run_s: list[float]
    """Duration of each run; of the first with all tests."""
    covered: dict[str, dict[str, int]]
    """How many tests run a line, by file and line."""

    @property
    def reference_s(self) -> float:
        return max(self.run_s[1:])

    @property
    def timeout_s(self) -> float:
        return max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * self.reference_s)


def whole_task(package: Package, plan: TestPlan, limits: TaskLimits) -> Task:
    """The package as it is, as a task without a bug."""
    return Task(
        instance_id=package.label,
        repo=f"pypi/{package.name}",
        source=TreeSource(folder=package.tree),
        problem_statement="",
        gold_patch="",
        tests=plan,
        limits=limits,
        version=package.version,
        licence=package.licence,
    )


def plan_of(package: Package, *, plugins: Sequence[str] = (), options: Sequence[str] = ()) -> TestPlan:
    return TestPlan(
        paths=package.tests,
        python_path=(package.python_path,),
        site=package.site,
        plugins=tuple(plugins),
        options=tuple(options),
    )


async def measure(
    package: Package, plan: TestPlan, backend: SandboxBackend, *, max_test_s: float, memory_mb: int
) -> Baseline:
    """Run the tests three times with different hash seeds, and once more for the lines they run.

    Raises ConfigurationError: no test passes, or the runs cannot be believed.
    """
    limits = TaskLimits(timeout_s=_FIRST_TIMEOUT_S, memory_mb=memory_mb)
    task = whole_task(package, plan, limits)
    first_run = await observe(task, backend, hash_seed=HASH_SEEDS[0])
    first = _believed(first_run, package)
    slow = {test for test, seconds in first.seconds.items() if seconds > max_test_s}
    good = [test for test in passed(first) if test not in slow]
    left_out = [test for test in first.outcomes if test not in good]
    task = replace(task, tests=replace(plan, deselected=tuple(left_out)))
    durations = [first_run.result.elapsed_s]
    for seed in HASH_SEEDS[1:]:
        run = await observe(task, backend, hash_seed=seed)
        still = set(passed(_believed(run, package)))
        durations.append(run.result.elapsed_s)
        left_out += [test for test in good if test not in still]
        good = [test for test in good if test in still]
    if not good:
        raise ConfigurationError(f"{package.label}: no test passes:\n{first_run.result.output[-1500:]}")
    covering = await observe(task, backend, coverage_of=[package.source], packages=("pytest", "coverage"))
    _believed(covering, package)
    return Baseline(
        stable=good,
        deselected=left_out,
        run_s=durations,
        covered=_covered(covering.coverage or {}, set(good)),
    )


def _believed(run: TestRun, package: Package) -> Report:
    if run.report is None or run.distrusted is not None or run.result.reason is not ExecEnd.EXIT:
        problem = run.distrusted or run.result.reason.value
        raise ConfigurationError(
            f"{package.label}: its tests cannot be run: {problem}\n{run.result.output[-1500:]}"
        )
    return run.report


def _covered(
    contexts: Mapping[str, Mapping[str, Sequence[str]]], stable: set[str]
) -> dict[str, dict[str, int]]:
    """Counts by file and line of contexts that are stable tests."""
    found = {}
    for file, lines in contexts.items():
        counts = {line: sum(test in stable for test in tests) for line, tests in lines.items()}
        path = file.removeprefix(f"{WORKDIR}/")
        found[path] = {line: count for line, count in counts.items() if count}
    return found
