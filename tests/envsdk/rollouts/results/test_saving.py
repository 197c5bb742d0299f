"""Episodes in memory on disk and back: `save` with `from_folder`, `to_atif` with `from_atif`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk.base.store.shards import Manifest
from envsdk.contracts.trajectory import Trajectory
from envsdk.rollouts.datasets.card import card_text
from envsdk.rollouts.play.replay import replay
from envsdk.view.filters import Filter
from envsdk.view.library import Library
from tests.envsdk.rollouts.data_sets.episodes import episode
from tests.envsdk.rollouts.data_sets.test_atif import SHOWN, TEMPLATED, same, told

LAKE = "envsdk/FrozenLake-v1"


def _of_a_tag(trajectory: Trajectory, tag: str) -> Trajectory:
    return replace(
        trajectory, task=replace(trajectory.task, tag=tag), shown=SHOWN if tag == "Lake" else TEMPLATED
    )


of_tags = st.lists(st.builds(_of_a_tag, told, st.sampled_from(["Lake", "Pond"])), min_size=1, max_size=6)


@given(of_tags)
@settings(max_examples=25)
def test_a_folder_gives_back_what_was_saved(episodes: list[Trajectory]) -> None:
    with TemporaryDirectory() as parent:
        folder = Path(parent) / "new" / "saved"
        envsdk.Trajectories(episodes).save(folder)
        again = envsdk.Trajectories.from_folder(folder)
        assert len(again) == len(episodes)
        assert all(map(same, again, episodes))
        assert [path.name for path in folder.parent.iterdir()] == ["saved"]


@given(of_tags, st.sampled_from(["atif", "episodes.jsonl"]))
@settings(max_examples=25)
def test_atif_gives_back_what_has_turns(episodes: list[Trajectory], name: str) -> None:
    written = [each for each in episodes if each.turns]
    with TemporaryDirectory() as parent:
        envsdk.Trajectories(episodes).to_atif(Path(parent) / name)
        if written or name.endswith(".jsonl"):
            assert all(map(same, envsdk.Trajectories.from_atif(Path(parent) / name), written))


def test_texts_may_hold_every_separator_of_lines(tmp_path: Path) -> None:
    odd = replace(episode("a\u2028b\x85c\x0bd\n"), shown=SHOWN)
    file = tmp_path / "odd.jsonl"
    envsdk.Trajectories([odd]).to_atif(file)
    (ours,) = envsdk.Trajectories.from_atif(file)
    file.write_text(json.dumps(json.loads(file.read_text()), ensure_ascii=False) + "\n")
    (of_another_program,) = envsdk.Trajectories.from_atif(file)
    assert same(ours, odd)
    assert same(of_another_program, odd)


def test_what_python_played_is_replayed_and_viewed(tmp_path: Path) -> None:
    async def play(observation: str, context: envsdk.TurnContext) -> str:
        return "no move" if context.seed % 3 else await context.env.oracle()

    played = envsdk.rollout_sync(LAKE, policy=play, tasks=260, group_size=2, env_config={"size": 5})
    played.save(tmp_path / "lake", policy="mine")
    assert sorted(path.name for path in (tmp_path / "lake").iterdir()) == [
        "manifest.json",
        "part-00000.parquet",
        "part-00001.parquet",
    ]
    replayed = replay(tmp_path / "lake")
    assert (replayed.num_episodes, replayed.difference) == (520, None)
    (source,) = Library(tmp_path / "lake", index_folder=tmp_path / "index").sources()
    source.refresh()
    assert source.search(Filter(group="data/3"))["total"] == 2
    assert source.overview(now=0.0)["success_rate"] == played.success_rate
    manifest = Manifest.load(tmp_path / "lake")
    assert manifest is not None
    assert "played by the policy `mine`" in card_text(manifest, name="lake")


def test_arguments_that_are_no_json_are_named(tmp_path: Path) -> None:
    shown = replace(SHOWN, env_type="mine/Env-v0", env_config={"path": Path("here")})
    envsdk.Trajectories([replace(episode("a"), shown=shown)]).save(tmp_path / "saved")
    manifest = Manifest.load(tmp_path / "saved")
    assert manifest is not None
    assert manifest.config["tags"]["Lake"]["env_config"] == {"path": "PosixPath('here')"}


def _save(episodes: list[Trajectory], path: Path) -> None:
    envsdk.Trajectories(episodes).save(path)


def _to_atif(episodes: list[Trajectory], path: Path) -> None:
    envsdk.Trajectories(episodes).to_atif(path)


@pytest.mark.parametrize("write", [_save, _to_atif])
@pytest.mark.parametrize("name", ["folder", "file.jsonl"])
def test_nothing_is_overwritten(write: Callable[..., Any], name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for there in (tmp_path / "folder" / "own", tmp_path / "file.jsonl"):
        there.write_text("mine")
    with pytest.raises(envsdk.ConfigurationError, match="is there already"):
        write([replace(episode("a"), shown=SHOWN)], tmp_path / name)
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file()] == ["mine", "mine"]


@pytest.mark.parametrize(
    ("episodes", "said"),
    [
        ([], "there are no episodes"),
        ([episode("a")], "does not know the prompts of 'Lake'"),
        (
            [replace(episode("a"), shown=SHOWN), replace(episode("a"), shown=TEMPLATED)],
            "'Lake' were played with different prompts",
        ),
    ],
)
def test_what_makes_no_data_set_is_refused(episodes: list[Trajectory], said: str, tmp_path: Path) -> None:
    with pytest.raises(envsdk.ConfigurationError, match=said):
        envsdk.Trajectories(episodes).save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []
