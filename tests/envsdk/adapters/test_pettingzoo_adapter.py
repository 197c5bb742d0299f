"""PettingZoo's games here and ours there, with the real package."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk.contracts.failures import ConfigurationError
from envsdk.evaluate import evaluate
from envsdk.testing import TextEnvSuite

pytest.importorskip("pettingzoo", reason="needs pettingzoo: make test-adapters")
pytestmark = pytest.mark.adapters

from pettingzoo.classic import connect_four_v3, leduc_holdem_v4, tictactoe_v3  # noqa: E402
from pettingzoo.test import api_test, seed_test  # noqa: E402

from tests.envsdk.adapters.aec import TextGame  # noqa: E402

ID = "envsdk/PettingZoo-v1"
GAMES = {
    "classic/tictactoe_v3": tictactoe_v3,
    "classic/connect_four_v3": connect_four_v3,
    "classic/leduc_holdem_v4": leduc_holdem_v4,
}

TestTicTacToe = TextEnvSuite.of(ID, {"id": "classic/tictactoe_v3"}, max_examples=4, seeds_give_tasks=False)
TestConnectFour = TextEnvSuite.of(
    ID, {"id": "classic/connect_four_v3"}, max_examples=4, seeds_give_tasks=False
)
TestLeduc = TextEnvSuite.of(ID, {"id": "classic/leduc_holdem_v4"}, max_examples=4)


@settings(max_examples=20, deadline=None)
@given(name=st.sampled_from(list(GAMES)), seed=st.integers(0, 2**31 - 1))
def test_a_course_is_the_one_that_pettingzoo_plays(name: str, seed: int) -> None:
    ours, theirs = envsdk.make(ID, id=name), GAMES[name].env()
    rng = np.random.default_rng(seed)
    _, info = ours.reset(seed=seed)
    theirs.reset(seed=seed)
    earned = dict.fromkeys(info["roles"], 0.0)
    for agent in theirs.agent_iter():
        observation, reward, is_out, _, _ = theirs.last()
        # What an agent has earned since it played last.
        assert earned.pop(agent) == reward
        earned[agent] = 0.0
        if is_out:
            theirs.step(None)
            continue
        assert info["role"] == agent
        legal = np.flatnonzero(observation["action_mask"])
        assert ours.legal_actions() == [f"<answer>{action}</answer>" for action in legal]
        action = int(rng.choice(legal))
        theirs.step(action)
        _, reward, terminated, truncated, info = ours.step(f"<answer>{action}</answer>")
        assert terminated == any(theirs.terminations.values())
        assert not truncated
        assert reward == info["rewards"][agent]
        for role, paid in info["rewards"].items():
            earned[role] += paid


def test_a_move_that_the_mask_forbids_is_not_passed_on() -> None:
    env = envsdk.make(ID, id="classic/tictactoe_v3", invalid_penalty=0.5)
    env.reset(seed=0)
    first, *_ = env.step("<answer>4</answer>")
    assert first == "___\n_O_\n___"
    second, reward, terminated, _, info = env.step("<answer>4</answer>")
    assert second == f"{first}\nInvalid action: 4 is not legal now."
    assert (reward, terminated, info["role"], info["rewards"]) == (-0.5, False, "player_2", {})


@pytest.mark.parametrize("game", GAMES.values())
def test_the_games_of_pettingzoo_pass_its_api_test(game: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        api_test(game.env(), num_cycles=50)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("id", "arguments"), [("envsdk/TicTacToe-v1", {}), *((ID, {"id": name}) for name in GAMES)]
)
def test_a_text_environment_of_several_players_passes_the_api_test(
    id: str, arguments: dict[str, str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        api_test(TextGame(envsdk.make(id, **arguments)), num_cycles=200)
        seed_test(lambda: TextGame(envsdk.make(id, **arguments)), num_cycles=50)


def test_a_game_of_ours_pays_as_an_aec_environment_pays() -> None:
    game = TextGame(envsdk.make("envsdk/TicTacToe-v1", opening=0))
    game.reset(seed=0)
    moves = iter([1, 4, 2, 5, 3])
    paid = dict.fromkeys(game.possible_agents, 0.0)
    for agent in game.agent_iter():
        observation, reward, is_out, _, _ = game.last()
        paid[agent] += reward
        assert is_out or observation["text"].count("\n") == 2
        game.step(None if is_out else f"<answer>{next(moves)}</answer>")
    assert paid == {"X": 1.0, "O": -1.0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"id": "classic/nothing_v0"}, "id: NameNotFound"),
        ({"id": "pettingzoo.classic.tictactoe_v3:nothing"}, "nothing"),
        ({"id": "classic/tictactoe_v3", "actions": ["a"]}, "9 actions, and 1 names"),
    ],
)
def test_what_does_not_exist_is_refused(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        envsdk.make(ID, **arguments)


def test_a_game_is_played_by_the_usual_commands() -> None:
    result = evaluate(
        ID, overrides=("id=classic/connect_four_v3",), policy="random", opponent="random", num_episodes=20
    )
    assert result.total.num_failed == 0
    assert {role for _, role in result.by_role} == {"player_0", "player_1"}
    assert sum(results.total() for results in result.by_role.values()) == 20
