"""The ideal schedule: the real ledger in virtual time, with nothing that costs anything around it.

    python benchmarks/ideal_schedule.py

An episode takes what its lease draws, a training step takes `train_s`, everything else takes
nothing. `simulate` is the bound that a run of the real scheduler on the same draws is compared
with. Beside it stand two schedules that do not use the ledger: one queue per environment group,
and a global pool that does not cancel what became too old.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from statistics import NormalDist
from typing import Any

from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_parts import depth_control
from envsdk.managers.ledger_types import Cancel, Command, Grant, Lease, LedgerConfig, LedgerCounts

Durations = Callable[[int, int, int], float]
"""(task index, member, attempt) -> seconds."""


def lognormal_durations(
    *, mean_s: float, sigma: float, cap_over_median: float = math.inf, seed: int = 0
) -> Durations:
    """Durations from a hash of what is played: any schedule, in any process, draws the same."""
    median_s = mean_s * math.exp(-(sigma**2) / 2)
    standard_normal = NormalDist()

    def duration_s(index: int, member: int, attempt: int) -> float:
        digest = hashlib.blake2b(f"{seed}/{index}/{member}/{attempt}".encode(), digest_size=8).digest()
        uniform = (int.from_bytes(digest, "big") + 0.5) / 2**64
        factor = math.exp(sigma * standard_normal.inv_cdf(uniform))
        return median_s * min(factor, cap_over_median)

    return duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResult:
    """What `num_steps` steps took, after the warm-up."""

    wall_s_per_step: float
    waste: float
    """Finished or cancelled episodes that were not delivered, over all that ended; warm-up included."""
    staleness: tuple[int, ...]
    """Staleness of each delivered trajectory; empty for schedules without the ledger."""
    wait_share: float | None = None
    """Share of the time that the trainer waited, after the warm-up."""
    depth: float | None = None
    """How many batches generation ran ahead on average, after the warm-up."""
    counts: LedgerCounts | None = None


def simulate(
    config: LedgerConfig,
    num_slots: int,
    durations: Callable[[Lease], float],
    train_s: float,
    num_steps: int,
    warmup: int,
) -> ScheduleResult:
    """Drive a `RolloutLedger` through take -> train for `train_s` -> publish -> take.

    Slots are dealt to the tags in proportion to their weights. A cancelled episode frees its slot at
    once, and every token of an episode is of the version its lease was granted under.
    """
    ledger = RolloutLedger(config)
    control = depth_control(config, config.alpha)
    wait_began = 0.0
    waits: list[float] = []
    depths: list[float] = []
    dealt = [tag for tag, weight in config.tag_weights.items() for _ in range(weight)]
    slots = {f"slot{i}": dealt[i * len(dealt) // num_slots] for i in range(num_slots)}

    now, tie = 0.0, count()
    ends: list[tuple[float, int, Lease | None]] = []  # None: the training step ends
    running: set[int] = set()
    version_of: dict[int, int] = {}
    is_training = False
    step_ends: list[float] = []
    staleness: list[int] = []

    def carry_out(commands: list[Command]) -> None:
        freed = []
        for command in commands:
            match command:
                case Grant(lease=lease):
                    running.add(lease.lease_id)
                    version_of[lease.lease_id] = lease.version
                    heapq.heappush(ends, (now + durations(lease), next(tie), lease))
                case Cancel(lease_id=lease_id, slot_id=slot_id):
                    running.discard(lease_id)
                    freed.append(slot_id)
                case _:
                    pass
        if freed:
            carry_out(ledger.slots_idle(freed, now))

    carry_out(ledger.add_slots(slots, now))
    while len(step_ends) < warmup + num_steps:
        now, _, lease = heapq.heappop(ends)
        if lease is None:
            is_training = False
            step_ends.append(now)
            carry_out(ledger.publish(ledger.version + 1, now))
            wait_began = now
        elif lease.lease_id in running:
            running.remove(lease.lease_id)
            carry_out(ledger.finished(lease.lease_id, now, oldest_version=lease.version))
        else:
            continue
        if not is_training:
            had_idle_slot = ledger.has_idle_slot
            batch, commands = ledger.take(config.batch_size, now)
            if batch is not None:
                is_training = True
                staleness += [batch.version - version_of[lease_id] for lease_id in batch.lease_ids]
                heapq.heappush(ends, (now + train_s, next(tie), None))
                waits.append(now - wait_began)
                depths.append(ledger.alpha)
            carry_out(commands)
            if batch is not None and control is not None:
                lasted_s = waits[-1] + train_s
                alpha = control.observe(waited_s=waits[-1], lasted_s=lasted_s, had_idle_slot=had_idle_slot)
                if alpha is not None:
                    carry_out(ledger.set_depth(alpha, now))

    counts = ledger.counts
    ended = counts.started - counts.open
    return ScheduleResult(
        wall_s_per_step=(step_ends[-1] - step_ends[warmup - 1]) / num_steps,
        waste=(ended - counts.delivered) / ended,
        staleness=tuple(staleness),
        wait_share=sum(waits[warmup:]) / (step_ends[-1] - step_ends[warmup - 1]),
        depth=statistics.mean(depths[warmup:]),
        counts=counts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How far generation runs ahead, and how old a sample may be."""

    alpha: float
    max_staleness: int
    max_wait_share: float | None = None

    @classmethod
    def parse(cls, text: str) -> Pace:
        """`ALPHA` or `ALPHA/MAX_STALENESS`; `auto/MAX_STALENESS` finds the depth by itself."""
        depth, _, bound = text.partition("/")
        if depth == "auto":
            return cls(alpha=1, max_staleness=int(bound), max_wait_share=0.1)
        return cls(alpha=float(depth), max_staleness=int(bound) if bound else math.ceil(float(depth)))

    @property
    def warmup(self) -> int:
        """Steps that are not measured: until as much is in the works as there will be."""
        return self.max_staleness + 3 if self.max_wait_share is None else 6 * self.max_staleness

    def config(self, batch_size: int, group_size: int, tag: str, **others: Any) -> LedgerConfig:
        """Of a ledger that keeps to it."""
        return LedgerConfig(
            batch_size=batch_size, group_size=group_size, tag_weights={tag: 1}, **asdict(self), **others
        )


