"""The folder of a collection: which command may write into it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from envsdk.base.plugins import plugin_names
from envsdk.base.store.shard_plan import plan_shards
from envsdk.base.store.shards import Manifest, write_shard
from envsdk.collect import collect
from envsdk.contracts.failures import ConfigurationError
from envsdk.rollouts.datasets.finishing import collection_in
from envsdk.rollouts.datasets.formats import ENTRY_POINT_GROUP
from tests.trajectories import trajectory_with

FORMATS = ["atif", "messages", "messages-parquet", "minari"]
"""Those that any environment has."""
PLANS = plan_shards({"Lake": 1}, split="train", shard_size=1)


def begun(folder: Path, temperature: float) -> AbstractContextManager[tuple[Manifest, object]]:
    config = {"temperature": temperature, "tags": {}}
    return collection_in(folder, config, PLANS, (), versions={}, command=["envsdk"], license=None)


def test_a_start_that_was_refused_does_not_keep_the_folder_from_a_corrected_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no model"), begun(tmp_path, 0.0):
        raise ConfigurationError("no model")
    with pytest.raises(ConfigurationError, match="too long"), begun(tmp_path, 1.0) as (manifest, _):
        raise ConfigurationError("too long")
    assert manifest.config["temperature"] == 1.0
    write_shard(tmp_path, PLANS[0], [trajectory_with()], manifest.fingerprint)
    with pytest.raises(ConfigurationError, match="holds another collection"), begun(tmp_path, 0.0):
        pass


def test_a_relative_folder_gets_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {*plugin_names(ENTRY_POINT_GROUP)} == {*FORMATS, "mini-swe-agent", "swe-bench"}
    monkeypatch.chdir(tmp_path)
    collect("envsdk/FrozenLake-v1", Path("d/lk"), num_episodes=3, formats=FORMATS)
    for name in FORMATS:
        assert any(path.is_file() for path in (tmp_path / "d/lk" / name).rglob("*")), name
