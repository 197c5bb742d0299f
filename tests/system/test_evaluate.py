"""`python -m envsdk.evaluate`: the table, the JSON, the same tasks for everybody, clear refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

import tests.system.toy_envs  # noqa: F401 - registers the environments
from envsdk.base.store.tally import wilson_interval
from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import collect
from envsdk.contracts.trajectory import Task
from envsdk.evaluate import evaluate, main, results_table
from tests.system.conftest import Refused, RunHere
from tests.tiny_policies import write_tiny_policy

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("here")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's layout around a small model with random weights."""
    folder = tmp_path_factory.mktemp("step_000001")
    model = folder / "model"
    model.mkdir()
    write_tiny_policy(model, ["<answer>Left</answer> Right Up Down _ P G O go wait left"], hidden_size=32)
    return folder


def test_an_oracle_solves_what_it_can_and_the_json_says_how_sure_that_is(
    run_here: RunHere, tmp_path: Path
) -> None:
    done = run_here(main, "toys/Flaky-v1", "--policy", "oracle", "-n", 60, "--json", tmp_path / "result.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    total, episodes = result["total"], result["episodes"]
    failed = [episode for episode in episodes if episode["failure"]]
    assert 0 < len(failed) < 60
    assert all(episode["seed"] % 4 == 0 for episode in failed)
    assert {episode["failure"]["kind"] for episode in failed} == {"reset_raised"}
    assert total["failed"] == len(failed)
    assert total["success_rate"] == 1.0
    assert total["success_rate_95"] == list(wilson_interval(60 - len(failed), 60 - len(failed)))
    assert total["mean_reward"] == 1.0
    assert 2 <= total["mean_turns"] <= 4
    assert result["by_tag"] == {"toys/Flaky-v1": total}
    for shown in (
        "toys/Flaky-v1",
        f"100.0% of {60 - len(failed)}",
        "environment/reset_raised",
        "no such level",
    ):
        assert shown in done.stdout


def test_more_failures_than_the_configuration_allows_are_an_error_after_the_results(
    run_here: RunHere, tmp_path: Path
) -> None:
    options = ("-n", 60, "--json", tmp_path / "result.json", "max_failed_share=0.1")
    done = run_here(main, "toys/Flaky-v1", "--policy", "oracle", *options)
    failed = json.loads((tmp_path / "result.json").read_text())["total"]["failed"]
    assert done.returncode == 1
    assert f"{failed} of 60 episodes failed, more than max_failed_share=0.1 allows" in done.stderr
    assert f"100.0% of {60 - failed}" in done.stdout


def test_every_policy_plays_the_same_frozen_tasks() -> None:
    oracle = evaluate("toys/Fast-v1", policy="oracle", num_episodes=30)
    player = evaluate("toys/Fast-v1", policy="random", num_episodes=30)
    assert [t.task for t in oracle.trajectories] == [
        Task(tag="toys/Fast-v1", split="val", index=index) for index in range(30)
    ]
    assert [(t.task, t.seed) for t in oracle.trajectories] == [(t.task, t.seed) for t in player.trajectories]
    assert all(t.seed == t.task.seed(42) for t in oracle.trajectories)
    other = evaluate("toys/Fast-v1", policy="oracle", num_episodes=30, seed=7)
    assert not {t.seed for t in oracle.trajectories} & {t.seed for t in other.trajectories}


def test_a_yaml_is_evaluated_by_tag_with_a_total(run_here: RunHere) -> None:
    limits = ("custom_envs.FrozenLake.max_steps=30", "custom_envs.FrozenLake.env_config.max_steps=30")
    done = run_here(main, "agentic_async", "--policy", "oracle", "-n", 20, *limits)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    by_name = {row[0]: row for row in rows if row}
    assert by_name["FrozenLake"][1:3] == ["10", "100.0%"]
    assert by_name["SimpleSokoban"][1] == "10"
    assert by_name["all"][1] == "20"


def test_without_episodes_the_yamls_val_batch_size_counts() -> None:
    evaluation = evaluate("agentic_async.yaml", policy="random", overrides=["val_batch_size=12"])
    assert {tag: tally.num_episodes for tag, tally in evaluation.by_tag.items()} == {
        "FrozenLake": 6,
        "SimpleSokoban": 6,
    }


def test_when_every_episode_fails_the_exit_code_says_so_and_the_json_is_written(
    run_here: RunHere, tmp_path: Path
) -> None:
    done = run_here(main, "toys/Broken-v1", "--policy", "oracle", "-n", 9, "--json", tmp_path / "result.json")
    assert done.returncode == 1
    assert "all 9 episodes failed: 9 x environment/reset_raised" in done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["total"]["success_rate"] is None
    assert len(result["episodes"]) == 9


def test_a_checkpoint_is_evaluated_with_an_engine_in_process_and_repeats_itself(checkpoint: Path) -> None:
    runs = [
        evaluate("toys/Fast-v1", model=checkpoint, num_episodes=8, overrides=["sequence_length=200"])
        for _ in range(2)
    ]
    first, second = ([[turn.reply for turn in t.turns] for t in run.trajectories] for run in runs)
    assert first == second
    assert len({reply for replies in first for reply in replies}) > 1
    assert runs[0].config["model"]["folder"] == str(checkpoint / "model")
    assert runs[0].total.num_failed == 0


def test_greedy_play_does_not_depend_on_the_seed_of_sampling(checkpoint: Path) -> None:
    evaluation = evaluate("toys/Fast-v1", model=checkpoint, num_episodes=12, greedy=True)
    first_replies = {(t.turns[0].observation, t.turns[0].reply) for t in evaluation.trajectories}
    assert len(first_replies) == len({observation for observation, _ in first_replies})


def test_collecting_with_a_model_keeps_its_tokens(checkpoint: Path, tmp_path: Path) -> None:
    collection = collect(
        "toys/Fast-v1", tmp_path, policy="model", model=checkpoint, num_episodes=6, shard_size=3
    )
    for trajectory in (t for path in collection.shards for t in read_trajectories(path)):
        assert trajectory.tokens is not None
        last = trajectory.turns[-1]
        mask = trajectory.tokens.response_mask
        assert mask[last.response_start : last.response_end].all()
        assert mask.sum() == sum(turn.response_end - turn.response_start for turn in trajectory.turns)


def test_another_model_in_the_same_collection_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    out, arguments = tmp_path / "out", {"policy": "model", "model": checkpoint, "num_episodes": 2}
    collect("toys/Fast-v1", out, **arguments)
    settings = checkpoint / "model" / "generation_config.json"
    before = settings.read_text()
    try:
        settings.write_text(before + " ")
        with pytest.raises(Exception, match=r"model\.content"):
            collect("toys/Fast-v1", out, **arguments)
    finally:
        settings.write_text(before)


def test_a_prompt_longer_than_the_sequence_names_the_key_to_change(
    run_here: RunHere, checkpoint: Path
) -> None:
    done = run_here(
        main,
        "agentic_async.yaml",
        "--model",
        checkpoint,
        "-n",
        4,
        "sequence_length=40",
        "--tags",
        "FrozenLake",
    )
    assert done.returncode == 1
    assert "configuration/prompt_too_long" in done.stderr
    assert "raise sequence_length" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["envsdk/FrozenLak-v1"], "did you mean `envsdk/FrozenLake-v1`"),
        (["toys/Fast-v1"], "--policy model needs --model"),
        (["toys/Fast-v1", "--policy", "oracle", "-n", "0"], "--episodes: must be at least 1"),
        (["toys/Fast-v1", "--policy", "oracle", "--greedy"], "--greedy is for --policy model"),
        (["toys/Fast-v1", "--model", "nowhere"], "--model: there is no folder nowhere"),
        (["toys/Mute-v1", "--policy", "oracle"], "has no `oracle()`"),
        (["agentic_async.yaml", "--tags", "FrozenLak"], "did you mean `FrozenLake`"),
    ],
)
def test_a_wrong_argument_is_named(refused: Refused, arguments: list[str], expected: str) -> None:
    refused(main, arguments, expected)


