"""`replay --rescore --rewards NAME`: recorded responses to prompts, scored by another reward function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import collect
from envsdk.contracts.failures import Boundary
from envsdk.contracts.trajectory import Outcome
from envsdk.replay import main, replay
from tests.envsdk.rewards import unruly_rewards

CONTRARY = f"{unruly_rewards.__name__}:Contrary"


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    """Right and wrong responses to three prompts, by a reward that counts the right ones."""
    file = tmp_path / "rows.jsonl"
    mistakes = ["no", "unreachable", "away"]
    rows = [{"prompt": f"{n}?", "ground_truth": f"{n}", "mistakes": mistakes} for n in range(3)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = [f"files={file}", "reward=tests.envs.prompts.toy_rewards:SameText"]
    collect(
        "envsdk/Prompts-v1",
        tmp_path / "data",
        overrides=config,
        num_episodes=40,
        policy="oracle",
        epsilon=0.5,
    )
    return tmp_path / "data"


def test_responses_get_the_rewards_of_another_function(collected: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main([str(collected), "--rescore", "--out", str(out), "--rewards", CONTRARY, "prize=3"]) == 0
    pairs = list(
        zip(
            read_trajectories(collected / "part-00000.parquet"),
            read_trajectories(out / "part-00000.parquet"),
            strict=True,
        )
    )
    outcomes = {recorded.outcome for recorded, _ in pairs}
    assert outcomes == {Outcome.TERMINATED, Outcome.FAILED}, "some were masked when they were played"
    scored = [(before, after) for before, after in pairs if before.outcome is not Outcome.FAILED]
    assert {before.success for before, _ in scored} == {True, False}
    assert {before.turns[0].reply == "away" for before, _ in scored} == {True, False}
    for before, after in scored:
        if before.turns[0].reply == "away":
            assert after.failure is not None
            assert after.failure.boundary is Boundary.REWARD
            continue
        assert after.turns[0].reply == before.turns[0].reply
        assert after.success is not before.success
        assert after.total_reward == (3.0 if after.success else 0.0)
        assert json.loads(after.turns[0].details or "{}")["verdict"] == "3 at most"
    rescored = json.loads((out / "manifest.json").read_text())["config"]["rescored"]
    assert (rescored["rewards"], rescored["settings"]) == (CONTRARY, {"prize": 3})


def test_recorded_responses_are_replayed_without_a_difference(collected: Path) -> None:
    assert replay(collected).difference is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rewards", "exakt"], "`exakt` is not registered under envsdk.rewards"),
        (["--rewards", CONTRARY, "price=3"], "price"),
    ],
)
def test_a_wrong_name_or_setting_is_named(
    collected: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([str(collected), "--rescore", "--out", str(tmp_path / "out"), *arguments]) in (1, 2)
    assert message in capsys.readouterr().err


def test_a_reward_function_scores_no_episodes_of_other_environments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect("envsdk/FrozenLake-v1", tmp_path / "data", num_episodes=2)
    arguments = [str(tmp_path / "data"), "--rescore", "--out", str(tmp_path / "out"), "--rewards", CONTRARY]
    assert main(arguments) == 2
    assert "plays envsdk/FrozenLake-v1" in capsys.readouterr().err
