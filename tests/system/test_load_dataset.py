"""`datasets.load_dataset` reads what `collect` writes, and needs nothing of envsdk for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tests.system.toy_envs  # noqa: F401 - registers the environments
from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import collect
from envsdk.contracts.trajectory import Trajectory
from envsdk.rollouts.datasets.selection import Duplicates, EpisodeFilters

pytest.importorskip("datasets", reason="needs Hugging Face datasets: make test-datasets")

pytestmark = [pytest.mark.system, pytest.mark.datasets]


@pytest.fixture(autouse=True)
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def episodes_in(folder: Path) -> list[Trajectory]:
    return [t for path in sorted(folder.glob("part-*.parquet")) for t in read_trajectories(path)]


def test_parquet_formats_are_configurations_and_every_column_is_there(tmp_path: Path) -> None:
    import datasets

    out = tmp_path / "demos"
    collect(
        "envsdk/FrozenLake-v1", out, num_episodes=60, epsilon=0.5, shard_size=20, split="val",
        formats=["messages", "messages-parquet"],
    )  # fmt: skip
    recorded = episodes_in(out)
    cache = str(tmp_path / "cache")
    names = datasets.get_dataset_config_names(str(out))
    assert sorted(names) == ["messages-parquet", "trajectories"]

    loaded = datasets.load_dataset(str(out), cache_dir=cache)
    assert list(loaded) == ["val"]
    rows = loaded["val"]
    assert rows.num_rows == 60
    for row, trajectory in zip(rows, recorded, strict=True):
        assert row["seed"] == trajectory.seed
        assert row["total_reward"] == trajectory.total_reward
        assert [turn["reply"] for turn in row["turns"]] == [turn.reply for turn in trajectory.turns]
        metrics = {metric["name"]: metric["value"] for metric in row["turns"][0]["metrics"]}
        assert metrics == dict(trajectory.turns[0].metrics)
        assert row["token_ids"] is None

    messages = datasets.load_dataset(str(out), "messages-parquet", split="val", cache_dir=cache)
    lines = str(out / "messages" / "*.jsonl")
    again = datasets.load_dataset("json", data_files=lines, split="train", cache_dir=cache)
    assert messages.num_rows == again.num_rows == 60
    assert messages[0]["messages"] == again[0]["messages"]
    assert messages[0]["messages"][2] == {"role": "assistant", "content": recorded[0].turns[0].reply}

    streamed = datasets.load_dataset(str(out), split="val", streaming=True)
    assert [row["seed"] for row in streamed] == [t.seed for t in recorded]


def test_it_is_read_in_a_process_that_knows_nothing_of_envsdk(tmp_path: Path) -> None:
    out = tmp_path / "demos"
    collection = collect(
        "toys/Fast-v1", out, num_episodes=60, epsilon=0.6, shard_size=20, formats=["messages"],
        filters=EpisodeFilters(max_turns=4), deduplicate=Duplicates.EPISODE,
    )  # fmt: skip
    # A shard may well be empty by now: its columns are there all the same.
    script = (
        "import sys, datasets\n"
        "sys.modules['envsdk'] = None\n"
        f"rows = datasets.load_dataset({str(out)!r}, cache_dir={str(tmp_path / 'cache')!r})['train']\n"
        "print(rows.num_rows, sum(rows['num_turns']))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    tally = collection.manifest.tally
    assert told.stdout.split() == [str(tally.num_episodes), str(tally.num_turns)]


def test_token_level_data_keeps_its_types(tmp_path: Path, model: Path) -> None:
    import datasets

    out = tmp_path / "replies"
    collect(
        "envsdk/FrozenLake-v1", out, num_episodes=4, policy="model", model=model,
        overrides=["actor_infer.generating_args.max_new_tokens=3", "size=3"],
    )  # fmt: skip
    rows = datasets.load_dataset(str(out), split="train", cache_dir=str(tmp_path / "cache"))
    (recorded, *_) = episodes_in(out)
    assert recorded.tokens is not None
    assert rows[0]["token_ids"] == recorded.tokens.ids.tolist()
    assert rows.features["behavior_logprobs"].feature.dtype == "float32"
