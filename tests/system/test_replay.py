"""`python -m envsdk.replay`: recorded actions played again, and rewards changed offline."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

import tests.system.toy_envs  # noqa: F401 - registers the environments
from envsdk.base.store.shards import MANIFEST, Manifest, file_sha256
from envsdk.base.store.trajectories import read_metadata, read_trajectories, write_trajectories
from envsdk.collect import collect
from envsdk.config import find_config
from envsdk.contracts.segments import is_learned
from envsdk.contracts.trajectory import Trajectory
from envsdk.replay import main, replay
from envsdk.rollouts.datasets.card import CARD
from envsdk.rollouts.datasets.selection import EpisodeFilters
from tests.system.conftest import Refused

pytestmark = pytest.mark.system


def shaped(trajectory: Trajectory) -> list[float]:
    """A reward for tests: less for longer episodes."""
    return [-1.0] * (len(trajectory.turns) - 1) + [10.0 * trajectory.success]


def broken(trajectory: Trajectory) -> float:
    return {}["prize"]


def silent(trajectory: Trajectory) -> None:
    pass


def episodes_in(folder: Path) -> list[Trajectory]:
    return [t for path in sorted(folder.glob("part-*.parquet")) for t in read_trajectories(path)]


def tampered(folder: Path, row: int, **fields: object) -> None:
    """Change a turn of one recorded episode, as a change of the environment would show."""
    path = folder / "part-00000.parquet"
    trajectories = read_trajectories(path)
    turns = list(trajectories[row].turns)
    turns[1] = dataclasses.replace(turns[1], **fields)
    trajectories[row] = dataclasses.replace(trajectories[row], turns=tuple(turns))
    write_trajectories(path, trajectories, metadata=read_metadata(path))
    manifest = Manifest.load(folder)
    assert manifest is not None
    manifest.shards[0] = dataclasses.replace(manifest.shards[0], sha256=file_sha256(path))
    manifest.save(folder)


@pytest.mark.parametrize("source", ["envsdk/FrozenLake-v1", "envsdk/Sokoban-v1", "toys/Fast-v1"])
def test_a_data_set_is_played_again_without_a_difference(tmp_path: Path, source: str) -> None:
    collect(source, tmp_path, num_episodes=30, epsilon=0.5)
    result = replay(tmp_path)
    assert result.difference is None
    assert result.num_episodes == 30
    assert result.num_turns == sum(len(t.turns) for t in episodes_in(tmp_path))


def test_the_first_difference_is_named_and_the_exit_code_tells_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect("toys/Fast-v1", tmp_path, num_episodes=30, shard_size=30)
    assert main([str(tmp_path)]) == 0
    assert "no difference: 30 episodes" in capsys.readouterr().out
    tampered(tmp_path, 20, reward=5.0)
    tampered(tmp_path, 11, observation="7 left")
    assert main([str(tmp_path)]) == 1
    told = capsys.readouterr()
    seed = episodes_in(tmp_path)[11].seed
    assert f"episode train-11 (toys/Fast-v1, index 11, seed {seed}), turn 1: observation" in told.out
    assert 'recorded: "7 left"' in told.out
    assert "train-20" not in told.out
    assert "1 episode(s) differ" in told.err

    assert main([str(tmp_path), "--keep-going"]) == 1
    told = capsys.readouterr()
    assert "train-20" in told.out
    assert "2 episode(s) differ: 30 episodes" in told.err
    assert main([str(tmp_path), "-n", "11"]) == 0
    assert main([str(tmp_path), "--tolerance", "5", "--keep-going"]) == 1
    assert "1 episode(s) differ" in capsys.readouterr().err


def test_an_environment_that_has_changed_is_found_out(tmp_path: Path) -> None:
    collect("toys/Fast-v1", tmp_path, num_episodes=20)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    manifest["config"]["tags"]["toys/Fast-v1"]["env_config"]["fails_every"] = 1
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    found = replay(tmp_path).difference
    assert found is not None
    assert (found.index, found.field) == (0, "outcome")
    assert "no such level" in found.got


def test_a_run_s_folder_is_played_again_by_its_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, source = tmp_path / "run", tmp_path / "source"
    (run / "trajectories").mkdir(parents=True)
    collect("agentic_async.yaml", source, num_episodes=40, epsilon=0.5)
    for shard in source.glob("part-*"):
        shard.rename(run / "trajectories" / shard.name)
    shutil.copyfile(find_config("agentic_async.yaml"), run / "config.yaml")
    assert main([str(run)]) == 0
    assert "no difference: 40 episodes" in capsys.readouterr().out
    assert main([str(run), "--rescore", "--out", str(tmp_path / "out")]) == 2
    assert "only a collection can be rescored" in capsys.readouterr().err


def test_failed_episodes_are_left_out(tmp_path: Path) -> None:
    collect("toys/Flaky-v1", tmp_path, num_episodes=40)
    result = replay(tmp_path)
    assert result.difference is None
    assert result.num_failed == sum(t.failure is not None for t in episodes_in(tmp_path)) > 0
    assert result.num_episodes + result.num_failed == 40


def test_rewards_of_a_function_make_a_new_data_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    collect(
        "toys/Fast-v1", source, num_episodes=40, epsilon=0.5, shard_size=10, formats=["messages"],
        filters=EpisodeFilters(min_turns=3),
    )  # fmt: skip
    before = {path.name: path.read_bytes() for path in source.glob("part-*")}
    arguments = [str(source), "--rescore", "--rewards", f"{__name__}:shaped", "--out", str(out)]
    assert main(arguments) == 0, capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in source.glob("part-*")} == before
    old, new = episodes_in(source), episodes_in(out)
    assert [[turn.reward for turn in t.turns] for t in new] == [shaped(t) for t in old]
    for one, other in zip(old, new, strict=True):
        turns = [dataclasses.replace(turn, reward=0.0) for turn in one.turns]
        again = [dataclasses.replace(turn, reward=0.0) for turn in other.turns]
        assert dataclasses.replace(one, turns=turns) == dataclasses.replace(other, turns=again)
    manifest = Manifest.load(out)
    assert manifest is not None
    assert manifest.is_complete
    assert manifest.config["rescored"]["rewards"] == f"{__name__}:shaped"
    assert manifest.dropped == json.loads((source / MANIFEST).read_text())["dropped"]
    rows = [json.loads(line) for path in sorted(out.glob("messages/*")) for line in path.open()]
    assert [row["reward"] for row in rows] == [t.total_reward for t in new]
    assert "shaped" in (out / CARD).read_text()

    (out / "part-00002.parquet").unlink()
    assert main(arguments) == 0
    assert episodes_in(out) == new


@pytest.mark.parametrize(("function", "says"), [("broken", "KeyError: 'prize'"), ("silent", "TypeError")])
def test_a_reward_function_that_fails_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], function: str, says: str
) -> None:
    collect("toys/Fast-v1", tmp_path / "source", num_episodes=3)
    arguments = [str(tmp_path / "source"), "--rescore", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--rewards", f"{__name__}:{function}"]) == 1
    message = capsys.readouterr().err
    assert says in message
    assert "for episode train-0" in message
    assert "Traceback" not in message
    if function == "broken":
        assert f"{__file__}:" in message


def test_a_data_set_without_an_episode_to_compare_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect("toys/Broken-v1", tmp_path, num_episodes=2)
    assert main([str(tmp_path)]) == 1
    assert "error: nothing to compare: 0 episodes" in capsys.readouterr().err


def test_rewards_that_the_environment_gives_now_are_taken(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    collect("toys/Priced-v1", source, num_episodes=30, epsilon=0.3)
    assert main([str(source), "--rescore", "--out", str(out), "prize=3.5"]) == 0
    assert {t.total_reward for t in episodes_in(source) if t.success} == {1.0}
    assert {t.total_reward for t in episodes_in(out) if t.success} == {3.5}
    masks = [[[is_learned(turn) for turn in t.turns] for t in episodes_in(each)] for each in (source, out)]
    assert masks[0] == masks[1]
    assert not all(map(all, masks[0]))
    assert replay(out).difference is not None


def test_an_episode_that_takes_another_course_cannot_be_rescored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect("toys/Fast-v1", tmp_path / "source", num_episodes=20)
    tampered(tmp_path / "source", 3, observation="7 left")
    assert main([str(tmp_path / "source"), "--rescore", "--out", str(tmp_path / "out")]) == 1
    assert "no longer takes the recorded course" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("part-*"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["."], "holds neither manifest.json (a collection)"),
        (["data", "--episodes", "0"], "--episodes: must be at least 1"),
        (["data", "--tolerance", "-1"], "--tolerance: must be at least 0"),
        (["data", "--out", "x"], "--out is for --rescore"),
        (["data", "size=3"], "KEY=VALUE is for --rescore"),
        (["data", "--rescore"], "--rescore needs --out DIR"),
        (["data", "--rescore", "--out", "data"], "name another folder"),
        (
            ["data", "--rescore", "--out", "x", "--rewards", "nonsense"],
            "`nonsense` is not registered under envsdk.rewards",
        ),
        (["data", "--rescore", "--out", "x", "--rewards", "no.such:f"], "cannot be loaded"),
        (["data", "--rescore", "--out", "x", "prise=3"], "prise"),
        (["data", "--rescore", "--out", "x", "-n", "3"], "rescored as a whole"),
    ],
)
def test_a_wrong_argument_is_named(
    tmp_path: Path, refused: Refused, arguments: list[str], expected: str
) -> None:
    collect("toys/Fast-v1", tmp_path / "data", num_episodes=2)
    refused(main, arguments, expected, codes=(1, 2))


def test_a_collection_that_is_not_complete_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect("toys/Fast-v1", tmp_path, num_episodes=40, shard_size=20)
    manifest = Manifest.load(tmp_path)
    assert manifest is not None
    del manifest.shards[1]
    manifest.save(tmp_path)
    assert main([str(tmp_path)]) == 2
    assert "is not complete: 1 of 2 files" in capsys.readouterr().err
