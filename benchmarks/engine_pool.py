"""What several engines give over one, and what the death of one costs: the pool with mock engines.

    python benchmarks/engine_pool.py [--json FILE] [--seconds 5] [--repeats 5] [--kills 3]

Throughput: each engine is a process that runs 16 requests at once, of lognormal length. Two proxies keep
twice as many turns open as all engines together run, for one engine and for all, by turns in one run; the
ratio is the median over the repeats.

Death: the same proxies on a pool whose engines are started again. One is ended by `kill -9` while turns
run on all of them. A turn is lost when it is answered with an error or other than whole, or not at all. The
mock's script begins anew where a turn goes on elsewhere, which shows how many tokens the turn had kept.

The exit code is 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import ray

from envsdk.config.ray_models import RayArgs
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import EngineConfig, GenerationRequest, GenerationResult
from envsdk.engines.engine_host import EngineHost, RayLink
from envsdk.engines.engine_pool import PoolConfig
from envsdk.engines.proxy import InferenceProxy
from envsdk.engines.sampling import SamplingParams
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.runs.engine_group import EngineGroup, EngineGroupSpec
from envsdk.runs.trainer_group import TrainerGroup
from envsdk.weights.update import TransferReport, WeightSender, WeightTransfer

NUM_ENGINES = 4
PLACES = 16
NUM_TOKENS = 32
NUM_PROXIES = 2
MEAN_S = 0.1
"""Of a turn while throughput is measured."""
LONG_MEAN_S = 1.0
"""The same while engines are killed."""
MIN_RATIO = 3.8
PATIENCE_S = 120.0


def engine_config(mean_s: float) -> EngineConfig:
    return EngineConfig(
        model=None,
        sequence_length=512,
        max_running=PLACES,
        strategy_config={
            "reply": list(range(NUM_TOKENS)),
            "latency": {"kind": "lognormal", "mean_s": mean_s, "sigma": 0.5},
        },
    )


@dataclass(slots=True)
class Turn:
    """One turn and its end."""

    asked_at: float
    answered_at: float = 0.0
    is_whole: bool = False
    num_kept: int = 0
    """Tokens it had when it went on elsewhere; 0 when it did not, or had none."""


class Players:
    """Keep `num_open` turns open, dealt out between the proxies."""

    def __init__(self, proxies: Sequence[InferenceProxy], num_open: int) -> None:
        self._proxies = proxies
        self._num_open = num_open
        self._ids = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._stops = False
        self.turns: list[Turn] = []

    def start(self) -> None:
        for number in range(self._num_open):
            proxy = self._proxies[number % len(self._proxies)]
            self._tasks.append(asyncio.create_task(self._play(proxy)))

    async def stop(self) -> None:
        """When every open turn has ended, or too long has passed."""
        self._stops = True
        await asyncio.wait(self._tasks, timeout=PATIENCE_S)
        for task in self._tasks:
            task.cancel()

    def turns_per_s(self, begin: float, end: float) -> float:
        return sum(begin <= turn.answered_at < end for turn in self.turns) / (end - begin)

    async def _play(self, proxy: InferenceProxy) -> None:
        while not self._stops:
            number = next(self._ids)
            request = GenerationRequest(
                request_id=f"turn-{number}",
                prompt_ids=np.arange(8, dtype=np.int32),
                sampling=SamplingParams(max_new_tokens=NUM_TOKENS, seed=number),
            )
            turn = Turn(asked_at=time.monotonic())
            self.turns.append(turn)
            result = await proxy.generate(request)
            turn.answered_at = time.monotonic()
            turn.is_whole = is_whole(result)
            is_script = result.token_ids == np.arange(len(result.token_ids))
            turn.num_kept = 0 if is_script.all() else int(is_script.argmin())


def is_whole(result: GenerationResult) -> bool:
    spans = [(span.start, span.end) for span in result.version_spans]
    covered = [0, *(end for _, end in spans)]
    return (
        result.finish_reason is FinishReason.LENGTH
        and len(result.token_ids) == len(result.logprobs) == covered[-1] == NUM_TOKENS
        and covered[:-1] == [start for start, _ in spans]
    )


def open_proxies(engines: Mapping[str, Any], label: str) -> list[InferenceProxy]:
    proxies = []
    for number in range(NUM_PROXIES):
        links = {name: RayLink(f"{label}-{number}#0", actor) for name, actor in engines.items()}
        proxies.append(InferenceProxy(links, turn_timeout_s=PATIENCE_S, engines_return=True))
        proxies[-1].start()
    return proxies


async def throughput(seconds: float, repeats: int) -> dict[str, Any]:
    """Turns/s of one engine and of all, by turns."""
    host: Any = ray.remote(num_cpus=0)(EngineHost)
    engines = {f"engine-{index}": host.remote("mock", engine_config(MEAN_S)) for index in range(NUM_ENGINES)}
    await asyncio.gather(*(engine.start.remote() for engine in engines.values()))
    found: dict[int, list[float]] = {1: [], NUM_ENGINES: []}
    for repeat in range(repeats + 1):  # the first round opens connections and is not counted
        for num_engines, rates in found.items():
            used = dict(itertools.islice(engines.items(), num_engines))
            proxies = open_proxies(used, f"{repeat}-{num_engines}")
            players = Players(proxies, 2 * PLACES * NUM_ENGINES)
            players.start()
            await asyncio.sleep(1.0)
            begin = time.monotonic()
            await asyncio.sleep(seconds)
            rate = players.turns_per_s(begin, time.monotonic())
            await players.stop()
            for proxy in proxies:
                await proxy.close()
            if repeat:
                rates.append(rate)
                print(
                    f"{num_engines} engine{'s' if num_engines > 1 else ' '}  {rate:8.1f} turns/s", flush=True
                )
    for engine in engines.values():
        ray.kill(engine)
    ratios = [many / one for one, many in zip(*found.values(), strict=True)]
    bound = PLACES / MEAN_S
    return {
        "turns_per_s": {str(number): statistics.median(rates) for number, rates in found.items()},
        "bound_of_one": bound,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
    }


class Sender:
    """Stands for the trainer's first rank; its weights are next to nothing."""

    def send(self, transfer: WeightTransfer) -> TransferReport:
        return WeightSender(transfer).send([("weight", np.zeros(8, np.float32))])

    def node_id(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


class StandInTrainer:
    """What an `EngineGroup` asks of a trainer."""

    def __init__(self) -> None:
        self._sender: Any = ray.remote(num_cpus=0)(Sender).remote()

    async def send_weights(self, transfer: WeightTransfer) -> TransferReport:
        report: TransferReport = await self._sender.send.remote(transfer)
        return report

    async def node_id(self) -> str:
        node: str = await self._sender.node_id.remote()
        return node

    async def card(self) -> str:
        return ""

    async def has_adapter(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One engine was killed."""

    moved_s: float
    """Until every turn that was open then was answered."""
    rejoined_s: float
    """Until the engine was back, with the newest weights, and the workers knew."""
    share_meanwhile: float
    """Turns/s between death and return, over those before."""


async def deaths(kills: int) -> dict[str, Any]:
    """Kill engines of a pool under load."""
    spec = EngineGroupSpec(
        strategy_name="mock",
        configs={f"engine-{index}": engine_config(LONG_MEAN_S) for index in range(NUM_ENGINES)},
        pool=PoolConfig(max_restarts=kills),
        weight_update="continue",
        transport="auto",
        bucket_bytes=1 << 20,
    )
    proxies: list[InferenceProxy] = []
    joined = asyncio.Event()

    async def announce(name: str, actor: Any | None) -> None:
        assert actor is not None
        for number, proxy in enumerate(proxies):
            proxy.add_engine(name, RayLink(f"deaths-{number}#0", actor))
        joined.set()

    group = EngineGroup(spec, cast(TrainerGroup, StandInTrainer()), announce, print)
    await group.start()
    await group.choose_transport()
    await group.publish(1)
    proxies += open_proxies(group.actors, "deaths")
    players = Players(proxies, 2 * PLACES * NUM_ENGINES)
    players.start()
    found: list[Death] = []
    for kill in range(kills):
        began = time.monotonic()
        await asyncio.sleep(5 * LONG_MEAN_S)
        joined.clear()
        victims = sorted(engine_processes())
        open_turns = [turn for turn in players.turns if not turn.answered_at]
        killed_at = time.monotonic()
        os.kill(random.Random(kill).choice(victims), signal.SIGKILL)
        await asyncio.wait_for(joined.wait(), PATIENCE_S)
        rejoined_at = time.monotonic()
        while any(not turn.answered_at for turn in open_turns):
            assert time.monotonic() < killed_at + PATIENCE_S, "a turn was never answered"
            await asyncio.sleep(0.05)
        before = players.turns_per_s(began + LONG_MEAN_S, killed_at)
        found.append(
            Death(
                moved_s=max(turn.answered_at for turn in open_turns) - killed_at,
                rejoined_s=rejoined_at - killed_at,
                share_meanwhile=players.turns_per_s(killed_at, rejoined_at) / before,
            )
        )
        print(
            f"killed: open turns answered after {found[-1].moved_s:.2f} s, back after "
            f"{found[-1].rejoined_s:.2f} s, {found[-1].share_meanwhile:.0%} of the turns/s meanwhile",
            flush=True,
        )
    await players.stop()
    for proxy in proxies:
        await proxy.close()
    group.close()
    return {
        "deaths": [asdict(death) for death in found],
        "moved_s": statistics.median(death.moved_s for death in found),
        "rejoined_s": statistics.median(death.rejoined_s for death in found),
        "share_meanwhile": statistics.median(death.share_meanwhile for death in found),
        "turns": len(players.turns),
        "turns_continued": sum(turn.num_kept > 0 for turn in players.turns),
        "tokens_kept": sum(turn.num_kept for turn in players.turns),
        "turns_lost": sum(not turn.is_whole for turn in players.turns),
    }


def engine_processes() -> set[int]:
    """Pids of the engines below this process."""
    return {
        process.pid
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE and process.name().startswith("ray::EngineHost")
    }


def report(many: Mapping[str, Any], died: Mapping[str, Any]) -> dict[str, bool]:
    """Print figures and goals; which goals are met."""
    print(f"\nbound of one engine: {many['bound_of_one']:.0f} turns/s ({PLACES} places, {MEAN_S} s each)")
    print(
        f"{died['turns']} turns while engines were killed; {died['turns_continued']} went on elsewhere with "
        f"the {died['tokens_kept']} tokens they had. Medians:"
    )
    print(f"  open turns answered after  {died['moved_s']:6.2f} s")
    print(f"  engine back after          {died['rejoined_s']:6.2f} s")
    print(f"  turns/s meanwhile          {died['share_meanwhile']:6.0%} (3 of 4 engines: 75%)\n")
    goals = {
        f"{NUM_ENGINES} engines over 1: {many['ratio']:.2f} >= {MIN_RATIO}": many["ratio"] >= MIN_RATIO,
        f"turns lost: {died['turns_lost']} of {died['turns']}": died["turns_lost"] == 0,
    }
    for text, is_met in goals.items():
        print(f"{'PASS' if is_met else 'FAIL'}  {text}")
    return goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one measurement (default 5)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each (default 5)")
    parser.add_argument("--kills", type=int, default=3, help="engines to kill (default 3)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()

    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with ray_runtime(RayArgs()):
        many = asyncio.run(throughput(options.seconds, options.repeats))
        died = asyncio.run(deaths(options.kills))
    goals = report(many, died)
    if options.json:
        figures = {
            "throughput": many,
            "recovery": died,
            "goals": goals,
            "load_average": os.getloadavg()[0],
        }
        options.json.write_text(json.dumps(figures, indent=2))
    return 0 if all(goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