def simulate_group_queues(
    *, num_groups: int, group_size: int, alpha: int, durations: Durations, train_s: float, num_steps: int,
    warmup: int,
) -> ScheduleResult:  # fmt: skip
    """A first-in-first-out queue and `group_size` slots per environment group, as ROLL has them.

    A batch takes the head of each queue once; each training step lets every group start one more task.
    What is more than `alpha` steps old is dropped when a step ends.
    """
    now, step, tie = 0.0, 0, count()
    ends: list[tuple[float, int, int | None, int]] = []  # (when, tie, group or None for training, task)
    queues: list[dict[int, list[int]]] = [
        {} for _ in range(num_groups)
    ]  # task -> [created, started, finished]
    started = [0] * num_groups
    idle = [group_size] * num_groups
    step_ends: list[float] = []
    num_used = num_wasted = 0
    unvisited: set[int] = set(range(num_groups))
    num_collected, is_training = 0, False

    def start(group: int) -> None:
        for task, progress in queues[group].items():
            while idle[group] and progress[1] < group_size:
                duration_s = durations(task, progress[1], 0)
                progress[1] += 1
                idle[group] -= 1
                heapq.heappush(ends, (now + duration_s, next(tie), group, task))

    def begin_step(num_tasks: int) -> None:
        nonlocal num_wasted
        for group, queue in enumerate(queues):
            for _ in range(num_tasks):
                queue[started[group] * num_groups + group] = [step, 0, 0]
                started[group] += 1
            for task in [task for task, progress in queue.items() if step - progress[0] > alpha]:
                num_wasted += queue.pop(task)[1] > 0
            start(group)

    def is_collected() -> bool:
        nonlocal num_collected, num_used, unvisited
        while num_collected < num_groups:
            unvisited = unvisited or set(range(num_groups))
            heads = ((group, next(iter(queues[group]), None)) for group in sorted(unvisited))
            complete = (
                (g, task) for g, task in heads if task is not None and queues[g][task][2] == group_size
            )
            found = next(complete, None)
            if found is None:
                return False
            del queues[found[0]][found[1]]
            unvisited.discard(found[0])
            num_collected += 1
            num_used += 1
        return True

    begin_step(1 + alpha)
    while len(step_ends) < warmup + num_steps:
        now, _, group, task = heapq.heappop(ends)
        if group is None:
            step_ends.append(now)
            step += 1
            is_training, num_collected = False, 0
            begin_step(1)
        else:
            idle[group] += 1
            if task in queues[group]:
                queues[group][task][2] += 1
            start(group)
        if not is_training and is_collected():
            is_training = True
            heapq.heappush(ends, (now + train_s, next(tie), None, -1))
    return _plain_result(step_ends, warmup, num_steps, num_used, num_wasted)


def simulate_plain_pool(
    *, num_groups: int, group_size: int, alpha: int, durations: Durations, train_s: float, num_steps: int,
    warmup: int,
) -> ScheduleResult:  # fmt: skip
    """One global pool that plays everything to its end and drops too old groups when a batch is taken."""
    now, version, tie = 0.0, 0, count()
    ends: list[tuple[float, int, int | None]] = []
    created: dict[int, int] = {}
    num_finished: dict[int, int] = {}
    ready: list[int] = []
    pending: deque[tuple[int, int]] = deque()
    num_idle, num_started, num_used, num_wasted = num_groups * group_size, 0, 0, 0
    step_ends: list[float] = []
    is_training = False

    def grant() -> None:
        nonlocal num_idle, num_started
        while num_idle:
            if not pending:
                if num_started - num_wasted >= (version + alpha + 1) * num_groups:
                    return
                created[num_started], num_finished[num_started] = version, 0
                pending.extend((num_started, member) for member in range(group_size))
                num_started += 1
            task, member = pending.popleft()
            num_idle -= 1
            heapq.heappush(ends, (now + durations(task, member, 0), next(tie), task))

    grant()
    while len(step_ends) < warmup + num_steps:
        now, _, finished_task = heapq.heappop(ends)
        if finished_task is None:
            version += 1
            is_training = False
            step_ends.append(now)
        else:
            num_idle += 1
            num_finished[finished_task] += 1
            if num_finished[finished_task] == group_size:
                ready.append(finished_task)
        if not is_training:
            fresh = [task for task in ready if version - created[task] <= alpha]
            num_wasted += len(ready) - len(fresh)
            ready = fresh
            if len(ready) >= num_groups:
                ready = ready[num_groups:]
                num_used += num_groups
                is_training = True
                heapq.heappush(ends, (now + train_s, next(tie), None))
        grant()
    return _plain_result(step_ends, warmup, num_steps, num_used, num_wasted)


