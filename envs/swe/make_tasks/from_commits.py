"""Tasks made of the commits of a repository.

    commit -> tests before and after, under several hash seeds -> both lists -> validated, bits counted -> row

What is decided about a commit is kept: the same command resumes where another was stopped.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from envsdk.base.store.atomic import made_once, make_folder, write_atomically
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.evaluator import validate
from envsdk.envs.swe.evaluator.layout import link, tests_folder
from envsdk.envs.swe.evaluator.report import first_error
from envsdk.envs.swe.evaluator.stripping import Stripped, installed_for, strip
from envsdk.envs.swe.evaluator.trial import DoesNotApply, Ended, try_patch
from envsdk.envs.swe.make_tasks.baseline import HASH_SEEDS
from envsdk.envs.swe.make_tasks.commits import Candidate, Clone, issue_of
from envsdk.envs.swe.make_tasks.journal import Journal
from envsdk.envs.swe.make_tasks.options import MakeTasksOptions
from envsdk.envs.swe.tasks.images import prepare_image
from envsdk.envs.swe.tasks.loaders import read_task
from envsdk.envs.swe.tasks.records import Record
from envsdk.envs.swe.tasks.task import Outcome, Task
from envsdk.rewards.sandbox.contract import ExecEnd, SandboxBackend, SandboxError

_MAX_LINES = 1000
"""Lines of source that a commit may change."""
_TIMEOUT_S = 300.0
_MIN_TIMEOUT_S, _TIMEOUT_FACTOR = 30.0, 10.0
_NOT_IN_SITE = re.compile(
    r".*\.pth|.*\.egg-link|__editable__.*|__pycache__|pip|pip-.*|setuptools|setuptools-.*|distutils-precedence.*"
)


class NoTask(Exception):
    """A commit of which no task can be made; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of one commit; JSON values."""

    commit: str
    subject: str
    problem: str
    """Why it is no task; "" where it is one."""
    hidden_bits: float
    weak: bool
    num_failing: int
    """FAIL_TO_PASS."""
    elapsed_s: float
    row: dict[str, Any] | None

    @property
    def is_used(self) -> bool:
        """Whether it counts as one of those that were asked for."""
        return not self.problem and not self.weak

    def told(self) -> str:
        what = self.problem or (
            f"{'weak' if self.weak else 'sound'}, {self.hidden_bits:.1f} bits hidden, "
            f"{self.num_failing} tests fail before it"
        )
        return f"{self.commit[:10]} {self.subject[:60]}: {what} ({self.elapsed_s:.0f} s)"


async def make_of_commits(
    clone: Clone,
    out: Path,
    backend: SandboxBackend,
    options: MakeTasksOptions,
    on_decided: Callable[[Decision], None],
    on_progress: Callable[[str], None],
) -> list[Decision]:
    """Write `out/tasks.jsonl` until it has `num_tasks` rows that are not weak, or no commit is left.

    Args:
        on_decided: Called with each decision in the order of the commits, the newest first.
        on_progress: Called with one line whenever something has changed.
    """
    name = clone.repo.replace("/", "__")
    work = out / "work" / name
    make_folder(work)
    make_folder(out / "repositories")
    linked = out / "repositories" / name
    if not linked.exists():
        linked.symlink_to(clone.folder)
    maker = _Maker(clone, out, backend, options)
    await asyncio.to_thread(maker.make_site, out / "sites" / name)
    commits = await asyncio.to_thread(lambda: list(islice(clone.candidates(), options.num_commits)))
    journal = Journal(work / "journal.jsonl")
    known = {record["commit"]: Decision(**record) for record in journal.records}
    decided: dict[int, Decision] = {}
    shown = 0

    def keep(number: int, decision: Decision) -> None:
        nonlocal shown
        decided[number] = decision
        while shown in decided:
            on_decided(decided[shown])
            shown += 1
        done = list(decided.values())
        on_progress(
            f"{sum(one.is_used for one in done)} of {options.num_tasks} tasks, "
            f"{sum(one.weak and not one.problem for one in done)} weak ones, {len(done)} of {len(commits)} "
            f"commits tried; {decision.commit[:10]} took {decision.elapsed_s:.0f} s"
        )

    waiting = iter(enumerate(commits))

    async def run() -> None:
        for number, candidate in waiting:
            if sum(one.is_used for one in decided.values()) >= options.num_tasks:
                return
            if candidate.commit.id in known:
                keep(number, known[candidate.commit.id])
                continue
            decision = await maker.decide(candidate)
            journal.append({field: getattr(decision, field) for field in Decision.__slots__})
            keep(number, decision)
            _write_rows(out, decided)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(options.num_jobs):
                group.create_task(run())
    finally:
        journal.close()
    _write_rows(out, decided)
    return [decided[number] for number in sorted(decided)]


def _write_rows(out: Path, decided: dict[int, Decision]) -> None:
    rows = [decided[number].row for number in sorted(decided) if decided[number].row is not None]
    write_atomically(out / "tasks.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())


class _Maker:
    """Decides about commits of one clone."""

    def __init__(self, clone: Clone, out: Path, backend: SandboxBackend, options: MakeTasksOptions) -> None:
        self._clone, self._out, self._backend, self._options = clone, out, backend, options
        self._python_path = options.python_path or clone.python_path()
        self._site: str | None = None

    def make_site(self, target: Path) -> None:
        """Links to what `MakeTasksOptions.site` has, without the repository's own modules."""
        if self._options.site is None:
            return
        if not target.is_dir():
            own = self._clone.top_modules(self._python_path)
            with made_once(target) as made:
                for path in sorted(_packages_of(self._options.site).iterdir()):
                    if _NOT_IN_SITE.fullmatch(path.name) or path.name.removesuffix(".py") in own:
                        continue
                    if path.is_dir():
                        ignore = shutil.ignore_patterns("__pycache__")
                        shutil.copytree(path, made / path.name, copy_function=link, ignore=ignore)
                    else:
                        link(str(path), str(made / path.name))
        self._site = target.relative_to(self._out).as_posix()

    async def decide(self, candidate: Candidate) -> Decision:
        commit = candidate.commit
        started = time.monotonic()
        row: dict[str, Any] | None = None
        bits, weak, problem = 0.0, False, ""
        try:
            row = await self._measured(candidate)
            (validation,) = await validate([self._task(row)], self._backend)
            problem, bits, weak = validation.problem, validation.hidden_bits, validation.weak
            row["envsdk"]["metadata"] |= {"hidden_bits": round(bits, 1), "weak": weak}
        except NoTask as error:
            problem = str(error)
        except (ConfigurationError, SandboxError) as error:
            problem = f"cannot be tried: {error}"
        return Decision(
            commit=commit.id,
            subject=commit.message.strip().partition("\n")[0],
            problem=problem,
            hidden_bits=bits,
            weak=weak,
            num_failing=len(row["FAIL_TO_PASS"]) if row else 0,
            elapsed_s=round(time.monotonic() - started, 1),
            row=None if problem else row,
        )

    async def _measured(self, candidate: Candidate) -> dict[str, Any]:
        """A row with both lists. Raises NoTask."""
        if candidate.num_lines > _MAX_LINES:
            raise NoTask(f"changes {candidate.num_lines:,} lines of source, more than {_MAX_LINES:,}")
        row = self._row(candidate)
        task = self._task(row)
        after = [await self._outcomes(task, task.gold_patch, HASH_SEEDS[0])]
        before = [await self._outcomes(task, "", HASH_SEEDS[0])]
        _, failing = _lists(before, after)
        if not failing:
            raise NoTask(_why_none(before[0], after[0]))
        for seed in HASH_SEEDS[1:2]:
            after.append(await self._outcomes(task, task.gold_patch, seed))
            before.append(await self._outcomes(task, "", seed))
        passing, failing = _lists(before, after)
        if not failing:
            raise NoTask("the tests that fail before it do not come out alike each time")
        unstable = [test for test in after[0] if len({run.get(test) for run in after}) > 1]
        slowest = max(run[_SECONDS] for run in after)
        row["FAIL_TO_PASS"], row["PASS_TO_PASS"] = failing, passing
        row["envsdk"]["tests"]["deselected"] = [test for test in unstable if test != _SECONDS]
        row["envsdk"]["limits"]["timeout_s"] = round(max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * slowest))
        return row

    def _row(self, candidate: Candidate) -> dict[str, Any]:
        commit = candidate.commit
        options = self._options
        tests: dict[str, Any] = {
            "paths": list(candidate.test_files),
            "python_path": list(self._python_path),
            "plugins": list(options.plugins),
            "options": list(options.pytest_options),
        }
        if self._site is not None:
            tests["site"] = self._site
        return {
            "repo": self._clone.repo,
            "instance_id": f"{self._clone.repo.replace('/', '__')}-{commit.id[:10]}",
            "base_commit": commit.parent,
            "patch": candidate.gold,
            "test_patch": candidate.tests,
            "problem_statement": issue_of(commit),
            "hints_text": "",
            "created_at": commit.time,
            "version": "",
            "FAIL_TO_PASS": [],
            "PASS_TO_PASS": [],
            "envsdk": {
                "split": "train",
                "tests": tests,
                "limits": {"timeout_s": _TIMEOUT_S, "memory_mb": options.memory_mb},
                "metadata": {"commit": commit.id, "hash_seeds": list(HASH_SEEDS[:2])},
            },
        }

    def _task(self, row: dict[str, Any]) -> Task:
        return read_task(Record(row, f"{self._out / 'tasks.jsonl'}:record 1"), self._out / "repositories")

    async def _outcomes(self, task: Task, patch: str, hash_seed: int) -> dict[str, Any]:
        """Outcomes of all tests, and under `_SECONDS` how long they took. Raises NoTask: they did not run."""
        image = await prepare_image(task, self._backend)
        assert image.tree is not None
        tests = await asyncio.to_thread(tests_folder, task, image.tree)
        stripped = Stripped((), ())
        if patch:
            installed = await asyncio.to_thread(installed_for, task, image.tree, frozenset(), tests)
            stripped = await asyncio.to_thread(strip, patch, task, installed)
        when = "with" if patch else "without"
        try:
            run = await try_patch(
                task,
                stripped,
                image=image,
                tests=tests,
                backend=self._backend,
                timeout_s=task.limits.timeout_s,
                hash_seed=hash_seed,
            )
        except (DoesNotApply, Ended) as error:
            raise NoTask(str(error)) from None
        if run.result.reason is ExecEnd.INFRASTRUCTURE:
            raise SandboxError(run.result.output[-500:])
        if run.result.reason is not ExecEnd.EXIT:
            raise NoTask(f"its tests {when} it end by {run.result.reason.value}")
        if run.report is None or (run.distrusted and not (run.is_uncollected and not patch)):
            lacks = re.findall(r"No module named '[\w.]+'", run.result.output)
            raise NoTask(f"its tests {when} it cannot be run: {lacks[-1] if lacks else run.distrusted}")
        errors = run.report.collect_errors
        if patch and errors and Outcome.PASSED not in run.report.outcomes.values():
            raise NoTask(f"its tests {when} it cannot be collected: {first_error(errors)}")
        return {**run.report.outcomes, _SECONDS: run.result.elapsed_s}


