"""How a task's tests are sealed: once per task, by runs of its gold patch, kept in the cache.

plain gold, full gold (tells what is expected) --> full gold again, with variants where values are opaque
--> sealed gold, which must come out as plain gold --> sealed base, which tells what would have to be guessed

What gold does not confirm stays as it was: first a claim, then a function, then a file, then the task.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from envsdk.base.processes.loop_locks import lock_of
from envsdk.base.store.atomic import made_once, write_json_atomically
from envsdk.envs.swe.evaluator.evaluation import allowed_s
from envsdk.envs.swe.evaluator.kit import probes
from envsdk.envs.swe.evaluator.layout import link
from envsdk.envs.swe.evaluator.report import Report
from envsdk.envs.swe.evaluator.run import TestRun
from envsdk.envs.swe.evaluator.sealing import judge
from envsdk.envs.swe.evaluator.sealing.claims import Choices, Claim
from envsdk.envs.swe.evaluator.sealing.judge import Expected, Seal
from envsdk.envs.swe.evaluator.sealing.rewrite import rewrite
from envsdk.envs.swe.evaluator.sealing.strength import Sight, Unmet, hidden_bits
from envsdk.envs.swe.evaluator.sealing.tolerance import tolerant_files
from envsdk.envs.swe.evaluator.sealing.values import fields_of, holds
from envsdk.envs.swe.evaluator.stripping import Installed, Stripped, strip
from envsdk.envs.swe.evaluator.trial import try_patch
from envsdk.envs.swe.tasks.runtime import cached
from envsdk.envs.swe.tasks.task import Outcome, Runner, Task
from envsdk.rewards.sandbox.contract import ExecEnd, Image, SandboxBackend, SandboxError
from envsdk.rewards.sandbox.scratch import scratch_folder
from envsdk.rewards.sandbox.threads import in_thread

log = logging.getLogger(__name__)

VERSION = 7
"""Counted up when tests are sealed differently."""
_MAX_RUNS = 12
"""Runs of gold, before a task's tests are left as they are."""


@dataclass(frozen=True, slots=True)
class SealedTests:
    """What a run is made with, and judged by."""

    folder: Path
    """What grading lays over the tree."""
    seal: Seal

    def judged_run(self, run: TestRun) -> TestRun:
        return run if run.report is None else replace(run, report=self.judged(run.report))

    def judged(self, report: Report) -> Report:
        """`report` by the task's own node ids, with a test failed whose claims do not hold.

        Names count as gold's run had them: under another name a test would be judged by no claim.
        """
        if self.seal.problem:
            return report
        ids, known = self.seal.ids, set(self.seal.tests)
        by_own_id = {ids.get(test, test): outcome for test, outcome in report.outcomes.items()}
        outcomes = {test: outcome for test, outcome in by_own_id.items() if test in known}
        messages = {ids.get(test, test): message for test, message in report.messages.items()}
        for test, why in judge.failures(self.seal, report.claims).items():
            if outcomes.get(test, Outcome.PASSED) is Outcome.PASSED:
                outcomes[test] = Outcome.FAILED
                messages[test] = why
        aliases = {alias: tuple(tests) for alias, tests in self.seal.aliases.items()}
        return replace(report, outcomes=outcomes, messages=messages, aliases=aliases)


async def sealed_tests(
    task: Task, image: Image, tests: Path, installed: Installed, backend: SandboxBackend
) -> SealedTests:
    """The sealed tests of `task`, made when they are first asked for.

    Args:
        tests: The folder of hidden tests as they are.
        installed: Modules that a patch must not replace.

    Raises SandboxError: a run of the gold patch broke.
    """
    content = await asyncio.to_thread(task.content_hash)
    identity = f"{VERSION} {backend.name} {content} {image.tree} {image.python} {tests.name}"
    target = cached("sealed", identity)
    async with lock_of(target):
        if not target.is_dir():
            maker = await asyncio.to_thread(_Maker, task, image, tests, installed, backend)
            await maker.make()
            await in_thread(maker.write, target)
    seal = await asyncio.to_thread(_read, target / "seal.json")
    return SealedTests(tests if seal.problem else target / "tests", seal)


@lru_cache(maxsize=256)
def _read(file: Path) -> Seal:
    data = json.loads(file.read_text())
    data["claims"] = {name: Claim(**claim) for name, claim in data["claims"].items()}
    data["expected"] = {
        test: {name: Expected(**wanted) for name, wanted in claims.items()}
        for test, claims in data["expected"].items()
    }
    return Seal(**data)