def test_a_folder_is_no_json_file_and_a_negative_number_no_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toys/Fast-v1", "--policy", "oracle", "--json", str(tmp_path)]) == 2
    assert f"--json: {tmp_path} is a folder" in capsys.readouterr().err
    assert main(["toys/Fast-v1", "--policy", "oracle", "--seed", "-1"]) == 2
    assert "--seed" in capsys.readouterr().err


def test_scripted_replies_are_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "replies.txt").write_text("Right\nDown\n")
    lake = ["FrozenLake", "size=2", "p=1", "--policy", "scripted", "-n", "3"]
    assert main([*lake, "--replies", str(tmp_path / "replies.txt")]) == 0
    assert "100.0%" in capsys.readouterr().out


def test_the_table_of_one_environment_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = evaluate("envsdk/FrozenLake-v1", policy="random", num_episodes=1000)
    Console(width=80).print(results_table(evaluation))
    row = capsys.readouterr().out.splitlines()[4]
    assert row.split()[:2] == ["envsdk/FrozenLake-v1", "1000"]
    assert row.split()[-1] == "0"


def test_a_json_file_that_cannot_be_written_is_named_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").touch()
    code = main(["toys/Fast-v1", "--policy", "oracle", "--json", str(tmp_path / "taken" / "result.json")])
    assert code == 1
    captured = capsys.readouterr()
    assert f"Cannot write into {tmp_path / 'taken'}: it is a file" in captured.err
    assert "episodes" not in captured.out