_SECONDS = "seconds"


def _lists(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """PASS_TO_PASS and FAIL_TO_PASS: what comes out alike in each run."""
    passing, failing = [], []
    for test in _tests(after[0]):
        if all(run.get(test) is Outcome.PASSED for run in after):
            passed = [run.get(test) is Outcome.PASSED for run in before]
            if all(passed):
                passing.append(test)
            elif not any(passed):
                failing.append(test)
    return passing, failing


def _tests(run: dict[str, Any]) -> Iterator[str]:
    return (test for test in run if test != _SECONDS)


def _why_none(before: dict[str, Any], after: dict[str, Any]) -> str:
    passed = [sum(run[test] is Outcome.PASSED for test in _tests(run)) for run in (before, after)]
    return f"no test fails before it and passes after: {passed[0]} pass before, {passed[1]} after"


def _packages_of(site: Path) -> Path:
    """The folder of packages of a virtual environment; any other folder is one itself.

    Raises ConfigurationError: there is none, or that of another Python.
    """
    if not site.is_dir():
        raise ConfigurationError(f"--site {site}: there is no such folder")
    if not (site / "pyvenv.cfg").is_file():
        return site
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = site / "lib" / version / "site-packages"
    if not found.is_dir():
        raise ConfigurationError(f"--site {site}: is no virtual environment of this {version}")
    return found