@dataclass(slots=True)
class _File:
    source: bytes
    imported: bool
    """Other files may import from it."""
    choices: Choices = field(default_factory=Choices)


class _Unsealable(Exception):
    """The tests have to stay as they are; why."""


class _Maker:
    """Makes the seal of one task.

    made -> make() -> write(), once each
    """

    def __init__(
        self, task: Task, image: Image, tests: Path, installed: Installed, backend: SandboxBackend
    ) -> None:
        self._seal = Seal()
        self._task, self._image, self._tests, self._backend = task, image, tests, backend
        self._key = secrets.token_bytes(16)
        self._files: dict[str, _File] = {}
        self._sealed: dict[str, str] = {}
        self._gold = strip(task.gold_patch, task, installed)
        self._num_runs = 0

    async def make(self) -> None:
        try:
            self._files = await asyncio.to_thread(_test_files, self._task, self._tests)
            await self._make()
        except _Unsealable as error:
            self._seal = Seal(problem=str(error), gold_s=self._seal.gold_s)

    def write(self, target: Path) -> None:
        with made_once(target) as folder:
            if not self._seal.problem:
                _copy(self._tests, folder / "tests")
                _lay(folder / "tests", self._sealed)
            write_json_atomically(folder / "seal.json", asdict(self._seal))

    async def _make(self) -> None:
        plain = await self._run({})
        full = await self._run(await asyncio.to_thread(self._rewritten, sealed=False))
        self._seal.tests = sorted(plain.outcomes)
        self._seal.aliases = {alias: list(tests) for alias, tests in plain.aliases.items()}
        passing = {test for test, outcome in plain.outcomes.items() if outcome is Outcome.PASSED}
        if not passing:
            raise _Unsealable("no test passes with the gold patch")
        while await asyncio.to_thread(self._learn, full):
            full = await self._run(await asyncio.to_thread(self._rewritten, sealed=False))
        # A test that fails although nothing in it asserts needs its assertions to fail where they stand.
        self._leave({test for test in passing if full.outcomes.get(test) is not Outcome.PASSED}, whole=True)
        while True:
            self._sealed = await asyncio.to_thread(self._rewritten, sealed=True)
            if not self._seal.claims:
                raise _Unsealable("no test holds an assertion that can be sealed")
            await asyncio.to_thread(self._expect, full, passing)
            sealed = await self._run(self._sealed)
            wrong = await asyncio.to_thread(self._wrong, plain, sealed)
            if not wrong:
                break
            self._leave(wrong)
        await self._weigh()

    async def _run(self, files: Mapping[str, str]) -> Report:
        """A run of the gold patch with `files` laid over the tests."""
        self._num_runs += 1
        if self._num_runs > _MAX_RUNS:
            raise _Unsealable(f"gold did not confirm the sealed tests in {_MAX_RUNS} runs")
        limit_s = self._task.limits.timeout_s
        if files:
            limit_s = allowed_s(limit_s, self._seal.gold_s)
        run = await self._try(files, self._gold, limit_s)
        if run.result.reason is not ExecEnd.EXIT:
            how = f"{run.result.reason.value} after {run.result.elapsed_s:.0f} s"
            if files and run.result.reason is not ExecEnd.INFRASTRUCTURE:
                # A claim does not end a test as a failed assertion does: it may wait for what never comes.
                raise _Unsealable(f"with rewritten tests the gold patch comes to {how}")
            raise SandboxError(f"{self._task.instance_id}: sealing its tests with the gold patch: {how}")
        if run.report is None or run.distrusted is not None:
            raise _Unsealable(f"a run of the gold patch cannot be read: {run.distrusted}")
        self._seal.gold_s = max(self._seal.gold_s, run.result.elapsed_s)
        return run.report

    async def _try(self, files: Mapping[str, str], patch: Stripped, timeout_s: float) -> TestRun:
        async with scratch_folder() as temporary:
            folder = temporary / "tests"
            await in_thread(_copy, self._tests, folder)
            await in_thread(_lay, folder, files)
            return await try_patch(
                self._task, patch, image=self._image, tests=folder, backend=self._backend, timeout_s=timeout_s
            )

    def _rewritten(self, *, sealed: bool) -> dict[str, str]:
        self._seal.claims = {}
        found = {}
        for path, file in list(self._files.items()):
            try:
                made = rewrite(
                    file.source,
                    path,
                    self._key,
                    file.choices,
                    sealed=sealed,
                    keep_docstrings=self._task.tests.runner is not Runner.PYTEST,
                    imported=file.imported,
                )
            except Exception as error:  # noqa: BLE001 (whatever the rewriter does not know stays plain)
                log.info("%s: %s stays as it is: %r", self._task.instance_id, path, error)
                del self._files[path]
                continue
            found[path] = made.text
            self._seal.claims |= made.claims
        return found

    def _learn(self, full: Report) -> bool:
        """Choose by a full run what is sent, and how; whether another full run is needed."""
        hits: defaultdict[str, list[Any]] = defaultdict(list)
        too_often = set[str]()
        for claims in full.claims.values():
            for name, sent in claims.items():
                hits[name] += [json.loads(text) for _, text in sent]
                if len(sent) >= probes.MAX_HITS:
                    too_often.add(name)
        again = False
        for name, claim in self._seal.claims.items():
            choices = self._files[claim.path].choices
            if name in choices.settled:
                continue
            choices.settled.add(name)
            # What gold passes over another patch may reach, and gold cannot say what is expected there.
            is_unsure = claim.optional and claim.varies
            if name not in hits or name in too_often or is_unsure:
                choices.forms[name] = "plain"
            elif claim.kind == "values":
                again |= _learn_values(name, claim, choices, hits[name])
            elif claim.kind == "truths":
                again |= _learn_truths(name, claim, choices, hits[name])
            elif not all(_was_raised(claim, hit) for hit in hits[name]):
                choices.forms[name] = "plain"
        return again

    def _leave(self, tests: set[str], *, whole: bool = False) -> None:
        """Leave more of `tests` as it was: variants and decoys (unless `whole`), then functions, files."""
        plain = {path: set(file.choices.plain_functions) for path, file in self._files.items()}
        for test in sorted(tests):
            path, _, rest = test.partition("::")
            if path not in plain:
                raise _Unsealable(f"{test} does not come out as it must where other tests are sealed")
            claims = {name: self._seal.claims[name] for name in self._seal.expected.get(test, {})}
            varied = {
                name: claim for name, claim in claims.items() if len(claim.order) > 1 or not claim.wanted
            }
            function = rest.partition("[")[0].replace("::", ".")
            if varied and not whole:
                for name, claim in varied.items():
                    choices = self._files[claim.path].choices
                    if claim.wanted:
                        choices.kept[name] = []
                    else:
                        choices.forms[name] = "plain"
            elif function in plain[path]:
                self._files.pop(path, None)
            elif path in self._files:
                self._files[path].choices.plain_functions.add(function)

    def _expect(self, full: Report, passing: set[str]) -> None:
        self._seal.fields = _fields(full)
        self._seal.expected = {
            test: {
                name: judge.expected_of(self._seal.claims[name], sent)
                for name, sent in claims.items()
                if name in self._seal.claims
            }
            for test, claims in full.claims.items()
            if test in passing
        }

    def _wrong(self, plain: Report, sealed: Report) -> set[str]:
        """Tests that do not come out as in the plain run once sealed."""
        self._seal.ids = _matched(list(plain.outcomes), list(sealed.outcomes))
        judged = SealedTests(self._tests, self._seal).judged(sealed)
        return {test for test, outcome in plain.outcomes.items() if judged.outcomes.get(test) is not outcome}

    async def _weigh(self) -> None:
        """What the base tree does not meet, a patch that solves nothing would have to guess. Names that the
        tests import and base lacks do not count: they cost such a patch a line each."""
        limit_s = allowed_s(self._task.limits.timeout_s, self._seal.gold_s)
        files = await asyncio.to_thread(tolerant_files, self._tests, self._sealed)
        run = await self._try(files, Stripped((), ()), limit_s)
        if run.result.reason is ExecEnd.INFRASTRUCTURE:
            raise SandboxError(f"{self._task.instance_id}: sealing its tests: {run.result.output[-500:]}")
        self._seal.hidden_bits = await asyncio.to_thread(self._hidden_bits, run.report)

    def _hidden_bits(self, report: Report | None) -> float:
        claims = report.claims if report is not None else {}
        sent = {self._seal.ids.get(test, test): seen for test, seen in claims.items()}
        lost = tuple(report.collect_errors) if report is not None else ()
        unmet = [
            Unmet(
                self._seal.claims[name],
                self._seal.expected[test][name].hits,
                self._seal.expected[test][name].allowed,
                [json.loads(text) for _, text in sent.get(test, {}).get(name, ())],
            )
            for test in self._failing()
            if not test.startswith(lost)
            for name in sorted(judge.unmet(self._seal, test, sent.get(test, {})))
        ]
        return hidden_bits(unmet, Sight.of(self._sealed.values()))

    def _failing(self) -> list[str]:
        """Node ids of the tests that the base tree is said to fail: all that claim something, where the task
        lists them by other names."""
        listed = [test for test in self._task.fail_to_pass if test in self._seal.expected]
        known = set(self._seal.ids.values())
        return listed or sorted(known & set(self._seal.expected) or self._seal.expected)


def _fields(full: Report) -> dict[str, list[str]]:
    return {
        cls: names
        for claims in full.claims.values()
        for sent in claims.values()
        for kind, text in sent
        if kind == "values"
        for operand in json.loads(text)
        for cls, names in fields_of(operand).items()
    }


def _learn_values(name: str, claim: Claim, choices: Choices, hits: Sequence[Any]) -> bool:
    """Whether another run has to show what variants come to."""
    num_operands = len(claim.cut)
    for hit in hits:
        for operand, fresh in zip(claim.fresh, hit[num_operands:], strict=True):
            if not holds("==", hit[operand], fresh):
                choices.changed.add(name)
    if all(judge.values_hold(claim, hit[:num_operands]) for hit in hits):
        if any(claim.cut) or not claim.can_vary:
            return False
        choices.kept[name] = []
    choices.forms[name] = "truths"
    choices.settled.discard(name)
    return True


def _learn_truths(name: str, claim: Claim, choices: Choices, hits: Sequence[Any]) -> bool:
    """Whether another run has to show the values, which are better than truths without variants."""
    if any(hit[0] is not (not claim.negated) for hit in hits):
        choices.forms[name] = "plain"
        return False
    # A variant that gold raises for is no secret: base raises for it, too.
    clean = [
        variant
        for place, variant in enumerate(claim.order)
        if variant and all(hit[place] is False for hit in hits)
    ]
    kept = max(
        ([variant for variant in clean if claim.places[variant] == place] for place in set(claim.places)),
        key=len,
    )
    had_values = choices.kept.get(name) == []
    choices.kept[name] = kept
    if had_values and not kept:
        choices.forms[name] = "values"
        return True
    return False


