"""Prompts with verifiable rewards: the real scheduler against ideal schedules on the same draws.

    python benchmarks/rlvr_schedule.py [--json FILE] [--num-prompts 32] [--num-steps 8]

A batch has `--num-prompts` prompts with 8 responses each. The length of a response is lognormal in tokens
and cut at `--response-length`; mock engines sample at a constant speed, as many responses at once as they
have places, and queue the others. A trainer that sleeps takes the batches. Two synchronous schedules without
a queue are only simulated, with nothing that costs anything:

    waves          engines play as many whole groups as fit, and the next ones when all of these have ended
    whole groups   the places of a group are taken by the next group when its longest response has ended

The others are run by the real ledger, scheduler, workers, router and engine hosts on Ray, and simulated in
virtual time with the same ledger and the same draw for each (prompt, member, attempt):

    queue          each response leaves its place to the next one; a group stays at one engine
    replication    each response is a request of its own, on any engine
    redundancy     and `--spare` prompts more per batch: the first complete ones count
    alpha A        and generation runs A batches ahead

With filters a share of the groups is dropped and replaced, as by `query_filter_config`. Waves and whole
groups find that out when all groups have ended, and play another round.

The exit code is 1 when a run takes more than 5% longer than the ideal simulation of its policy.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium
import ray
from orchestration import actor, publish_weights, worker_setups, write_toy_tokenizer

from envsdk.config.ray_models import RayArgs
from envsdk.contracts.env import EnvSpec, Info, TextEnv
from envsdk.contracts.run_limits import capacity
from envsdk.contracts.seeds import stable_seed
from envsdk.contracts.trajectory import Task, Trajectory
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_host import EngineHost
from envsdk.engines.mock import LognormalLatency, drawn_latency_s
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_types import Cancel, Command, Grant, GroupReady, Lease, LedgerConfig
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.managers.scheduler import RolloutScheduler, SchedulerSetup
from envsdk.managers.traj_env_manager import TagSetup

TAG = "prompt"
GROUP_SIZE = 8
RUN_SEED = 0
MAX_OVER_IDEAL = 1.05
FILTER_SHARE = 0.3

Draws = Callable[[int, int, int], float]
"""(prompt, member, attempt) -> seconds."""


class OneReply(TextEnv):
    """A prompt with one reply."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        return "P _ _ G turn 0", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return "", 0.0, True, False, {}


SPEC = EnvSpec(id="benchmark/OneReply-v0", entry_point="rlvr_schedule:OneReply", max_steps=1)


def is_dropped(prompt: int) -> bool:
    """Whether the filter drops the groups of this prompt."""
    return stable_seed("filter", prompt) / 2**31 < FILTER_SHARE


def some_groups(group: Sequence[Trajectory]) -> str | None:
    """The group filter of the real runs."""
    return "drawn" if group and is_dropped(group[0].task.index) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A way to schedule."""

    name: str
    shares_prompts: bool = False
    alpha: float = 0
    spare: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is scheduled."""

    num_prompts: int
    num_engines: int
    places: int
    """Of one engine."""
    train_s: float
    num_steps: int
    latency: LognormalLatency
    filters: bool

    def draw(self, prompt: int, member: int, attempt: int) -> float:
        """Seconds that this response takes."""
        task = Task(tag=TAG, split="train", index=prompt)
        seed = task.policy_seed(RUN_SEED, member=member, attempt=attempt)
        return drawn_latency_s(self.latency, stable_seed(seed, 0))

    def ledger(self, policy: Policy) -> LedgerConfig:
        """The ledger of a run and of its simulation."""
        return LedgerConfig(
            batch_size=self.num_prompts * GROUP_SIZE,
            group_size=GROUP_SIZE,
            alpha=policy.alpha,
            tag_weights={TAG: 1},
            num_groups_redundancy=policy.spare,
            episode_deadline_s=3600.0,
            max_group_attempts=100,
            max_fruitless_batches=100,
        )

    def num_slots(self, policy: Policy) -> int:
        """Environments: no prompt that may be played waits for one."""
        return (capacity(policy.alpha, self.num_prompts) + policy.spare) * GROUP_SIZE

    def warmup(self, policy: Policy) -> int:
        """Steps before those that count."""
        return int(policy.alpha) + 3


