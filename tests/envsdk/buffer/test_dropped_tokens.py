"""Sampled tokens that were thrown away are counted by tag, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envsdk.buffer.connecting import open_engine
from envsdk.buffer.contract import FinishedGroup, Member, Role
from envsdk.buffer.inspection import inspect
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.buffer.upkeep import Which
from tests.envsdk.buffer.buffer_jobs import TERMS


class Job:
    def __init__(self, path: Path) -> None:
        self.buffer = SqlBuffer(open_engine(str(path)), lease_s=1e9, clock=lambda _: 1000.0)
        self.buffer.create("job", TERMS)
        self.trainer = self.buffer.join(Role.TRAINER, "trainer")
        self.explorer = self.buffer.join(Role.EXPLORER, "east")
        self.buffer.trainer.begin(self.trainer, 0)
        self.buffer.trainer.publish(self.trainer, 0, 0, {"at": 0})

    def play(self, number: int, version: int = 0, *, tokens: int = 10) -> list[FinishedGroup]:
        claimed = self.buffer.explorer.claim(
            self.explorer, ["a"] * number, version=version, token=f"{version}"
        )
        return [finished(group.group_id, version, tokens) for group in claimed]

    def put(self, groups: list[FinishedGroup], dropped: dict[str, int], member: Member | None = None) -> None:
        self.buffer.explorer.put(member or self.explorer, groups, dropped_tokens=dropped)


def finished(group_id: int, version: int, tokens: int) -> FinishedGroup:
    return FinishedGroup(
        group_id=group_id, payload=b"x", num_trajectories=2, num_tokens=tokens, oldest_version=version
    )


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path / "buffer.db")
    yield job
    job.buffer.engine.dispose()


def test_what_an_explorer_threw_away_is_counted_once_however_often_it_says_so(job: Job) -> None:
    groups = job.play(2)
    for _ in range(2):  # the answer to the first call was lost
        job.put(groups[:1], {"a": 7})
    job.put(groups[1:], {"a": 9, "b": 1})
    second = job.buffer.join(Role.EXPLORER, "west")
    job.put([], {"a": 100}, second)
    assert job.buffer.dropped_tokens() == {"a": 109, "b": 1}


def test_complete_groups_that_become_too_old_count_before_and_after_they_are_stored(job: Job) -> None:
    ready, late = job.play(2)
    job.put([ready], {})
    job.buffer.trainer.publish(job.trainer, 1, 1, {"at": 1})
    job.buffer.trainer.publish(job.trainer, 2, 2, {"at": 2})
    assert job.buffer.dropped_tokens() == {"a": 10}
    for _ in range(2):
        job.put([late], {})
    assert job.buffer.dropped_tokens() == {"a": 20}


def test_each_tag_has_its_share_of_the_batches_and_of_what_was_thrown_away(job: Job) -> None:
    job.put(job.play(2, tokens=20), {"a": 10})
    assert job.buffer.trainer.take(job.trainer, 0, version=0) is not None
    [use] = inspect(job.buffer.engine).used_by_tag()
    assert (use.tag, use.num_groups, use.share) == ("a", 2, 1.0)
    assert (use.num_tokens, use.dropped_tokens, use.dropped_share) == (40, 10, 0.2)
    some = inspect(job.buffer.engine, Which(states=("taken",)))
    assert some.used_by_tag() == []  # what was thrown away is not known by group
