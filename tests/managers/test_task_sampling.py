"""A ledger whose tasks are chosen: the choice follows from results, and from nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.algorithms.task_samplers.contract import SamplerConfig, TagTasks
from envsdk.contracts.seeds import stable_seed
from envsdk.contracts.trajectory import Task
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_history import replay
from envsdk.managers.ledger_log import LedgerLog, read_log, recorded
from envsdk.managers.ledger_types import Batch, Command, Grant, GroupReady, LedgerConfig, LedgerState

TAGS = {"maze": 2, "shop": 1}
TASKS = {tag: TagTasks(num_tasks=5, ranks=[4, 2, 0, 1, 3]) for tag in TAGS}
SAMPLERS = [
    SamplerConfig(name="learnability", args={"gate": {"after": 2, "look_again": 6}}, tasks=TASKS, seed=3),
    SamplerConfig(name="difficulty", args={"choose": "tags"}, tasks=TASKS, seed=3),
    SamplerConfig(name="prioritized", args={"choose": "both"}, tasks=TASKS, seed=3),
    SamplerConfig(name="easy_to_hard", args={"columns": ["level"]}, tasks=TASKS, seed=3),
]


class Run:
    """A ledger with slots whose episodes end in an order that `seed` says. A filter rejects one group in
    five."""

    def __init__(
        self, config: LedgerConfig, seed: int, state: LedgerState | None = None, log: Any = None
    ) -> None:
        ledger = RolloutLedger(config, state)
        self.ledger = ledger if log is None else recorded(ledger, log)
        self.chance = random.Random(seed)
        self.playing: dict[int, Grant] = {}
        self.tasks: list[Task] = []
        """In the order in which their groups began."""
        self.begun: set[int] = set()
        version = 0 if state is None else state.version + 1
        self.follow(self.ledger.publish(version, now=0.0))
        slots = {f"{tag}{i}": tag for tag in TAGS for i in range(6)}
        self.follow(self.ledger.add_slots(slots, now=0.0))

    def follow(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Grant):
                self.playing[command.lease.lease_id] = command
                if command.lease.group_id not in self.begun:
                    self.begun.add(command.lease.group_id)
                    self.tasks.append(command.lease.task)
            elif isinstance(command, GroupReady) and not command.group_id % 5:
                self.follow(self.ledger.reject_group(command.group_id, now=0.0))
            elif hasattr(command, "lease_id"):
                self.playing.pop(command.lease_id, None)

    def wins(self, grant: Grant) -> bool:
        lease = grant.lease
        chance = 0.0 if lease.task.index == 4 else 0.3 + 0.05 * lease.task.index
        return stable_seed(lease.task.tag, lease.group_id, lease.member) / 2**31 < chance

    def batches(self, number: int) -> Iterator[Batch]:
        for _ in range(number):
            while (taken := self.ledger.take(8, now=0.0))[0] is None:
                lease_id = self.chance.choice(list(self.playing))
                success = self.wins(self.playing.pop(lease_id))
                self.follow(
                    self.ledger.finished(
                        lease_id,
                        now=0.0,
                        oldest_version=self.ledger.version,
                        success=success,
                        reward=float(success),
                    )
                )
            batch, commands = taken
            assert batch is not None
            self.follow(commands)
            yield batch
            self.follow(self.ledger.publish(self.ledger.version + 1, now=0.0))


def config(sampler: SamplerConfig | None, alpha: float = 0) -> LedgerConfig:
    return LedgerConfig(batch_size=8, group_size=2, alpha=alpha, tag_weights=TAGS, task_sampler=sampler)


def tasks_of(batches: list[Batch]) -> list[list[tuple[int, Task]]]:
    return [[(group.group_id, group.task) for group in batch.groups] for batch in batches]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SAMPLERS), st.integers(0, 1000), st.integers(0, 7))
def test_a_synchronous_run_chooses_alike_whoever_is_faster_and_after_a_restart(
    sampler: SamplerConfig, seed: int, kill_after: int
) -> None:
    expected = tasks_of(list(Run(config(sampler), seed=0).batches(8)))
    run = Run(config(sampler), seed=seed)
    found = tasks_of(list(run.batches(kill_after)))
    if kill_after:
        # The state that lies in the file of the batch was taken before the publication that followed.
        state = LedgerState.from_dict(json.loads(json.dumps(run.ledger.state().to_dict())))
        run = Run(config(sampler), seed=seed + 1, state=replace(state, version=state.version - 1))
    found += tasks_of(list(run.batches(8 - kill_after)))
    assert found == expected


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.name)
@pytest.mark.parametrize("alpha", [0, 1.5])
def test_the_log_of_a_run_replays_its_choices(tmp_path: Path, sampler: SamplerConfig, alpha: float) -> None:
    log = LedgerLog(tmp_path, config(sampler, alpha), None)
    log._began_ms = 0
    run = Run(config(sampler, alpha), seed=5, log=log)
    batches = list(run.batches(6))
    log.flush()
    (section,) = read_log(tmp_path)
    assert section.config == config(sampler, alpha)
    assert replay([replace(section, began_ms=0)]).difference is None
    assert {group.task.tag for batch in batches for group in batch.groups} == set(TAGS)


def test_an_uneven_alpha_restores_exactly_what_was_saved() -> None:
    run = Run(config(SAMPLERS[0], alpha=1.5), seed=2)
    list(run.batches(5))
    saved = json.loads(json.dumps(run.ledger.state().to_dict()))
    again = RolloutLedger(config(SAMPLERS[0], alpha=1.5), LedgerState.from_dict(saved))
    assert again.state().to_dict()["task_sampler"] == saved["task_sampler"]
    assert saved["task_sampler"]["state"]["in_play"]


def test_without_a_sampler_nothing_of_it_is_saved_and_the_order_is_the_usual_one() -> None:
    run = Run(config(None), seed=9)
    list(run.batches(3))
    # The order in which they were granted: waiting members of one tag come first.
    assert sorted((task.tag, task.index) for task in run.tasks[:4]) == [
        *(("maze", index) for index in range(3)),
        ("shop", 0),
    ]
    assert run.ledger.state().task_sampler is None
