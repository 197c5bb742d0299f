"""What rewards cost: a process hop, `exact` in the event loop, `math` per core, `code` at 64 at once.

    python benchmarks/rewards.py [--json FILE] [--repeats N]

Blocks take turns with blocks of a bound, so that ratios hold on a busy machine. Figures are CPU time of this
process and of its workers, unless they say otherwise. Functions that are not installed are left out. The exit
code is 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.loading import load_reward
from envsdk.rewards.reward import Reward, RewardFunction, Sample
from envsdk.rewards.workers import RewardWorkers

HOPS_PER_BLOCK = 2_000
MATH_PER_BLOCK = 200
CODE_AT_ONCE = 64


class Nothing(RewardFunction):
    """A reward that costs nothing: what is left is the hop to its process."""

    def score(self, sample: Sample) -> Reward:
        return Reward(value=1.0, verdict="nothing")


NOTHING = f"{Path(__file__).stem}:Nothing"
TEXT = "So we add the two numbers and see that the sum is even. " * 20


def sums(number: int) -> list[Sample]:
    return [
        Sample(response=f"{TEXT}The answer is \\boxed{{{n + 4 * (n % 2)}}}.", row={"ground_truth": str(n)})
        for n in range(number)
    ]


def formulas(number: int) -> list[Sample]:
    """Answers that need to be parsed: fractions, roots, intervals, sets, formulas; half of them are right."""
    kinds = [
        ("\\frac{{{n}}}{{7}}", "{n}/7"),
        ("{n}\\sqrt{{3}}", "\\sqrt{{3}}\\cdot {n}"),
        ("({n}, \\infty)", "({n},+\\infty)"),
        ("\\{{1, {n}\\}}", "\\{{{n},1\\}}"),
        ("x^2+{n}x", "x(x+{n})"),
    ]
    samples = []
    for n in range(number):
        truth, answer = kinds[n % len(kinds)]
        wrong = 1 if n % 2 else 0
        response = f"{TEXT}The answer is \\boxed{{{answer.format(n=n + 2 + wrong)}}}."
        samples.append(Sample(response=response, row={"ground_truth": truth.format(n=n + 2)}))
    return samples


def programs(number: int) -> list[Sample]:
    tests = [{"stdin": f"{n}\n", "expected_stdout": f"{2 * n}\n"} for n in range(3)]
    row = {"ground_truth": "", "test_cases": json.dumps(tests), "case_type": "input"}
    return [
        Sample(response=f"```python\nprint(2 * int(input()))  # {n}\n```", row=row) for n in range(number)
    ]


def cpu_seconds() -> float:
    """Of this process and its living descendants."""
    this = psutil.Process()
    spent = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent += times.user + times.system
    return spent


def echo(pipe: Any) -> None:
    function = Nothing()
    while True:
        pipe.send_bytes(pickle.dumps(function.score(pickle.loads(pipe.recv_bytes()))))


class BarePipe:
    """The bound of a hop: the same objects through a blocking pipe, one after the other, nothing watched."""

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=echo, args=(theirs,), daemon=True)
        self._process.start()

    def hop(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self._pipe.send_bytes(pickle.dumps(sample))
            pickle.loads(self._pipe.recv_bytes())

    def close(self) -> None:
        self._process.kill()


def timed(work: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    work()
    return clock() - began


class Measurement:
    """Blocks of workers and of their bound, in turns, on one event loop."""

    def __init__(self, repeats: int) -> None:
        self._repeats = repeats
        self._runner = asyncio.Runner()
        self.figures: dict[str, float] = {}
        self.ratios: dict[str, float] = {}

    def close(self) -> None:
        self._runner.close()

    def _opened(self, name: str, **sizes: Any) -> RewardWorkers:
        async def opened() -> RewardWorkers:
            return RewardWorkers(name, {}, **sizes)

        return self._runner.run(opened())

    def _all(self, workers: RewardWorkers, samples: Sequence[Sample]) -> list[Reward]:
        async def scored() -> list[Reward]:
            return await asyncio.gather(*(workers.score(sample) for sample in samples))

        return self._runner.run(scored())

    def hop(self) -> None:
        samples = sums(HOPS_PER_BLOCK)
        bare, workers = BarePipe(), self._opened(NOTHING, world_size=1)
        try:
            self._all(workers, samples[:10])
            pairs = [
                (
                    timed(lambda: bare.hop(samples), cpu_seconds),
                    timed(lambda: self._all(workers, samples), cpu_seconds),
                    timed(lambda: self._all(workers, samples), time.process_time),
                )
                for _ in range(self._repeats)
            ]
        finally:
            self._end(workers)
            bare.close()
        alone, hopped, ours = np.median(pairs, axis=0) / len(samples) * 1e6
        self.figures |= {"hop, both processes, us": hopped, "hop, this process, us": ours}
        self.figures["bare pipe, both processes, us"] = alone
        self.ratios["process hop / bare pipe"] = float(np.median([two / one for one, two, _ in pairs]))

    def exact(self) -> None:
        samples = sums(HOPS_PER_BLOCK)
        function, workers = load_reward("exact", {}), self._opened("exact")
        pairs = [
            (
                timed(lambda: [function.score(sample) for sample in samples], time.process_time),
                timed(lambda: self._all(workers, samples), time.process_time),
            )
            for _ in range(self._repeats)
        ]
        self._end(workers)
        self.figures["exact, us"] = float(np.median([two for _, two in pairs])) / len(samples) * 1e6
        self.ratios["exact by workers / exact alone"] = float(np.median([two / one for one, two in pairs]))

    def math(self) -> None:
        function, workers = load_reward("math", {}), self._opened("math", world_size=1, timeout_s=30)
        for what, samples in (("numbers", sums(HOPS_PER_BLOCK)), ("formulas", formulas(MATH_PER_BLOCK))):
            direct = [function.score(sample) for sample in samples]
            assert [each.value for each in self._all(workers, samples)] == [each.value for each in direct]
            pairs = [
                (
                    timed(lambda: [function.score(sample) for sample in samples], cpu_seconds),  # noqa: B023
                    timed(lambda: self._all(workers, samples), cpu_seconds),  # noqa: B023
                )
                for _ in range(max(3, self._repeats // 4))
            ]
            per_reward = float(np.median([two for _, two in pairs])) / len(samples)
            self.figures[f"math, {what}, rewards per second and core"] = 1 / per_reward
            self.ratios[f"math by workers / alone, {what}"] = float(
                np.median([two / one for one, two in pairs])
            )
        self._end(workers)

    def code(self) -> None:
        workers = self._opened("code")
        samples = programs(CODE_AT_ONCE)
        assert all(reward.success for reward in self._all(workers, samples[:2]))

        def bare() -> None:
            async def run(sample: Sample) -> None:
                async with places:
                    for case in range(3):
                        process = await asyncio.create_subprocess_exec(
                            *(sys.executable, "-c", "print(2 * int(input()))"),
                            stdin=asyncio.subprocess.PIPE,
                            stdout=asyncio.subprocess.PIPE,
                        )
                        await process.communicate(f"{case}\n".encode())

            async def all_of_them() -> None:
                await asyncio.gather(*map(run, samples))

            places = asyncio.Semaphore(psutil.cpu_count() or 1)
            self._runner.run(all_of_them())

        pairs = [
            (timed(bare, time.monotonic), timed(lambda: self._all(workers, samples), time.monotonic))
            for _ in range(3)
        ]
        self._end(workers)
        wall = float(np.median([two for _, two in pairs]))
        self.figures[f"code, {CODE_AT_ONCE} at once, per second of the clock"] = len(samples) / wall
        self.ratios["code / the same programs by bare Python"] = float(
            np.median([two / one for one, two in pairs])
        )

    def _end(self, workers: RewardWorkers) -> None:
        self._runner.run(workers.close())


BOUNDS = {
    "process hop / bare pipe": 8.0,
    "exact by workers / exact alone": 10.0,
    "math by workers / alone, formulas": 1.5,
    "code / the same programs by bare Python": 4.0,
    "exact, us": 500.0,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--repeats", type=int, default=12, help="blocks (default %(default)s)")
    options = parser.parse_args(arguments)
    measurement = Measurement(options.repeats)
    for part in (measurement.hop, measurement.exact, measurement.math, measurement.code):
        try:
            part()
        except ConfigurationError as error:
            print(f"left out: {error}")
    measurement.close()
    for what, value in measurement.figures.items():
        print(f"{what:55} {value:12,.1f}")
    print(f"{'load average':55} {psutil.getloadavg()[0]:12,.1f}")
    found = {**measurement.ratios, **measurement.figures}
    checks = []
    for what, bound in BOUNDS.items():
        if what in found:
            passed = found[what] <= bound
            checks.append({"what": what, "value": found[what], "bound": bound, "passed": passed})
            print(f"{'PASS' if passed else 'FAIL'}  {what}: {found[what]:.2f} (at most {bound:g})")
    for what, ratio in measurement.ratios.items():
        if what not in BOUNDS:
            print(f"      {what}: {ratio:.2f}")
    if options.json:
        figures = {"figures": measurement.figures, "ratios": measurement.ratios, "checks": checks}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(check["passed"] for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
