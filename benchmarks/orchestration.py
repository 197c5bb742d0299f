"""What running episodes costs beside the model: scheduler, workers and engine host on Ray.

    python benchmarks/orchestration.py [--json FILE] [--envs 64 1024 10240] [--turns 40000]
        [--verifiers PYTHON]

The engine is the mock with no latency and the environment does nothing for five turns, so all that
is left is orchestration. Costs are CPU time, user and system, summed over this process and all that
Ray started, over a stretch in which every slot plays; wall times depend on what else the machine does.

Memory per environment compares the largest run with the smallest: the difference in unique set size
(USS) of all actors and this process at the end of each run, over the difference in environments. It
includes the further workers that more environments need.

The floor is one process in which a bare asyncio task per environment sends the same messages, pickled, and
does nothing else: no tokens, no queue, no process. `--verifiers` names a Python with verifiers 0.3
(`pip install verifiers==0.3.1`), whose rollouts of the same environment are measured just before.

The exit code is 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import ray

from envsdk.config.ray_models import RayArgs
from envsdk.contracts import run_limits
from envsdk.contracts.env import EnvSpec, Info, TextEnv
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_host import EngineHost
from envsdk.engines.sampling import SamplingParams
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.env_worker import WorkerSetup
from envsdk.managers.ledger_types import LedgerConfig
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.managers.scheduler import RolloutScheduler, SchedulerSetup
from envsdk.managers.traj_env_manager import TagSetup
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer
from envsdk.weights.transports import Transport, can_share_memory
from envsdk.weights.update import TransferReport, WeightSender, WeightTransfer, update_engines

NUM_TURNS = 5
GROUP_SIZE = 8
WEIGHTS = {"model.weight": np.zeros(1_000_000, np.float32)}
"""As many as the tiny policy has."""
MAX_CPU_MS_PER_TURN = 0.12
MAX_RATIO = 1.0
"""Of the largest run to the one before it."""
MAX_START_S = 30.0
MAX_CALLS_PER_TURN = 0.2
MAX_MB_PER_ENV = 0.3
PEER = Path(__file__).parent / "peers" / "verifiers_turns.py"


class TrivialEnv(TextEnv):
    """Five turns of nothing."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        self._turn = 0
        return "P _ _ G turn 0", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self._turn += 1
        return "P _ _ G turn", 0.0, self._turn >= NUM_TURNS, False, {}


SPEC = EnvSpec(id="benchmark/Trivial-v0", entry_point="orchestration:TrivialEnv")


def write_toy_tokenizer(folder: Path) -> Path:
    """A folder with a tokenizer and its chat template, and no model."""
    write_tokenizer(folder, build_tokenizer(["P _ _ G turn 0 1 2 3 4 5"]), sequence_length=4096)
    return folder