def simulate_whole_groups(load: Load, *, in_waves: bool) -> float:
    """Seconds per step of a synchronous schedule of whole groups."""
    seats = load.num_engines * (load.places // GROUP_SIZE)
    prompts = count()
    total_s = 0.0
    for _ in range(load.num_steps):
        num_kept = 0
        while num_kept < load.num_prompts:
            batch = [next(prompts) for _ in range(load.num_prompts)]
            longest = [max(load.draw(p, m, 0) for m in range(GROUP_SIZE)) for p in batch]
            ends = [0.0] * seats
            for index, group_s in enumerate(longest):
                if in_waves and index % seats == 0:
                    ends = [max(ends)] * seats
                heapq.heapreplace(ends, ends[0] + group_s)
            total_s += max(ends)
            num_kept += sum(not (load.filters and is_dropped(p)) for p in batch)
        total_s += load.train_s
    return total_s / load.num_steps


class _Engines:
    """Places and queues in virtual time: one queue for all, or one per engine where groups stay together."""

    def __init__(self, load: Load, policy: Policy) -> None:
        self._num_queues = load.num_engines if policy.shares_prompts else 1
        self._free = [load.places * load.num_engines // self._num_queues] * self._num_queues
        self._queues: list[deque[Lease]] = [deque() for _ in range(self._num_queues)]
        self._at: dict[int, int] = {}
        """Where a lease runs or waits."""
        self._running: set[int] = set()

    def arrive(self, lease: Lease) -> None:
        self._at[lease.lease_id] = lease.group_id % self._num_queues
        self._queues[self._at[lease.lease_id]].append(lease)

    def leave(self, lease_id: int) -> None:
        """Ended or cancelled, running or not."""
        where = self._at.pop(lease_id)
        if lease_id in self._running:
            self._running.remove(lease_id)
            self._free[where] += 1

    def is_running(self, lease_id: int) -> bool:
        return lease_id in self._running

    def begin(self) -> Iterator[Lease]:
        """Those that take a place now."""
        for where, queue in enumerate(self._queues):
            while queue and self._free[where]:
                lease = queue.popleft()
                if lease.lease_id in self._at:
                    self._free[where] -= 1
                    self._running.add(lease.lease_id)
                    yield lease


def simulate(load: Load, policy: Policy) -> float:
    """Seconds per step when nothing costs anything: the ledger in virtual time, work-conserving engines."""
    ledger = RolloutLedger(load.ledger(policy))
    engines = _Engines(load, policy)
    now, tie = 0.0, count()
    ends: list[tuple[float, int, Lease | None]] = []  # None: the training step ends
    began_under: dict[int, int] = {}
    step_ends: list[float] = []
    is_training = False
    leased: dict[int, Lease] = {}

    def carry_out(commands: list[Command]) -> None:
        freed = []
        for command in commands:
            match command:
                case Grant(lease=lease):
                    leased[lease.lease_id] = lease
                    engines.arrive(lease)
                case Cancel(lease_id=lease_id, slot_id=slot_id):
                    del leased[lease_id]
                    engines.leave(lease_id)
                    freed.append(slot_id)
                case GroupReady(group_id=group_id, lease_ids=lease_ids):
                    if load.filters and is_dropped(prompt_of[lease_ids[0]]):
                        carry_out(ledger.reject_group(group_id, now))
                case _:
                    pass
        if freed:
            carry_out(ledger.slots_idle(freed, now))
        for lease in engines.begin():
            began_under[lease.lease_id] = ledger.version
            prompt_of[lease.lease_id] = lease.task.index
            took_s = load.draw(lease.task.index, lease.member, lease.attempt)
            heapq.heappush(ends, (now + took_s, next(tie), lease))

    prompt_of: dict[int, int] = {}
    carry_out(ledger.publish(0, now))
    carry_out(ledger.add_slots({f"slot{i}": TAG for i in range(load.num_slots(policy))}, now))
    warmup = load.warmup(policy)
    while len(step_ends) < warmup + load.num_steps:
        now, _, lease = heapq.heappop(ends)
        if lease is None:
            is_training = False
            step_ends.append(now)
            carry_out(ledger.publish(ledger.version + 1, now))
        elif engines.is_running(lease.lease_id):
            engines.leave(lease.lease_id)
            del leased[lease.lease_id]
            carry_out(ledger.finished(lease.lease_id, now, oldest_version=began_under[lease.lease_id]))
        else:
            continue
        if not is_training:
            batch, commands = ledger.take(load.num_prompts * GROUP_SIZE, now)
            if batch is not None:
                is_training = True
                heapq.heappush(ends, (now + load.train_s, next(tie), None))
            carry_out(commands)
    return (step_ends[-1] - step_ends[warmup - 1]) / load.num_steps


async def run(load: Load, policy: Policy, model: Path) -> tuple[float, int]:
    """Seconds per step of a real run, and the largest staleness delivered."""
    engines = {
        f"engine{index}": actor(EngineHost).remote(
            "mock",
            EngineConfig(
                model=None,
                sequence_length=4096,
                max_running=load.places,
                strategy_config={"reply": [[5, 6, 7, 8]], "latency": load.latency.model_dump()},
            ),
        )
        for index in range(load.num_engines)
    }
    await asyncio.gather(*(engine.start.remote() for engine in engines.values()))
    setup = TagSetup(tag=TAG, blueprint=EnvBlueprint(spec=SPEC), max_turns=1, max_new_tokens=8)
    workers = worker_setups(load.num_slots(policy), 1024, setup=setup, model=model, engines=engines)
    scheduler = actor(RolloutScheduler).remote(
        SchedulerSetup(
            ledger=load.ledger(policy),
            workers={
                name: replace(worker, shares_prompts=policy.shares_prompts)
                for name, worker in workers.items()
            },
            run_seed=RUN_SEED,
            group_filters=["rlvr_schedule:some_groups"] if load.filters else [],
        )
    )
    await scheduler.start.remote()
    await scheduler.publish.remote(0)
    warmup = load.warmup(policy)
    step_ends = []
    max_staleness = 0
    for version in range(1, warmup + load.num_steps + 1):
        batch = await scheduler.get_batch.remote(load.num_prompts * GROUP_SIZE)
        max_staleness = max(max_staleness, *(batch.version - t.oldest_version for t in batch.trajectories))
        await asyncio.sleep(load.train_s)
        await asyncio.gather(*(publish_weights(engine, version) for engine in engines.values()))
        await scheduler.publish.remote(version)
        step_ends.append(time.perf_counter())
    await scheduler.close.remote()
    for engine in engines.values():
        ray.kill(engine)
    return (step_ends[-1] - step_ends[warmup - 1]) / load.num_steps, max_staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy under one load; seconds per step."""

    policy: str
    filters: bool
    measured_s: float | None
    """None where it is only simulated."""
    ideal_s: float
    times_whole_groups: float
    """Of the measured time, or else of the simulated one."""
    max_staleness: int
    load_average: float


def rows_of(load: Load, policies: Sequence[Policy], model: Path) -> Iterator[Row]:
    """The simulated schedules, then each policy run beside its simulation."""
    whole_groups_s = simulate_whole_groups(load, in_waves=False)
    for name, seconds in (
        ("waves", simulate_whole_groups(load, in_waves=True)),
        ("whole groups", whole_groups_s),
    ):
        yield Row(
            policy=name,
            filters=load.filters,
            measured_s=None,
            ideal_s=seconds,
            times_whole_groups=whole_groups_s / seconds,
            max_staleness=0,
            load_average=os.getloadavg()[0],
        )
    for policy in policies:
        load_average = os.getloadavg()[0]
        measured_s, max_staleness = asyncio.run(run(load, policy, model))
        yield Row(
            policy=policy.name,
            filters=load.filters,
            measured_s=measured_s,
            ideal_s=simulate(load, policy),
            times_whole_groups=whole_groups_s / measured_s,
            max_staleness=max_staleness,
            load_average=load_average,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--num-prompts", type=int, default=32, help="prompts per batch (default 32)")
    parser.add_argument("--num-engines", type=int, default=4)
    parser.add_argument(
        "--places", type=int, default=32, help="responses an engine samples at once (default 32)"
    )
    parser.add_argument("--spare", type=int, default=8, help="additional prompts (default 8)")
    parser.add_argument("--mean-length", type=int, default=1500, help="tokens (default 1500)")
    parser.add_argument("--response-length", type=int, default=8192, help="longest, tokens (default 8192)")
    parser.add_argument("--sigma", type=float, default=0.86, help="of the length's logarithm (default 0.86)")
    parser.add_argument("--token-s", type=float, default=1 / 1500, help="seconds per token (default 1/1500)")
    parser.add_argument("--train-s", type=float, default=2.0, help="training step, seconds (default 2)")
    parser.add_argument("--num-steps", type=int, default=8, help="steps measured (default 8)")
    parser.add_argument("--policy", nargs="+", help="only these")
    parser.add_argument("--filters", nargs="+", choices=["without", "with"], default=["without", "with"])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    policies = [
        Policy(name="queue", shares_prompts=True),
        Policy(name="replication"),
        Policy(name="redundancy", spare=options.spare),
        Policy(name="alpha 1", alpha=1),
        Policy(name="alpha 2", alpha=2),
    ]
    chosen = [policy for policy in policies if not options.policy or policy.name in options.policy]

    # Workers import the environment from this folder.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")])
    )
    print(
        f"{options.num_prompts} prompts of {GROUP_SIZE} responses a batch, {options.num_engines} engines of "
        f"{options.places} places; {options.mean_length} tokens on average, sigma {options.sigma:g}, "
        f"cut at {options.response_length}, {1 / options.token_s:g} tok/s; training {options.train_s:g} s; "
        f"{options.num_steps} steps; filters drop {FILTER_SHARE:.0%} of the groups\n\n"
        "policy        filters   s/step   ideal  over ideal  x whole groups  staleness  load"
    )
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, ray_runtime(RayArgs()):
        model = write_toy_tokenizer(Path(folder))
        for filters in options.filters:
            load = Load(
                num_prompts=options.num_prompts,
                num_engines=options.num_engines,
                places=options.places,
                train_s=options.train_s,
                num_steps=options.num_steps,
                latency=LognormalLatency(
                    kind="lognormal",
                    mean_s=options.mean_length * options.token_s,
                    sigma=options.sigma,
                    longest_s=options.response_length * options.token_s,
                ),
                filters=filters == "with",
            )
            for row in rows_of(load, chosen, model):
                rows.append(row)
                measured = f"{row.measured_s:8.3f}" if row.measured_s else f"{'-':>8}"
                over = f"{row.measured_s / row.ideal_s - 1:11.1%}" if row.measured_s else f"{'-':>11}"
                print(
                    f"{row.policy:13s} {filters:8s} {measured} {row.ideal_s:7.3f} {over} "
                    f"{row.times_whole_groups:15.2f} {row.max_staleness:10d} {row.load_average:5.1f}",
                    flush=True,
                )
    worst = max(row.measured_s / row.ideal_s for row in rows if row.measured_s)
    is_met = worst <= MAX_OVER_IDEAL
    print(f"\n{'PASS' if is_met else 'FAIL'}  at most {worst - 1:.1%} over the ideal schedule (goal: 5%)")
    if options.json:
        figures = {"rows": [asdict(row) for row in rows], "worst_over_ideal": worst - 1}
        options.json.write_text(json.dumps(figures, indent=2))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
