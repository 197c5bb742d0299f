"""The plan of a collection and its account of what is on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.store.shard_plan import plan_shards
from envsdk.base.store.shards import (
    FORMAT,
    MANIFEST,
    Manifest,
    check_same_config,
    fingerprint,
    locked_folder,
    refuse_foreign_shards,
)
from envsdk.base.store.tally import Tally
from envsdk.contracts.failures import ConfigurationError, StorageError


@given(
    st.dictionaries(st.sampled_from("ABCDE"), st.integers(1, 60), min_size=1),
    st.integers(1, 20),
)
def test_a_plan_holds_every_task_once_at_consecutive_positions(
    episodes_by_tag: dict[str, int], shard_size: int
) -> None:
    plans = plan_shards(episodes_by_tag, split="train", shard_size=shard_size)
    entries = [entry for plan in plans for entry in plan.tasks()]
    assert [position for position, _ in entries] == list(range(sum(episodes_by_tag.values())))
    for tag, num_episodes in episodes_by_tag.items():
        assert [task.index for _, task in entries if task.tag == tag] == list(range(num_episodes))
    assert [plan.number for plan in plans] == list(range(len(plans)))
    assert all(1 <= plan.num_episodes <= shard_size for plan in plans)


def test_tags_take_turns_so_that_a_part_of_a_collection_has_all_of_them() -> None:
    plans = plan_shards({"A": 4, "B": 6}, split="train", shard_size=2)
    assert [plan.tag for plan in plans] == ["A", "B", "A", "B", "B"]


def test_the_same_configuration_in_another_order_has_the_same_fingerprint() -> None:
    assert fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == fingerprint({"b": {"d": 3, "c": 2}, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_a_different_configuration_is_refused_naming_every_difference(tmp_path: Path) -> None:
    there = {"policy": "oracle", "epsilon": 0.3, "tags": {"Lake": {"size": 4}}}
    asked = {"policy": "random", "epsilon": 0.3, "tags": {"Lake": {"size": 5}}, "model": "m"}
    with pytest.raises(ConfigurationError) as refused:
        check_same_config(tmp_path, there, asked)
    message = str(refused.value)
    assert 'policy: "oracle" there, "random" now' in message
    assert "tags.Lake.size: 4 there, 5 now" in message
    assert 'model: absent there, "m" now' in message
    assert "epsilon" not in message
    assert str(tmp_path) in message


def test_the_same_configuration_is_accepted_after_a_round_trip_through_json(tmp_path: Path) -> None:
    config = {"tags": {"Lake": {"dim": [6, 6], "p": 0.8}}, "model": None}
    check_same_config(tmp_path, json.loads(json.dumps(config)), config)


def a_manifest() -> Manifest:
    return Manifest(
        config={"seed": 1},
        versions={"python": "3"},
        command=[],
        num_planned=2,
        created_at="2026-01-01T00:00:00Z",
    )


def test_a_manifest_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    a_manifest().save(tmp_path)
    assert Manifest.load(tmp_path) == a_manifest()
    saved = json.loads((tmp_path / MANIFEST).read_text())
    assert saved["complete"] is False
    assert saved["counts"]["episodes"] == Tally().num_episodes


def test_no_manifest_is_none() -> None:
    assert Manifest.load(Path("/nonexistent")) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", f'{{"format": "{FORMAT}"}}', "\x00", "null"])
def test_a_damaged_manifest_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(StorageError, match=r"manifest\.json is damaged"):
        Manifest.load(tmp_path)


def test_a_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"format": "envsdk.collection/9"}')
    with pytest.raises(StorageError, match="collection/9"):
        Manifest.load(tmp_path)


def test_shards_without_a_manifest_are_left_alone(tmp_path: Path) -> None:
    refuse_foreign_shards(tmp_path)
    (tmp_path / "part-00000.parquet").touch()
    with pytest.raises(StorageError, match=r"part-00000\.parquet but no manifest"):
        refuse_foreign_shards(tmp_path)


def test_a_folder_is_locked_for_one_collection_at_a_time(tmp_path: Path) -> None:
    def lock_again() -> None:
        with locked_folder(tmp_path):
            raise AssertionError("locked twice")

    with locked_folder(tmp_path), pytest.raises(StorageError, match="Another process is collecting"):
        lock_again()
    with locked_folder(tmp_path):
        pass