def _was_raised(claim: Claim, hit: Sequence[Any]) -> bool:
    if not claim.wanted:
        return not hit[0]
    is_wanted = not set(hit[2]).isdisjoint(hit[0]) and judge.may_be_classes(hit[0])
    return is_wanted and (hit[3] is None or isinstance(hit[3], str))


def _test_files(task: Task, tests: Path) -> dict[str, _File]:
    """The files with tests, and those next to them that they may import, as they are."""
    found = {}
    for planned in task.tests.paths:
        root = tests / planned
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            if path.is_file() and not path.is_symlink() and path.name not in {"conftest.py", "__init__.py"}:
                found[path.relative_to(tests).as_posix()] = path.read_bytes()
    texts = [path.read_bytes() for path in tests.rglob("*.py") if path.is_file()]
    return {path: _File(source, _is_imported(Path(path).stem, texts)) for path, source in found.items()}


def _is_imported(stem: str, texts: Sequence[bytes]) -> bool:
    pattern = re.compile(rb"^\s*(from|import)\s[^#\n]*\b%s\b" % re.escape(stem.encode()), re.MULTILINE)
    return any(pattern.search(text) for text in texts)


def _copy(tests: Path, folder: Path) -> None:
    shutil.copytree(tests, folder, symlinks=True, copy_function=link)


def _lay(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (folder / path).unlink()
        (folder / path).write_text(text, encoding="utf-8")


def _matched(plain: Sequence[str], sealed: Sequence[str]) -> dict[str, str]:
    """Node ids by sealed ones: parameters may have other names, and stand in the same order."""
    by_function: defaultdict[str, list[str]] = defaultdict(list)
    for test in plain:
        by_function[test.partition("[")[0]].append(test)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for test in sealed:
        found[test.partition("[")[0]].append(test)
    return {
        mine: yours
        for function, tests in found.items()
        if len(tests) == len(by_function[function])
        for mine, yours in zip(tests, by_function[function], strict=True)
        if mine != yours
    }
