"""Episodes as SWE-bench's predictions and mini-swe-agent's trajectories."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envsdk.base.store.trajectories import read_trajectories, write_trajectories
from envsdk.collect import collect
from envsdk.config import load_config
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe import export
from tests.envs.swe.toy_sandbox import NAME
from tests.envs.swe.toy_tasks import MakeEnv


@pytest.fixture
def data_set(make_env: MakeEnv, sandboxes: Path, tmp_path: Path) -> Path:
    """Two rounds of the three tasks, by the oracle."""
    return collected(tmp_path / "oracle", sandboxes, policy="oracle", episodes=6)


def collected(folder: Path, sandboxes: Path, *, policy: str, episodes: int, **arguments: object) -> Path:
    settings = {"backend": NAME, "backend_settings.folder": sandboxes, "instructions": False, **arguments}
    overrides = [f"{name}={value}" for name, value in settings.items()]
    collect("envsdk/SWE-v1", folder, num_episodes=episodes, policy=policy, overrides=overrides)
    return folder


def exported(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert export.main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_predictions_name_every_instance_once_per_file(
    data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "preds.jsonl"
    said = exported(capsys, data_set, "--out", out)
    assert said == f"6 episodes, 6 with a patch, 6 resolved; wrote 2 files, the first of them {out}\n"
    for path in (out, tmp_path / "preds.1.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [row["instance_id"] for row in rows] == ["toy__calc-1", "toy__calc-2", "toy__calc-3"]
        for row in rows:
            assert set(row) == {"instance_id", "model_name_or_path", "model_patch"}
            assert row["model_name_or_path"] == "oracle"
            assert row["model_patch"].startswith("diff --git a/calc.py b/calc.py\n")
            assert row["model_patch"].endswith("+    return a + b\n")


def test_trajectories_are_conversations_that_end_with_the_submission(
    data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(capsys, data_set, "--format", "traj", "--out", tmp_path / "traj")
    folder = tmp_path / "traj" / "toy__calc-2"
    assert sorted(path.name for path in folder.iterdir()) == [
        "toy__calc-2.1.traj.json",
        "toy__calc-2.traj.json",
    ]
    saved = json.loads((folder / "toy__calc-2.traj.json").read_text())
    assert saved["trajectory_format"] == "mini-swe-agent-1.1"
    assert saved["instance_id"] == "toy__calc-2"
    info = saved["info"]
    assert info["exit_status"] == "Submitted"
    assert info["model_stats"] == {"instance_cost": 0.0, "api_calls": 2}
    assert info["config"]["model"] == {"model_name": "oracle"}
    messages = saved["messages"]
    roles = [message["role"] for message in messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "exit"]
    assert messages[1]["content"].startswith("<pr_description>\nadd(1, 2) is -1.")
    assert messages[2]["extra"]["actions"][0]["command"].startswith("git reset -q --hard")
    assert messages[3]["content"].startswith("<returncode>0</returncode>")
    assert messages[-1]["extra"] == {"exit_status": "Submitted", "submission": info["submission"]}
    assert saved["envsdk"]["resolved"] is True


def test_an_episode_that_ran_out_of_time_has_an_empty_patch(
    make_env: MakeEnv, sandboxes: Path, tmp_path: Path
) -> None:
    folder = collected(tmp_path / "short", sandboxes, policy="oracle", episodes=3, time_limit_s=0.05)
    episodes = export.read_episodes(folder)
    assert [episode.instance_id for episode in episodes] == ["toy__calc-1", "toy__calc-2", "toy__calc-3"]
    assert {export.prediction(episode)["model_patch"] for episode in episodes} == {""}
    assert export.mini_trajectory(episodes[0])["info"]["exit_status"] == "LimitsExceeded"


def test_episodes_cut_off_from_outside_are_named_by_their_place_in_the_list(
    data_set: Path, tmp_path: Path
) -> None:
    shard = data_set / "part-00000.parquet"
    cut = [
        replace(trajectory, turns=trajectory.turns[:1], final_observation=trajectory.turns[1].observation)
        for trajectory in read_trajectories(shard)
    ]
    write_trajectories(shard, cut)
    episodes = export.read_episodes(data_set)
    assert [episode.instance_id[-1] for episode in episodes] == ["1", "2", "3", "1", "2", "3"]
    assert {episode.ending for episode in episodes} == {None}
    messages = export.mini_trajectory(episodes[0])["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "exit"]


def test_failed_episodes_are_left_out(make_env: MakeEnv, sandboxes: Path, tmp_path: Path) -> None:
    folder = collected(tmp_path / "gone", tmp_path / "missing", policy="oracle", episodes=3)
    assert export.read_episodes(folder) == []
    assert export.main([str(folder), "--out", str(tmp_path / "preds.jsonl")]) == 2


def test_a_run_of_training_is_read_too(data_set: Path, tmp_path: Path) -> None:
    run = tmp_path / "fixer"
    (run / "trajectories").mkdir(parents=True)
    loaded = load_config("agentic_swe_async.yaml", [f"custom_envs.SWE.env_config.backend={NAME}"])
    (run / "config.yaml").write_text(loaded.resolved_yaml())
    played = [
        replace(trajectory, task=replace(trajectory.task, tag="SWE"))
        for trajectory in read_trajectories(data_set / "part-00000.parquet")
    ]
    write_trajectories(run / "trajectories" / "step_000000.parquet", played[:2])
    write_trajectories(run / "trajectories" / "discarded_train_000000.parquet", played[2:])
    assert [(e.instance_id, e.model) for e in export.read_episodes(run)] == [
        ("toy__calc-1", "fixer"),
        ("toy__calc-2", "fixer"),
    ]


def test_formats_of_a_data_set_are_written_beside_it(
    make_env: MakeEnv, sandboxes: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "both"
    overrides = [f"backend={NAME}", f"backend_settings.folder={sandboxes}"]
    formats = ["swe-bench", "mini-swe-agent"]
    collect("envsdk/SWE-v1", folder, num_episodes=3, overrides=overrides, formats=formats)
    assert len((folder / "swe-bench" / "predictions.jsonl").read_text().splitlines()) == 3
    assert len(list((folder / "mini-swe-agent").glob("*/*.traj.json"))) == 3
    with pytest.raises(ConfigurationError, match="--format swe-bench: is of envsdk/SWE-v1, not of"):
        collect("envsdk/FrozenLake-v1", tmp_path / "ice", num_episodes=1, formats=formats)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds neither"):
        export.read_episodes(tmp_path)
    collect("envsdk/FrozenLake-v1", tmp_path / "ice", num_episodes=1)
    with pytest.raises(ConfigurationError, match="none of its tags is of envsdk/SWE-v1"):
        export.read_episodes(tmp_path / "ice")
