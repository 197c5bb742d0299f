"""One run of a task's tests in a sandbox, under the evaluator's own configuration."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from envsdk.envs.swe.evaluator.canaries import Canary, make_canary
from envsdk.envs.swe.evaluator.layout import copy_laid
from envsdk.envs.swe.evaluator.report import Report, distrust, read_report, uncollected
from envsdk.envs.swe.tasks.images import SITE
from envsdk.envs.swe.tasks.task import Runner, TestPlan
from envsdk.rewards.sandbox.contract import ExecEnd, ExecResult, Image, Sandbox, SandboxFileError

KIT = Path(__file__).parent / "kit"
KIT_INSIDE = "/opt/kit"
_MAX_REPORT_BYTES = 96 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """An image with the tests of one run laid over it."""

    image: Image
    canaries: tuple[Canary, Canary]
    """The one that runs first and the one that runs last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """The result of one run."""

    __test__ = False

    result: ExecResult
    report: Report | None
    """Without the canaries; None: there is none to read."""
    distrusted: str | None
    """Why the report cannot be believed."""
    is_uncollected: bool = False
    """That is because no test could be collected."""
    coverage: Mapping[str, Mapping[str, Sequence[str]]] | None = None
    """The node ids that ran a line, by file and line, where it was asked for."""


def lay(image: Image, tests: Path, paths: Sequence[str], plan: TestPlan, scratch: Path) -> Laid:
    """Lay `paths` of the folder `tests`, with canaries among them, over `image`.

    The copies are in `scratch`, which must outlive the sandbox.
    """
    source = random.Random(secrets.token_bytes(16))
    folder = _test_folder(tests, plan)
    taken = frozenset(path.relative_to(tests).as_posix() for path in (tests / folder).glob("*.py"))
    with_pytest = plan.runner is Runner.PYTEST
    first = make_canary(folder, taken, source, with_pytest=with_pytest)
    last = make_canary(folder, taken | {first.path}, source, with_pytest=with_pytest)
    binds = dict(image.binds)
    for inside, path in copy_laid(tests, paths, (first, last), scratch).items():
        binds[f"{image.workdir}/{inside}"] = path
    binds[KIT_INSIDE] = KIT
    return Laid(image=replace(image, binds=binds), canaries=(first, last))


async def run_tests(
    sandbox: Sandbox,
    laid: Laid,
    plan: TestPlan,
    *,
    timeout_s: float,
    hash_seed: int = 0,
    coverage_of: Sequence[str] = (),
) -> TestRun:
    """Run the tests of `plan` in a sandbox that was started from `laid.image`.

    Args:
        hash_seed: `PYTHONHASHSEED` of the run.
        coverage_of: Folders, relative to the root, whose lines are counted.

    Raises SandboxError: the sandbox failed outside the run itself.
    """
    root = laid.image.workdir
    first, last = laid.canaries
    key = secrets.token_bytes(32)
    config_path, report_path, coverage_path = (f"/tmp/{secrets.token_hex(8)}" for _ in range(3))
    config = {
        "key": key.hex(),
        "report": report_path,
        "root": root,
        "runner": plan.runner.value,
        "paths": list(plan.paths),
        "site": [SITE] if SITE in laid.image.binds else [],
        "python_path": [str(PurePosixPath(root) / path) for path in plan.python_path],
        "plugins": list(plan.plugins),
        "deselected": list(plan.deselected),
        "first": first.path,
        "last": last.path,
        "env": dict(plan.env),
        "arguments": _arguments(root, plan, first, last),
        "coverage": {"source": [f"{root}/{folder}" for folder in coverage_of], "path": coverage_path}
        if coverage_of
        else None,
    }
    await sandbox.write(config_path, json.dumps(config).encode())
    interpreter = f"'{plan.python}'" if plan.python else "python -P"
    result = await sandbox.exec(
        f"exec {interpreter} {KIT_INSIDE}/launch.py {config_path}",
        timeout_s=timeout_s,
        env={
            "PYTHONHASHSEED": str(hash_seed),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1",
            "PYTHONPATH": "",
            "TZ": "UTC",
            "LANG": "C.UTF-8",
        },
    )
    if result.reason is not ExecEnd.EXIT:
        return TestRun(result=result, report=None, distrusted=None)
    try:
        data = await sandbox.read(report_path, max_bytes=_MAX_REPORT_BYTES)
        report = await asyncio.to_thread(read_report, data, key)
    except SandboxFileError as error:
        return TestRun(result=result, report=None, distrusted=f"no report: {error}")
    covered = None
    if coverage_of:
        covered = json.loads(await sandbox.read(coverage_path, max_bytes=_MAX_REPORT_BYTES))
    distrusted = distrust(report, laid.canaries, result.returncode)
    is_uncollected = distrusted is not None and uncollected(report, laid.canaries)
    report = _without(report, {canary.path for canary in laid.canaries})
    return TestRun(
        result=result, report=report, distrusted=distrusted, is_uncollected=is_uncollected, coverage=covered
    )


def _without(report: Report, files: set[str]) -> Report:
    """`report` without the tests of `files`, and as far as it can be without their errors."""
    outcomes = {test: seen for test, seen in report.outcomes.items() if test.split("::")[0] not in files}
    errors = {name: why for name, why in report.collect_errors.items() if name not in files}
    return replace(report, outcomes=outcomes, collect_errors=errors or report.collect_errors)


def _arguments(root: str, plan: TestPlan, first: Canary, last: Canary) -> list[str]:
    """pytest's arguments. A canary inside a folder of the plan is collected with it, others are named."""
    options = ["-c", "/dev/null", f"--rootdir={root}", f"--confcutdir={root}", "-p", "no:cacheprovider"]
    options += ["-q", "--no-header", "--tb=short", "--color=no", "--continue-on-collection-errors"]
    named = [canary.path for canary in (first, last) if not _is_below(canary.path, plan.paths)]
    return [*options, *plan.options, *(f"{root}/{path}" for path in (*plan.paths, *named))]


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(folder == "." or path.startswith(f"{folder}/") for folder in folders)


def _test_folder(tests: Path, plan: TestPlan) -> str:
    """The folder of the first test file, "" for the root: where canaries look like the rest."""
    path = PurePosixPath(plan.paths[0])
    if (tests / path).is_dir():
        found = sorted((tests / path).rglob("test_*.py")) or sorted((tests / path).rglob("*.py"))
        return found[0].parent.relative_to(tests).as_posix() if found else str(path)
    folder = path.parent.as_posix()
    return "" if folder == "." else folder
