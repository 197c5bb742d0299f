"""What the reward `code` costs: rewards per second at 64 responses at once, and the overhead.

    python benchmarks/code_reward.py [--json FILE] [--responses N]

Each kind of test cases in turn, with a program that takes almost no time itself. CPU time, which other work
on the machine changes little, is that of this process and of everything that it started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from envsdk.rewards.code import CodeReward
from envsdk.rewards.reward import Sample

AT_ONCE = 64
ADD = "```python\ndef add(a, b):\n    return a + b\n```"
SUM = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
TESTS = "from solution import add\ndef test_small():\n    assert add(1, 2) == 3\n"


def inputs(num_cases: int) -> dict[str, Any]:
    return {
        "inputs": [f"{n} 1\n" for n in range(num_cases)],
        "outputs": [f"{n + 1}\n" for n in range(num_cases)],
    }


KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "1 case of input": (inputs(1), SUM),
    "10 cases of input": (inputs(10), SUM),
    "10 calls": ({"inputs": [[n, 1] for n in range(10)], "outputs": [*range(1, 11)], "fn_name": "add"}, ADD),
    "3 assertions": ({"test_list": [f"assert add({n}, 1) == {n + 1}" for n in range(3)]}, ADD),
    "unit tests": ({"test": TESTS}, ADD),
}


def cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


async def measure(reward: CodeReward, row: dict[str, Any], response: str, num: int) -> dict[str, float]:
    async def score() -> None:
        assert (await reward.score_async(Sample(response=response, row=row))).success

    await score()
    began = time.perf_counter()
    for _ in range(10):
        await score()
    alone_s = (time.perf_counter() - began) / 10
    began, cpu_before = time.perf_counter(), cpu_s()
    for _ in range(num // AT_ONCE):
        await asyncio.gather(*(score() for _ in range(AT_ONCE)))
    taken_s, scored = time.perf_counter() - began, num // AT_ONCE * AT_ONCE
    return {
        "alone_ms": 1000 * alone_s,
        "per_s": scored / taken_s,
        "cpu_ms": 1000 * (cpu_s() - cpu_before) / scored,
    }


async def run(num: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        reward = CodeReward(CodeReward.Args(backend_settings={"state_dir": str(Path(folder) / "sandboxes")}))
        figures = {kind: await measure(reward, row, response, num) for kind, (row, response) in KINDS.items()}
        await reward.close()
    return {"cores": os.cpu_count(), "load": os.getloadavg()[0], "kinds": figures}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--responses", type=int, default=4 * AT_ONCE)
    arguments = parser.parse_args()
    figures = asyncio.run(run(arguments.responses))
    print(f"{figures['cores']} cores, load average {figures['load']:.1f}")
    print(f"{'':20}{'alone':>10}{'at 64':>14}{'CPU time':>12}")
    for kind, found in figures["kinds"].items():
        print(f"{kind:20}{found['alone_ms']:7.0f} ms{found['per_s']:10.1f} /s{found['cpu_ms']:9.1f} ms")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
