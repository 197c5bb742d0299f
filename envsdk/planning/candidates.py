"""Configurations to choose from, and the choice. Pure.

    plan = Plan(workload=..., devices=40, base=Candidate(...), ...)
    rows = plan.explore()
    best(rows)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from envsdk.failures import ConfigurationError
from envsdk.managers.ledger_types import LedgerConfig
from envsdk.planning.simulation import Prediction, RunStalls, Simulated, simulate
from envsdk.planning.workload import Workload

AS_GOOD = 0.01
"""Throughputs that differ by less than this share count as equal: the less stale one is better then."""
_MOST_ROUNDS = 3
_TAG = "episode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration."""

    sampling_devices: int
    """Devices of all engines together; the rest train."""
    async_generation_ratio: float
    group_size: int
    infer_batch_size: int
    max_staleness: int | None = None
    num_groups_redundancy: int = 0
    group_size_redundancy: int = 0
    is_shared: bool = False
    """Whether sampling and training take turns on all devices. Synchronous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A candidate and what came of it."""

    candidate: Candidate
    prediction: Prediction | None
    problem: str = ""
    """Why there is no prediction."""

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens; 0 without a prediction."""
        return 0.0 if self.prediction is None else self.prediction.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What stays the same, and the values to try."""

    workload: Workload
    devices: int
    batch_size: int
    base: Candidate
    """The first of each dimension's values."""
    dimensions: dict[str, Sequence[Any]]
    """Values to try, by the field of `Candidate`."""
    devices_per_engine: int = 1
    num_envs: int | None = None
    """None: one for every episode that may be open."""
    slots_per_worker: int = 64
    weight_update: Literal["continue", "restart", "finish"] = "continue"
    keeps_groups_together: bool = False
    episode_deadline_s: float = 600.0
    seed: int = 0
    num_steps: int = 12
    routing: Literal["auto", "router", "least_loaded"] = "auto"

    def simulated(self, candidate: Candidate) -> Simulated:
        """What is simulated for this candidate. ConfigurationError when it is impossible."""
        timings = self.workload.timings
        training = self.devices if candidate.is_shared else self.devices - candidate.sampling_devices
        ledger = LedgerConfig(
            batch_size=self.batch_size,
            group_size=candidate.group_size,
            alpha=candidate.async_generation_ratio,
            max_staleness=candidate.max_staleness,
            tag_weights={_TAG: 1},
            num_groups_redundancy=candidate.num_groups_redundancy,
            group_size_redundancy=candidate.group_size_redundancy,
            episode_deadline_s=self.episode_deadline_s,
            max_fruitless_batches=100,
        )
        open_groups = ledger.capacity_groups(ledger.alpha) + ledger.num_groups_redundancy
        episodes = self.workload.episodes
        return Simulated(
            ledger=ledger,
            num_slots=self.num_envs or open_groups * ledger.members_per_group,
            num_engines=candidate.sampling_devices // self.devices_per_engine,
            draw=lambda lease: episodes.draw(lease, timings, self.seed),
            train_s=lambda num_tokens: timings.train.seconds(num_tokens, training),
            max_running=candidate.infer_batch_size,
            slowdown=dict(timings.engine.slowdown),
            slots_per_worker=self.slots_per_worker,
            update_s=timings.update_s,
            pause_s=timings.pause_s,
            collect_s=timings.collect_s,
            weight_update=self.weight_update,
            keeps_groups_together=self.keeps_groups_together,
            is_rejected=episodes.rejects(self.seed),
            routing=self.routing,
        )

    def evaluate(self, candidate: Candidate) -> Row:
        """Simulate a candidate."""
        try:
            prediction = simulate(self.simulated(candidate), num_steps=self.num_steps)
        except (ConfigurationError, RunStalls) as error:
            return Row(candidate=candidate, prediction=None, problem=str(error))
        return Row(candidate=candidate, prediction=prediction)

    def explore(self, on_row: Callable[[Row], None] = lambda row: None) -> list[Row]:
        """Every split with every alpha, then the other dimensions one at a time around the best so far."""
        rows: dict[Candidate, Row] = {}

        def try_all(candidates: Iterator[Candidate]) -> None:
            for candidate in candidates:
                if candidate not in rows:
                    rows[candidate] = self.evaluate(candidate)
                    on_row(rows[candidate])

        first = ("sampling_devices", "async_generation_ratio")
        values = [self.dimensions.get(name, (getattr(self.base, name),)) for name in first]
        grid = (replace(self.base, **dict(zip(first, pair, strict=True))) for pair in product(*values))
        if self.base.is_shared:
            raise ValueError("the base splits the devices; a shared candidate is one of the dimensions")
        try_all(grid)
        if self.dimensions.get("is_shared") and True in self.dimensions["is_shared"]:
            shared = replace(
                self.base, sampling_devices=self.devices, async_generation_ratio=0.0, is_shared=True
            )
            try_all(iter([replace(shared, max_staleness=None)]))
        for _ in range(_MOST_ROUNDS):
            chosen = best(list(rows.values()))
            if chosen is None:
                break
            for name, tried in self.dimensions.items():
                if name == "is_shared" or (chosen.candidate.is_shared and name in first):
                    continue
                try_all(replace(chosen.candidate, **{name: value}) for value in tried)
                chosen = best(list(rows.values())) or chosen
            if chosen is best(list(rows.values())) and all(
                replace(chosen.candidate, **{name: value}) in rows
                for name, tried in self.dimensions.items()
                if name != "is_shared" and not (chosen.candidate.is_shared and name in first)
                for value in tried
            ):
                break
        return list(rows.values())


def best(rows: Sequence[Row]) -> Row | None:
    """The row with the most trained tokens per second; among equal ones, the least stale and wasteful."""
    top = max((row.tokens_per_s for row in rows), default=0.0)
    equal = [
        (row.prediction.staleness_mean, row.prediction.waste, -row.tokens_per_s, index)
        for index, row in enumerate(rows)
        if row.prediction is not None and row.tokens_per_s >= top * (1 - AS_GOOD)
    ]
    return rows[min(equal)[3]] if equal else None


def splits(devices: int, devices_per_engine: int, most: int = 12) -> tuple[int, ...]:
    """Numbers of sampling devices to try: whole engines, at least one device for training.

    >>> splits(8, 2)
    (2, 4, 6)
    """
    largest = (devices - 1) // devices_per_engine
    if largest < 1:
        raise ConfigurationError(
            f"--devices is {devices}: an engine takes {devices_per_engine} and the trainer at least 1"
        )
    number = min(most, largest)
    engines = {round(1 + (largest - 1) * index / max(1, number - 1)) for index in range(number)}
    return tuple(each * devices_per_engine for each in sorted(engines))


def cost_per_million(row: Row, devices: int, cost_per_hour: float) -> float | None:
    """Money per million trained tokens, with `cost_per_hour` for one device."""
    if not row.tokens_per_s:
        return None
    return devices * cost_per_hour / 3600 / row.tokens_per_s * 1e6
