"""`python -m tests.envs.swe.recorded_outcomes`: run the shipped tasks, and write `outcomes.json` anew."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from envsdk.base.display.terminal import say
from envsdk.base.store.atomic import write_atomically
from envsdk.envs.swe.evaluator.run import TestRun
from envsdk.envs.swe.evaluator.trial import observe, passed
from envsdk.envs.swe.tasks.shipped import OUTCOMES, read_tasks, repositories
from envsdk.rewards.sandbox import SandboxBackend, open_backend


async def record(backend: SandboxBackend) -> dict[str, Any]:
    """The tests of every repository, and by task those that its bug fails."""
    outcomes = {}
    for file in repositories():
        name, tasks = file.stem, list(read_tasks(file))
        whole = replace(tasks[0], setup_patch="", test_patch="", gold_patch="", instance_id=name)
        tests = _passing(await observe(whole, backend), name)
        failing = {}
        for task in tasks:
            left = set(_passing(await observe(task, backend), task.instance_id))
            failing[task.instance_id.partition("__")[2]] = [test for test in tests if test not in left]
        outcomes[name] = {"tests": tests, "fail_to_pass": failing}
    return outcomes


def _passing(run: TestRun, name: str) -> list[str]:
    if run.report is None or run.distrusted is not None:
        raise RuntimeError(f"{name}: {run.distrusted or run.result.reason}\n{run.result.output}")
    return passed(run.report)


async def _main() -> None:
    backend = open_backend("bubblewrap")
    try:
        outcomes = await record(backend)
    finally:
        await backend.aclose()
    write_atomically(OUTCOMES, json.dumps(outcomes, indent=1).encode() + b"\n")
    for name, entry in outcomes.items():
        counts = ", ".join(f"{task} {len(tests)}" for task, tests in entry["fail_to_pass"].items())
        say(f"{name}: {len(entry['tests'])} tests; fail_to_pass: {counts}")


if __name__ == "__main__":
    asyncio.run(_main())
