"""A trainer that continues from an earlier checkpoint: version numbers repeat, weights do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from envsdk.buffer.audit import audit
from envsdk.buffer.connecting import open_engine
from envsdk.buffer.contract import DropReason, FinishedGroup, GroupState, LeaseLost, Member, Role, Terms
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.buffer.tables import groups

NUM_STEPS = 6


class Job:
    """A trainer, which saves after every second step, and an explorer with the newest weights."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        engine = open_engine(str(folder / "buffer.db"))
        self.buffer = SqlBuffer(engine, lease_s=1e9, clock=lambda _: self.now)
        self.buffer.create("job", Terms(seed=1, group_size=2, groups_per_batch=2, alpha=1.0))
        self.trainer = self.buffer.join(Role.TRAINER, "trainer")
        self.explorer = self.buffer.join(Role.EXPLORER, "e")
        self.buffer.trainer.begin(self.trainer, 0)
        self.publish(0)
        for step in range(NUM_STEPS):
            self.play(step)
            assert self.buffer.trainer.take(self.trainer, step, version=step) is not None
            self.publish(step + 1)
            if step % 2:
                self.buffer.trainer.trained(self.trainer, step + 1, keep_from=0)

    def publish(self, version: int) -> None:
        self.now += 1
        self.buffer.trainer.publish(self.trainer, version, version, {"at": version})

    def play(self, version: int, *, puts: bool = True) -> list[int]:
        """Two groups; their ids."""
        self.now += 1
        claimed = self.buffer.explorer.claim(self.explorer, ["a"] * 2, version=version, token=f"{self.now}")
        ids = [group.group_id for group in claimed]
        assert len(ids) == 2
        return self.put(self.explorer, ids, version) if puts else ids

    def put(self, member: Member, ids: list[int], version: int) -> list[int]:
        finished = [
            FinishedGroup(
                group_id=each, payload=b"x", num_trajectories=2, num_tokens=4, oldest_version=version
            )
            for each in ids
        ]
        refused = self.buffer.explorer.put(member, finished)
        return [each for each in ids if each not in refused]

    def states(self, ids: list[int]) -> list[tuple[str, str | None]]:
        with self.buffer.engine.connect() as connection:
            query = sa.select(groups.c.state, groups.c.reason).where(groups.c.id.in_(ids))
            return [tuple(row) for row in connection.execute(query.order_by(groups.c.id))]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_what_given_up_weights_sampled_is_dropped_and_their_explorers_join_again(job: Job) -> None:
    ready = job.play(NUM_STEPS)
    played = job.play(NUM_STEPS, puts=False)
    lost = job.buffer.newest_version()
    assert lost is not None
    job.buffer.trainer.begin(job.trainer, 2)
    assert job.states(ready) == [(GroupState.DROPPED, DropReason.WENT_BACK)] * 2
    assert job.put(job.explorer, played, NUM_STEPS) == []
    assert job.states(played) == [(GroupState.OPEN, None)] * 2
    with pytest.raises(LeaseLost, match="the trainer went back"):
        job.buffer.explorer.claim(job.explorer, ["a"], version=NUM_STEPS, token="late")
    newest = job.buffer.newest_version()
    assert newest is not None
    assert newest.version == 1  # the trainer publishes 2 anew
    job.publish(2)
    newest = job.buffer.newest_version()
    assert newest is not None
    assert newest.replaces(lost.version, lost.published_at)
    assert job.buffer.view().version == 2


def test_batches_that_were_taken_are_given_again_before_anything_new_begins(job: Job) -> None:
    job.buffer.trainer.begin(job.trainer, 2)
    job.publish(2)
    job.explorer = job.buffer.join(Role.EXPLORER, "e")
    for step in range(2, NUM_STEPS):
        if step < NUM_STEPS - 1:
            assert job.buffer.explorer.claim(job.explorer, ["a"] * 2, version=step, token=f"t{step}") == []
        taken = job.buffer.trainer.take(job.trainer, step, version=step)
        assert taken is not None
        assert taken.is_again
        assert audit(job.buffer.engine) == []
        job.publish(step + 1)
    job.play(NUM_STEPS)
    assert job.buffer.trainer.take(job.trainer, NUM_STEPS, version=NUM_STEPS) is not None
    assert audit(job.buffer.engine) == []


def test_a_killed_trainer_that_continues_from_its_newest_checkpoint_throws_nothing_away(job: Job) -> None:
    job.play(NUM_STEPS)
    assert job.buffer.trainer.take(job.trainer, NUM_STEPS, version=NUM_STEPS) is not None
    job.publish(NUM_STEPS + 1)
    ready = job.play(NUM_STEPS + 1)
    job.buffer.trainer.begin(job.trainer, NUM_STEPS)
    assert job.states(ready) == [(GroupState.READY, None)] * 2
    assert job.buffer.renew(job.explorer).version == NUM_STEPS + 1
    # It publishes that version anew, from the same batch.
    assert job.buffer.step_of(NUM_STEPS + 1) is None
    assert job.buffer.step_of(NUM_STEPS) == NUM_STEPS
