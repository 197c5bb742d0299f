"""Several players by the commands without a run: tables of wins, opponents by name, replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsdk.collect import collect
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.players import POLICY, Result
from envsdk.evaluate import evaluate, main, wins_table
from envsdk.replay import replay
from envsdk.rollouts.datasets.reading import open_dataset
from tests.tiny_policies import write_tiny_policy

GAME = "envsdk/TicTacToe-v1"


def test_wins_are_counted_for_the_roles_of_the_policy_which_change(tmp_path: Path) -> None:
    result = evaluate(GAME, policy="oracle", opponent="random", num_episodes=60, out=tmp_path / "log")
    counts = {role: results for (_, role), results in result.by_role.items()}
    assert {role: results.total() for role, results in counts.items()} == {"X": 30, "O": 30}
    assert counts["X"][Result.WIN] > counts["O"][Result.WIN] > counts["O"][Result.LOSS]
    won = sum(results[Result.WIN] for results in counts.values())
    assert result.total.num_successes == won
    found = result.to_json()["by_role"]
    assert [each["win"] for each in found] == [counts[each["role"]][Result.WIN] for each in found]
    low, high = found[0]["win_rate_95"]
    assert 0 <= low < found[0]["win"] / 30 <= high <= 1
    # The log knows them as well: nothing is played again.
    again = evaluate(GAME, policy="oracle", opponent="random", num_episodes=60, out=tmp_path / "log")
    assert again.by_role == result.by_role
    table = wins_table(result)
    assert [column.header for column in table.columns][-7:] == [
        *("role", "games", "wins", "95% interval", "draws", "losses", "unfinished")
    ]
    assert table.row_count == 3


def test_perfect_players_draw_from_the_start() -> None:
    result = evaluate(GAME, policy="oracle", opponent="oracle", num_episodes=4, overrides=("opening=0",))
    assert {tuple(results) for results in result.by_role.values()} == {(Result.DRAW,)}
    assert result.total.num_successes == 0


def test_models_play_against_one_another(tmp_path: Path) -> None:
    model = write_tiny_policy(
        tmp_path / "model", ["X 2 3\n4 O 6", "<answer>5</answer>"], sequence_length=1500
    )
    result = evaluate(
        GAME,
        model=model,
        opponent=str(model),
        num_episodes=6,
        overrides=("actor_infer.generating_args.max_new_tokens=4",),
    )
    assert result.total.num_failed == 0
    assert {role for _, role in result.by_role} == {"X", "O"}
    assert {seat.player for each in result.trajectories for seat in each.seats.values()} == {
        POLICY,
        "opponent",
    }


@pytest.mark.parametrize(
    ("name", "opponent", "says"),
    [
        ("envsdk/FrozenLake-v1", "random", "has one player"),
        (GAME, "nobody", "^--opponent: there is no folder nobody"),
        (GAME, "no.such.module:Class", "no player"),
    ],
)
def test_an_opponent_that_cannot_play_is_refused(name: str, opponent: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        evaluate(name, policy="random", opponent=opponent, num_episodes=2)


def test_the_command_prints_and_writes_the_wins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["TicTacToe", "--policy", "random", "--opponent", "oracle", "-n", "20", "--json", "out.json"]
    assert main(arguments) == 0
    assert "95% interval" in capsys.readouterr().out
    assert {each["role"] for each in json.loads(Path("out.json").read_text())["by_role"]} == {"X", "O"}


def test_games_take_the_same_course_in_a_replay(tmp_path: Path) -> None:
    run = Path(__file__).parents[4] / "examples" / "agentic_tic_tac_toe.yaml"
    collect(run, tmp_path / "games", policy="random", num_episodes=12, tags=("AgainstRandom", "SelfPlay"))
    recorded = list(open_dataset(tmp_path / "games").episodes())
    assert {seat.player for each in recorded for seat in each.seats.values()} == {POLICY, "random"}
    assert replay(tmp_path / "games").difference is None


def test_the_opponents_of_a_run_may_be_replaced_by_another() -> None:
    run = Path(__file__).parents[4] / "examples" / "agentic_tic_tac_toe.yaml"
    past = ("opponents.past.refresh_steps=20", "custom_envs.AgainstRandom.players=[policy,past]")
    with pytest.raises(ConfigurationError, match=r"past version of the policy.*--opponent"):
        evaluate(run, policy="random", num_episodes=2, overrides=past)
    result = evaluate(run, policy="random", opponent="oracle", num_episodes=2, overrides=past)
    assert {seat.player for each in result.trajectories for seat in each.seats.values()} == {
        POLICY,
        "oracle",
    }
