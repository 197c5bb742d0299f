"""A job whose tasks a sampler chooses: its state is in the buffer, whoever claims."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from envsdk.algorithms.task_samplers.contract import PlayedGroup, SamplerConfig, TagTasks
from envsdk.buffer.contract import ClaimedGroup, Role
from envsdk.buffer.tables import task_sampler
from envsdk.contracts.failures import ConfigurationError
from tests.envsdk.buffer.buffer_jobs import LEASE_S, TERMS, Job

SAMPLER = SamplerConfig(
    name="learnability", tasks={"a": TagTasks(num_tasks=4), "b": TagTasks(num_tasks=3)}, seed=1
)


def make_job(folder: Path, sampler: SamplerConfig = SAMPLER) -> Job:
    text = json.dumps(asdict(sampler))
    job = Job(str(folder / "job.db"), terms=replace(TERMS, alpha=5, task_sampler=text))
    job.trainer = job.buffer.join(Role.TRAINER, "trainer")  # type: ignore[attr-defined]
    job.buffer.trainer.begin(job.trainer, 0)  # type: ignore[attr-defined]
    job.buffer.trainer.publish(job.trainer, 0, 0, {})  # type: ignore[attr-defined]
    return job


def played(groups: list[ClaimedGroup], *successes: bool) -> dict[int, PlayedGroup]:
    rewards = [float(success) for success in successes]
    return {
        group.group_id: PlayedGroup(task=group.task, successes=successes, rewards=rewards) for group in groups
    }


def state(job: Job) -> dict[str, Any]:
    with job.buffer.engine.connect() as connection:
        found: dict[str, Any] = json.loads(connection.execute(sa.select(task_sampler.c.state)).scalar_one())
    return found


def test_explorers_share_one_sampler_and_a_repeated_call_changes_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    buffer = job.buffer
    east, west = buffer.join(Role.EXPLORER, "east"), buffer.join(Role.EXPLORER, "west")
    first = job.claim(east, 0, ("a", "a", "b"))
    second = job.claim(west, 0, ("a", "b"))
    assert [group.task.tag for group in first] == ["a", "a", "b"]
    tasks = [(group.task.tag, group.task.index) for group in (*first, *second)]
    assert len(set(tasks)) == 5, "what is in play is not drawn again"
    before = state(job)
    assert buffer.explorer.claim(west, ["a", "b"], version=0, token="call 2") == second
    assert state(job) == before

    buffer.explorer.drop(east, {first[0].group_id: "every reward is 1"}, played(first[:1], True, True))
    after = state(job)
    (row,) = after["sampler"]["state"]["results"]
    assert row[:3] == [first[0].task.tag, first[0].task.index, "11"]
    buffer.explorer.drop(east, {first[0].group_id: "every reward is 1"}, played(first[:1], True, True))
    assert state(job) == after


def test_a_task_whose_group_the_buffer_drops_can_be_drawn_again(tmp_path: Path) -> None:
    job = make_job(tmp_path, replace(SAMPLER, tasks={"a": TagTasks(num_tasks=2)}))
    for number in range(TERMS.max_group_attempts):
        explorer = job.buffer.join(Role.EXPLORER, f"dies {number}")
        (group,) = job.claim(explorer, 0, ("a",))
        assert group.attempt == number
        job.wait(2 * LEASE_S)
    survivor = job.buffer.join(Role.EXPLORER, "survivor")
    claimed = job.claim(survivor, 0, ("a", "a"))
    assert {each.task.index for each in claimed} == {0, 1}, "the one that was given up is there again"


def test_a_sampler_of_tags_takes_what_explorers_have_room_for(tmp_path: Path) -> None:
    job = make_job(
        tmp_path, replace(SAMPLER, name="weighted", args={"choose": "tags", "weights": {"a": 0.0}})
    )
    explorer = job.buffer.join(Role.EXPLORER, "east")
    claimed = job.claim(explorer, 0, ("a", "b", "a", "b"))
    assert [(group.task.tag, group.task.index) for group in claimed] == [
        ("b", 0),
        ("b", 1),
        ("a", 0),
        ("a", 1),
    ]


def test_a_program_with_another_sampler_does_not_join(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    with pytest.raises(ConfigurationError, match="task_sampler is '' here"):
        job.buffer.create("tiny", replace(TERMS, alpha=5))