def _plain_result(
    step_ends: list[float], warmup: int, num_steps: int, num_used: int, num_wasted: int
) -> ScheduleResult:
    return ScheduleResult(
        wall_s_per_step=(step_ends[-1] - step_ends[warmup - 1]) / num_steps,
        waste=num_wasted / (num_used + num_wasted),
        staleness=(),
    )


def _all_schedules(
    pace: Pace, durations: Durations, options: argparse.Namespace
) -> dict[str, ScheduleResult]:
    """The same draws under every schedule; without staleness they are all the same one."""
    slots = options.num_groups * options.group_size
    alpha, warmup = int(pace.alpha), pace.warmup
    config = pace.config(slots, options.group_size, "episode", episode_deadline_s=1e9)
    results = {
        "ledger": simulate(
            config,
            slots,
            lambda lease: durations(lease.task.index, lease.member, lease.attempt),
            options.train_s,
            options.num_steps,
            warmup,
        )
    }
    if alpha == pace.max_staleness:
        others = {
            "pool without cancelling": simulate_plain_pool,
            "queue per env group": simulate_group_queues,
        }
        for name, other in others.items():
            results[name] = other(
                num_groups=options.num_groups,
                group_size=options.group_size,
                alpha=alpha,
                durations=durations,
                train_s=options.train_s,
                num_steps=options.num_steps,
                warmup=warmup,
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--num-groups", type=int, default=32, help="groups per batch (default 32)")
    parser.add_argument("--group-size", type=int, default=8, help="trajectories per group (default 8)")
    parser.add_argument("--mean-s", type=float, default=10.0, help="mean episode, seconds (default 10)")
    parser.add_argument("--train-s", type=float, default=10.0, help="training step, seconds (default 10)")
    parser.add_argument("--num-steps", type=int, default=40, help="steps measured (default 40)")
    parser.add_argument("--seeds", type=int, default=3, help="runs averaged (default 3)")
    parser.add_argument(
        "--alpha",
        nargs="+",
        default=["0", "1", "1/2", "2", "2/4", "4", "4/8", "auto/4", "auto/8"],
        metavar="ALPHA[/MAX_STALENESS]",
        help="depths, each with its bound on staleness (default: alpha); `auto/8` finds the depth by itself",
    )
    options = parser.parse_args()

    print(
        f"{options.num_groups} groups of {options.group_size} per batch, as many slots; lognormal episodes "
        f"of mean {options.mean_s:g} s, training {options.train_s:g} s; "
        f"{options.num_steps} steps x {options.seeds} seeds"
    )
    for sigma, cap in ((0.5, math.inf), (0.86, 20.0)):
        print(f"\nsigma {sigma}" + (f", cut at {cap:g} times the median" if math.isfinite(cap) else ""))
        print(
            "alpha/max_staleness  schedule                  s/step  x synchronous  thrown away  "
            "trainer waits  depth  staleness, mean and max"
        )
        synchronous_s = None
        for text in options.alpha:
            pace = Pace.parse(text)
            runs = [
                _all_schedules(
                    pace,
                    lognormal_durations(mean_s=options.mean_s, sigma=sigma, cap_over_median=cap, seed=seed),
                    options,
                )
                for seed in range(options.seeds)
            ]
            for name in runs[0]:
                step_s = statistics.mean(run[name].wall_s_per_step for run in runs)
                waste = statistics.mean(run[name].waste for run in runs)
                synchronous_s = synchronous_s or step_s
                print(
                    f"{text:>19}  {name:24s} {step_s:7.2f} {synchronous_s / step_s:14.2f} {waste:12.1%} "
                    f"{_of_the_ledger([run[name] for run in runs])}",
                    flush=True,
                )


def _of_the_ledger(runs: Sequence[ScheduleResult]) -> str:
    """What only schedules with the ledger know: the trainer's wait, depth and staleness."""
    ages = [age for run in runs for age in run.staleness]
    if not ages:
        return ""
    waits = statistics.mean(run.wait_share or 0.0 for run in runs)
    depth = statistics.mean(run.depth or 0.0 for run in runs)
    return f"{waits:14.1%} {depth:6.2f} {statistics.mean(ages):12.2f} and {max(ages)}"


if __name__ == "__main__":
    main()
