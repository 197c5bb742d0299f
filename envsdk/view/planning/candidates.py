"""Configurations to choose from, and the choice. Pure.

plan = Plan(workload=..., devices=40, base=Candidate(...), ...)
rows = plan.explore()
best(rows)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from envsdk.contracts.failures import ConfigurationError
from envsdk.managers.ledger_types import LedgerConfig
from envsdk.view.planning.simulation import Prediction, RunStalls, Simulated, simulate
from envsdk.view.planning.workload import Workload, dropped_groups

AS_GOOD = 0.01
"""Throughputs that differ by less than this share count as equal: the less stale one is better then."""
_MOST_ROUNDS = 3
_TAG = "episode"
_OF_SPLITS = ("sampling_devices", "async_generation_ratio", "max_staleness")
"""Dimensions that a candidate with shared devices does not have."""


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
    def trajectories_per_s(self) -> float:
        """Trained ones; 0 without a prediction."""
        return 0.0 if self.prediction is None else self.prediction.trajectories_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What stays the same, and the values to try."""

    workload: Workload
    devices: int
    batch_size: int
    base: Candidate
    """The first of each dimension's values."""
    dimensions: Mapping[str, Sequence[Any]]
    """Values to try, by the field of `Candidate`."""
    tries_shared: bool = False
    """Whether to try sampling and training in turns on all devices, too."""
    misfit: Callable[[Candidate], str] | None = None
    """Why the devices cannot hold a candidate; empty where they can, or where it is not known."""
    devices_per_engine: int = 1
    num_envs: int | None = None
    """None: one for every episode that may be open."""
    slots_per_worker: int = 64
    weight_update: Literal["continue", "restart", "finish"] = "continue"
    keeps_groups_together: bool = False
    episode_deadline_s: float = 600.0
    seed: int = 0
    num_steps: int = 12

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
            update_s=timings.update_s + (timings.switch_s if candidate.is_shared else 0.0),
            pause_s=timings.pause_s,
            collect_s=timings.collect_s,
            weight_update=self.weight_update,
            keeps_groups_together=self.keeps_groups_together,
            is_rejected=dropped_groups(episodes, self.seed),
        )

    def evaluate(self, candidate: Candidate) -> Row:
        """Simulate a candidate that fits."""
        if self.misfit is not None and (problem := self.misfit(candidate)):
            return Row(candidate=candidate, prediction=None, problem=problem)
        try:
            prediction = simulate(self.simulated(candidate), num_steps=self.num_steps)
        except (ConfigurationError, RunStalls) as error:
            return Row(candidate=candidate, prediction=None, problem=str(error))
        return Row(candidate=candidate, prediction=prediction)

    def explore(
        self, evaluate_all: Callable[[Sequence[Candidate]], Iterable[Row]] | None = None
    ) -> list[Row]:
        """Every split with every alpha, then the other dimensions one at a time around the best so far.

        `evaluate_all` takes the place of `evaluate` for several candidates, to evaluate them side by side.
        """
        evaluate_all = evaluate_all or (lambda candidates: map(self.evaluate, candidates))
        rows: dict[Candidate, Row] = {}

        def try_all(candidates: Iterable[Candidate]) -> None:
            unknown = [each for each in dict.fromkeys(candidates) if each not in rows]
            rows.update(zip(unknown, evaluate_all(unknown), strict=True))

        try_all(self._grid())
        for _ in range(_MOST_ROUNDS):
            num_known = len(rows)
            for name, values in self.dimensions.items():
                chosen = best(list(rows.values()))
                if chosen is None:
                    return list(rows.values())
                if not (chosen.candidate.is_shared and name in _OF_SPLITS):
                    try_all(replace(chosen.candidate, **{name: value}) for value in values)
            if len(rows) == num_known:
                break
        return list(rows.values())

    def _grid(self) -> Iterator[Candidate]:
        splits, alphas = (self.dimensions.get(name, (getattr(self.base, name),)) for name in _OF_SPLITS[:2])
        first = replace(
            self.base,
            **{name: values[0] for name, values in self.dimensions.items() if name not in _OF_SPLITS[:2]},
        )
        for split, alpha in product(splits, alphas):
            yield replace(first, sampling_devices=split, async_generation_ratio=alpha)
        if self.tries_shared:
            yield replace(
                first,
                sampling_devices=self.devices,
                async_generation_ratio=0.0,
                max_staleness=None,
                is_shared=True,
            )


def best(rows: Sequence[Row]) -> Row | None:
    """The row that trains most trajectories per second; among equal ones, the least stale and wasteful."""
    top = max((row.trajectories_per_s for row in rows), default=0.0)
    equal = [
        (row.prediction.staleness_mean, row.prediction.waste, -row.trajectories_per_s, index)
        for index, row in enumerate(rows)
        if row.prediction is not None and row.trajectories_per_s >= top * (1 - AS_GOOD)
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
    if row.prediction is None or not row.prediction.tokens_per_s:
        return None
    return devices * cost_per_hour / 3600 / row.prediction.tokens_per_s * 1e6
