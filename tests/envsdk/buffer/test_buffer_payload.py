"""Groups survive the way through the buffer."""

from __future__ import annotations

import dataclasses

import pytest

from envsdk.buffer.payload import from_all_bytes, from_bytes, pack, pack_all
from envsdk.contracts.failures import StorageError
from tests.envsdk.base.store.test_trajectories import an_episode


def test_groups_are_what_they_were_alone_and_among_others() -> None:
    groups = [
        (3, [an_episode(1), an_episode(2)]),
        (7, [dataclasses.replace(an_episode(4), tokens=None)]),
        (9, [an_episode(5, reply="né\n" * 50)] * 3),
    ]
    packed = pack_all(groups)
    assert [each.group_id for each in packed] == [3, 7, 9]
    assert [repr(each) for each in from_all_bytes([each.payload for each in packed])] == [
        repr(trajectories) for _, trajectories in groups
    ]
    for finished, (group_id, trajectories) in zip(packed, groups, strict=True):
        alone = pack(group_id, trajectories)
        assert dataclasses.replace(alone, payload=b"") == dataclasses.replace(finished, payload=b"")
        assert repr(from_bytes(finished.payload)) == repr(trajectories) == repr(from_bytes(alone.payload))


def test_damaged_bytes_are_told() -> None:
    data = pack(1, [an_episode(1)]).payload
    for damaged in (b"", b"no stream", data[: len(data) // 2]):
        with pytest.raises(StorageError, match="a group in the buffer is damaged"):
            from_bytes(damaged)
