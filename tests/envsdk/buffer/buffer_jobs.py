"""A job as its programs leave it in a buffer: small, with something of everything, by a clock of its own."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from sqlalchemy import event

from envsdk.buffer.connecting import open_engine
from envsdk.buffer.contract import ClaimedGroup, Member, Role, Terms
from envsdk.buffer.payload import pack
from envsdk.buffer.sql_buffer import SqlBuffer
from tests.envsdk.view.view_runs import TAGS, make_trajectory

BEGAN = 1_767_225_600.0
GROUP_SIZE = 2
TERMS = Terms(seed=1, group_size=GROUP_SIZE, groups_per_batch=2, alpha=1, num_groups_redundancy=2)
LEASE_S = 30.0


class Job:
    """The programs of a job, called by hand."""

    def __init__(self, path: str, *, terms: Terms = TERMS) -> None:
        self.now = BEGAN
        engine = open_engine(path)
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _without_waiting_for_the_disk)
        self.buffer = SqlBuffer(engine, lease_s=LEASE_S, clock=lambda _: self.now)
        self.buffer.create("tiny", terms)
        self.num_calls = 0

    def claim(self, member: Member, version: int, tags: tuple[str, ...] = TAGS) -> list[ClaimedGroup]:
        self.num_calls += 1
        return self.buffer.explorer.claim(member, tags, version=version, token=f"call {self.num_calls}")

    def put(self, member: Member, claimed: list[ClaimedGroup], version: int) -> list[int]:
        """Play the groups with tokens of this version and of the one after."""
        finished = [
            pack(
                group.group_id,
                [
                    replace(
                        make_trajectory(
                            10 * group.group_id + number,
                            tag=group.task.tag,
                            group=group.task.index,
                            version=version,
                            success=number == 0,
                        ),
                        group_id=group.group_id,
                    )
                    for number in range(GROUP_SIZE)
                ],
            )
            for group in claimed
        ]
        return self.buffer.explorer.put(member, finished)

    def wait(self, seconds: float) -> None:
        self.now += seconds


def _without_waiting_for_the_disk(connection: sqlite3.Connection, record: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")


def play(path: str) -> Job:
    """Three steps by two explorers, `east` and `west`, and a trainer, over two minutes.

    Afterwards the batch of step 2 is taken and not trained, one group is ready, `east` plays one, and one
    is open: `west` has left it. A group was dropped because it was too old, and one by its explorer.
    """
    job = Job(path)
    buffer = job.buffer
    trainer = buffer.join(Role.TRAINER, "trainer")
    east, west = buffer.join(Role.EXPLORER, "east"), buffer.join(Role.EXPLORER, "west")
    buffer.trainer.begin(trainer, 0)
    for step in range(3):
        buffer.trainer.publish(trainer, step, step, {"method": "checkpoint", "folder": f"weights/{step}"})
        first, second = job.claim(east, step), job.claim(west, step)
        job.wait(10)
        job.put(east, first, step - 1 if step else 0)
        job.wait(5)
        if step == 1:
            buffer.explorer.drop(west, {second[0].group_id: "without variance"})
            second = second[1:]
        elif step == 2:
            second = second[:1]
        job.put(west, second, max(0, step - 1))
        job.wait(1)
        taken = buffer.trainer.take(trainer, step, version=step, waited_s=6.0 + step)
        assert taken is not None
        job.wait(10)
        for member in (east, west):
            buffer.renew(member, version=step, waited_places_s=2.0 * step, waited_weights_s=1.0)
        buffer.renew(trainer, version=step)
        if step < 2:
            buffer.trainer.trained(trainer, step + 1)
    buffer.leave(west)
    job.claim(east, 2, tags=TAGS[:1])
    buffer.engine.dispose()
    return job
