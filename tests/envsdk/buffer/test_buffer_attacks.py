"""Faults that once broke a promise of the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from envsdk.buffer.audit import audit
from envsdk.buffer.connecting import open_engine
from envsdk.buffer.contract import ClaimedGroup, FinishedGroup, GroupState, Role, Terms
from envsdk.buffer.payload import from_bytes, pack
from envsdk.buffer.selection import Selection
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.buffer.tables import groups
from envsdk.contracts.failures import StorageError
from tests.envsdk.view.view_runs import make_trajectory

HALVES = Selection(mixture={"a": 1, "z": 1})


def _buffer(folder: Path, alpha: float = 1.0) -> SqlBuffer:
    buffer = SqlBuffer(open_engine(str(folder / "buffer.db")), lease_s=30)
    buffer.create("job", Terms(seed=1, group_size=2, groups_per_batch=4, alpha=alpha))
    return buffer


def _finished(claimed: Sequence[ClaimedGroup], version: int = 0) -> list[FinishedGroup]:
    return [
        FinishedGroup(
            group_id=group.group_id, payload=b"x", num_trajectories=2, num_tokens=4, oldest_version=version
        )
        for group in claimed
    ]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_mixture_that_cannot_come_about_does_not_hold_up_the_job(tmp_path: Path, alpha: float) -> None:
    buffer = _buffer(tmp_path, alpha)
    trainer, explorer = buffer.join(Role.TRAINER, "trainer"), buffer.join(Role.EXPLORER, "e")
    buffer.trainer.begin(trainer, 0)
    buffer.trainer.publish(trainer, 0, 0, {}, selection=HALVES)
    claimed = buffer.explorer.claim(explorer, ["a"] * 20, version=0, token="1")
    buffer.explorer.put(explorer, _finished(claimed[:-1]))
    buffer.explorer.drop(explorer, {claimed[-1].group_id: "without variance"})
    if len(claimed) > 4:
        assert (
            buffer.trainer.take(trainer, 0, version=0, selection=HALVES) is None
        )  # a place is left: z may come

    buffer.explorer.put(explorer, _finished(buffer.explorer.claim(explorer, ["a"], version=0, token="2")))

    taken = buffer.trainer.take(trainer, 0, version=0, selection=HALVES)
    assert taken is not None
    assert len(taken.groups) == 4
    assert audit(buffer.engine) == []


def test_a_batch_waits_for_what_it_lacks_while_that_is_played(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path)
    trainer, explorer = buffer.join(Role.TRAINER, "trainer"), buffer.join(Role.EXPLORER, "e")
    buffer.trainer.begin(trainer, 0)
    buffer.trainer.publish(trainer, 0, 0, {}, selection=HALVES)
    claimed = buffer.explorer.claim(explorer, ["a"] * 6 + ["z"] * 2, version=0, token="1")
    buffer.explorer.put(explorer, _finished(claimed[:6]))
    assert buffer.trainer.take(trainer, 0, version=0, selection=HALVES) is None

    buffer.explorer.put(explorer, _finished(claimed[6:]))

    taken = buffer.trainer.take(trainer, 0, version=0, selection=HALVES)
    assert taken is not None
    assert {group.group_id for group in taken.groups} >= {group.group_id for group in claimed[6:]}


def test_explorers_that_leave_do_not_use_up_the_attempts_of_their_groups(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path)
    trainer = buffer.join(Role.TRAINER, "trainer")
    buffer.trainer.begin(trainer, 0)
    buffer.trainer.publish(trainer, 0, 0, {})
    for number in range(20):
        explorer = buffer.join(Role.EXPLORER, "e")
        assert [g.group_id for g in buffer.explorer.claim(explorer, ["a"], version=0, token=str(number))] == [
            1
        ]
        buffer.leave(explorer)

    with buffer.engine.connect() as connection:
        assert connection.execute(sa.select(groups.c.state, groups.c.attempt)).all() == [(GroupState.OPEN, 0)]


def test_two_explorers_with_one_token_do_not_play_the_same_groups(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path)
    trainer = buffer.join(Role.TRAINER, "trainer")
    buffer.trainer.begin(trainer, 0)
    buffer.trainer.publish(trainer, 0, 0, {})
    first, second = buffer.join(Role.EXPLORER, "e"), buffer.join(Role.EXPLORER, "f")

    ids = [g.group_id for m in (first, second) for g in buffer.explorer.claim(m, ["a"], version=0, token="t")]

    assert len(set(ids)) == 2


def test_a_group_is_used_again_when_a_checkpoint_was_written_in_between(tmp_path: Path) -> None:
    buffer, often = _buffer(tmp_path), Selection(max_uses=2)
    trainer, explorer = buffer.join(Role.TRAINER, "trainer"), buffer.join(Role.EXPLORER, "e")
    buffer.trainer.begin(trainer, 0)
    buffer.trainer.publish(trainer, 0, 0, {}, selection=often)
    buffer.explorer.put(explorer, _finished(buffer.explorer.claim(explorer, ["a"] * 4, version=0, token="1")))
    first = buffer.trainer.take(trainer, 0, version=0, selection=often)
    buffer.trainer.trained(trainer, 1, keep_from=0)
    buffer.trainer.publish(trainer, 1, 1, {}, selection=often)

    second = buffer.trainer.take(trainer, 1, version=1, selection=often)

    assert first is not None
    assert second is not None
    assert [g.group_id for g in first.groups] == [g.group_id for g in second.groups]
    buffer.trainer.trained(trainer, 2, keep_from=1)
    buffer.trainer.publish(trainer, 2, 2, {}, selection=often)
    assert buffer.num_ready() == 0
    assert audit(buffer.engine) == []


def test_a_payload_with_one_flipped_bit_is_told() -> None:
    whole = pack(
        1, [make_trajectory(number, tag="a", group=0, version=0, success=True) for number in (0, 1)]
    ).payload
    assert len(from_bytes(whole)) == 2
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        with pytest.raises(StorageError, match="is damaged"):
            from_bytes(bytes(damaged))
    with pytest.raises(StorageError, match="is damaged"):
        from_bytes(whole[:5])