def worker_setups(
    num_envs: int, per_worker: int, *, setup: TagSetup, model: Path, engines: Mapping[str, Any]
) -> dict[str, WorkerSetup]:
    """Workers with `per_worker` slots of one tag each, the last with the rest."""
    return {
        f"w{first // per_worker}": WorkerSetup(
            slots={f"slot{slot}": setup.tag for slot in range(first, min(first + per_worker, num_envs))},
            setups={setup.tag: setup},
            model=model,
            generating=SamplingParams(max_new_tokens=setup.max_new_tokens),
            sequence_length=4096,
            turn_timeout_s=600.0,
            engines=engines,
        )
        for first in range(0, num_envs, per_worker)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run."""

    num_envs: int
    num_workers: int
    start_s: float
    num_turns: int
    turns_per_s: float
    cpu_ms_per_turn: float
    cpu_ms_by_kind: dict[str, float]
    calls_per_turn: float
    uss_mb: float
    """Of all actors and the driver together, at the end."""
    load_average: float
    """Over the minute before the end."""


def processes_by_kind() -> dict[psutil.Process, str]:
    """This process and all below it, by what they are."""
    me = psutil.Process()
    found = {me: "driver"}
    for process in me.children(recursive=True):
        try:
            title = (process.cmdline() or [process.name()])[0]
        except psutil.Error:
            continue
        is_actor = title.startswith("ray::") and "IDLE" not in title
        found[process] = title.removeprefix("ray::").partition(".")[0] if is_actor else "ray itself"
    return found


def cpu_s(processes: Mapping[psutil.Process, str]) -> dict[psutil.Process, float]:
    spent = {}
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        spent[process] = times.user + times.system
    return spent


def uss(processes: Mapping[psutil.Process, str]) -> int:
    """Bytes that only the run's own processes hold."""
    ours = ("EnvWorker", "RolloutScheduler", "EngineHost", "driver")
    return sum(process.memory_full_info().uss for process, kind in processes.items() if kind in ours)


def actor(body: type[Any]) -> Any:
    return ray.remote(num_cpus=0)(body)


async def publish_weights(engine: Any, version: int) -> None:
    """As a run does: in buckets, from this process in place of the trainer's first rank."""

    async def send(transfer: WeightTransfer) -> TransferReport:
        return await asyncio.to_thread(WeightSender(transfer).send, WEIGHTS.items())

    await update_engines(
        {"engine": engine},
        send,
        version=version,
        mode="continue",
        transport=Transport.SHARED_MEMORY if can_share_memory() else Transport.OBJECT_STORE,
        bucket_bytes=32 * 2**20,
    )


TRIVIAL = TagSetup(tag="Trivial", blueprint=EnvBlueprint(spec=SPEC), max_turns=NUM_TURNS, max_new_tokens=8)


async def measure(
    num_envs: int, num_turns: int, model: Path, setup: TagSetup = TRIVIAL, per_worker: int | None = None
) -> Result:
    """Start everything, warm up, and play at least `num_turns` of `setup`.

    `per_worker` is as by default when absent.
    """
    began = time.perf_counter()
    config = EngineConfig(
        model=None, sequence_length=4096, max_running=num_envs, strategy_config={"reply": [[5, 6, 7, 8]]}
    )
    engine = actor(EngineHost).remote("mock", config)
    await engine.start.remote()
    batch_size = max(num_envs // 2, GROUP_SIZE)
    per_worker = per_worker or run_limits.envs_per_worker(num_envs)
    workers = worker_setups(num_envs, per_worker, setup=setup, model=model, engines={"engine": engine})
    scheduler = actor(RolloutScheduler).remote(
        SchedulerSetup(
            ledger=LedgerConfig(
                batch_size=batch_size, group_size=GROUP_SIZE, alpha=1, tag_weights={setup.tag: 1}
            ),
            workers=workers,
            run_seed=0,
        )
    )
    await scheduler.start.remote()
    start_s = time.perf_counter() - began

    version = 0
    await scheduler.publish.remote(version)

    async def play(num_turns: int) -> int:
        nonlocal version
        played = 0
        while played < num_turns:
            batch = await scheduler.get_batch.remote(batch_size)
            played += sum(len(trajectory.turns) for trajectory in batch.trajectories)
            version += 1
            await publish_weights(engine, version)
            await scheduler.publish.remote(version)
        return played

    await play(num_turns // 8)
    kinds = processes_by_kind()
    cpu_before, calls_before = cpu_s(kinds), await scheduler.total_calls.remote()
    began = time.perf_counter()
    played = await play(num_turns)
    wall_s = time.perf_counter() - began
    cpu_after, calls_after = cpu_s(kinds), await scheduler.total_calls.remote()
    spent: Counter[str] = Counter()
    for process, seconds in cpu_after.items():
        spent[kinds[process]] += (seconds - cpu_before[process]) * 1000 / played  # type: ignore[assignment]
    result = Result(
        num_envs=num_envs,
        num_workers=len(workers),
        start_s=start_s,
        num_turns=played,
        turns_per_s=played / wall_s,
        cpu_ms_per_turn=sum(spent.values()),
        cpu_ms_by_kind=dict(spent.most_common()),
        calls_per_turn=(calls_after - calls_before) / played,
        uss_mb=uss(kinds) / 2**20,
        load_average=os.getloadavg()[0],
    )
    await scheduler.close.remote()
    ray.kill(engine)
    return result


def floor_ms(num_envs: int, num_turns: int) -> float:
    """CPU time per turn of bare asyncio tasks that send the same messages, pickled, in one process."""
    ids, mask = np.arange(8, dtype=np.int32), np.zeros(8, np.int8)
    requests: list[tuple[str, str, int, Any]] = []
    waiting: dict[str, asyncio.Future[Any]] = {}
    episodes: list[Any] = []
    num_played = 0

    def sent(message: Any) -> Any:
        return pickle.loads(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    async def play(slot: int) -> None:
        nonlocal num_played
        for episode in itertools.count():
            turns = []
            for turn in range(NUM_TURNS):
                name = f"{slot}.{episode}.{turn}"
                reply = waiting[name] = asyncio.get_running_loop().create_future()
                requests.append((name, f"train-{slot}", turn, ids))
                tokens, scores = await reply
                turns.append(("P _ _ G turn", "P _ _ G", 0.0, tokens.tolist(), scores.tolist()))
                num_played += 1
            episodes.append((slot, turns, ids.tobytes() * NUM_TURNS, mask.tobytes() * NUM_TURNS))

    async def answer() -> float:
        begun_at = 0.0
        while num_played < num_turns * 9 // 8:
            if not begun_at and num_played >= num_turns // 8:
                begun_at = time.process_time()
            await asyncio.sleep(0)
            names, sessions, seeds, prompts = zip(*requests, strict=True) if requests else ((), (), (), ())
            requests.clear()
            if names:
                names, *_ = sent(
                    (names, sessions, seeds, [len(each) for each in prompts], np.concatenate(prompts))
                )
                count = 4 * len(names)
                names, tokens, scores = sent((names, np.zeros(count, np.int32), np.zeros(count, np.float32)))
                for number, name in enumerate(names):
                    part = slice(4 * number, 4 * number + 4)
                    waiting.pop(name).set_result((tokens[part], scores[part]))
            # To the scheduler, from there to the trainer, and the next leases.
            sent([(slot, "train", slot, slot) for slot, *_ in sent(sent(episodes))])
            episodes.clear()
        return time.process_time() - begun_at

    async def run() -> float:
        tasks = [asyncio.ensure_future(play(slot)) for slot in range(num_envs)]
        spent_s = await answer()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return spent_s * 1000 / num_turns

    gc.disable()
    try:
        return asyncio.run(run())
    finally:
        gc.enable()


def verifiers_ms(python: str, num_envs: int) -> float:
    """CPU time per turn of verifiers, in a process of its own."""
    command = [python, str(PEER), "--envs", str(num_envs), "--turns", str(max(5_120, num_envs * NUM_TURNS))]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(printed.splitlines()[-1])["cpu_ms_per_turn"])


def report(results: list[Result]) -> dict[str, bool]:
    """Print figures and goals; which goals are met."""
    for result in results:
        print(
            f"\n{result.num_envs} environments in {result.num_workers} workers, {result.num_turns} turns\n"
            f"  start-up                  {result.start_s:8.2f} s\n"
            f"  turns/s                   {result.turns_per_s:8.0f}\n"
            f"  CPU per turn              {result.cpu_ms_per_turn:8.3f} ms"
        )
        for kind, cost_ms in result.cpu_ms_by_kind.items():
            print(f"    {kind:<24}{cost_ms:8.3f} ms")
        print(
            f"  Ray calls per turn        {result.calls_per_turn:8.4f}\n"
            f"  memory of all processes   {result.uss_mb:8.1f} MB (USS)\n"
            f"  load average              {result.load_average:8.1f}"
        )
    few, many = results[-2:] if len(results) > 1 else results * 2
    ratio = many.cpu_ms_per_turn / few.cpu_ms_per_turn
    calls = max(result.calls_per_turn for result in results)
    goals = {
        f"CPU per turn at {many.num_envs}: {many.cpu_ms_per_turn:.3f} ms <= {MAX_CPU_MS_PER_TURN}": (
            many.cpu_ms_per_turn <= MAX_CPU_MS_PER_TURN
        ),
        f"CPU per turn at {many.num_envs} over that at {few.num_envs}: {ratio:.2f} <= {MAX_RATIO:g}": (
            ratio <= MAX_RATIO
        ),
        f"start-up of {many.num_envs}: {many.start_s:.1f} s <= {MAX_START_S:g}": many.start_s <= MAX_START_S,
        f"Ray calls per turn: {calls:.3f} <= {MAX_CALLS_PER_TURN}": calls <= MAX_CALLS_PER_TURN,
    }
    if many.num_envs > few.num_envs:
        mb = (many.uss_mb - few.uss_mb) / (many.num_envs - few.num_envs)
        goals[f"memory per further environment: {mb:.2f} MB <= {MAX_MB_PER_ENV}"] = mb <= MAX_MB_PER_ENV
    print()
    for text, is_met in goals.items():
        print(f"{'PASS' if is_met else 'FAIL'}  {text}")
    return goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 1024], help="numbers of environments")
    parser.add_argument("--turns", type=int, default=40_000, help="turns to measure (default 40000)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument(
        "--verifiers", metavar="PYTHON", help="also measure verifiers, installed for this Python"
    )
    options = parser.parse_args()

    # Workers import the environment from this folder.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")])
    )
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    floors: dict[int, float] = {}
    peers: dict[int, float] = {}
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder, ray_runtime(RayArgs()):
        model = write_toy_tokenizer(Path(folder))
        for n in options.envs:
            floors[n] = floor_ms(n, options.turns)
            if options.verifiers:
                peers[n] = verifiers_ms(options.verifiers, n)
            results.append(asyncio.run(measure(n, options.turns, model)))
            beside = f", verifiers {peers[n]:.3f}" if n in peers else ""
            cost = results[-1].cpu_ms_per_turn
            print(f"{n} environments, CPU per turn: {cost:.3f} ms, floor {floors[n]:.3f}{beside}", flush=True)
    goals = report(results)
    if options.json:
        figures = {
            "results": [asdict(result) for result in results],
            "goals": goals,
            "floor_cpu_ms_per_turn": floors,
            "verifiers_cpu_ms_per_turn": peers,
            "load_average": os.getloadavg()[0],
        }
        options.json.write_text(json.dumps(figures, indent=2))
    return 0 if all(goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
