"""Tic-tac-toe: the rules, who is paid, and an oracle that plays perfectly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.tic_tac_toe import SPEC, TicTacToeEnv
from envsdk.envs.tic_tac_toe.env import EMPTY, LINES, after, free, to_move, value_of, winner_of
from envsdk.testing import TextEnvSuite

TestTicTacToe = TextEnvSuite.of(SPEC.id, max_examples=8)
TestFromTheStart = TextEnvSuite.of(SPEC.id, {"opening": 0}, max_examples=4, seeds_give_tasks=False)


def answer(square: int) -> str:
    return f"<answer>{square + 1}</answer>"


@given(seed=st.integers(0, 2**31 - 1), opening=st.integers(0, 4), moves=st.permutations(range(9)))
def test_a_game_ends_with_three_in_a_row_or_a_full_board_and_pays_a_zero_sum(
    seed: int, opening: int, moves: list[int]
) -> None:
    env = TicTacToeEnv(opening=opening)
    _, info = env.reset(seed=seed)
    assert env.board.count("_") == 9 - opening
    for square in moves:
        role, before = info["role"], env.board
        assert role == to_move(before)
        observation, reward, terminated, _, info = env.step(answer(square))
        if before[square] != "_":
            assert (reward, terminated, info["rewards"], info["role"]) == (-0.25, False, {}, role)
            assert observation.endswith(f"square {square + 1} is taken.")
            continue
        assert env.board == f"{before[:square]}{role}{before[square + 1 :]}"
        has_won = any(all(env.board[each] == role for each in line) for line in LINES)
        assert terminated == (has_won or "_" not in env.board)
        other = "O" if role == "X" else "X"
        assert info["rewards"] == ({role: 1.0, other: -1.0} if has_won else {})
        assert reward == (1.0 if has_won else 0.0)
        if terminated:
            break
    else:
        pytest.fail("all nine squares are taken and the game goes on")


def test_the_oracle_never_loses_from_the_start_whatever_the_other_plays() -> None:
    env = TicTacToeEnv(opening=0)
    env.reset(seed=0)

    def can_be_beaten(board: str, oracle: str) -> bool:
        if winner := winner_of(board):
            return winner != oracle
        if to_move(board) != oracle:
            return any(can_be_beaten(after(board, square), oracle) for square in free(board))
        if "_" not in board:
            return False
        env.set_state((board,))
        return can_be_beaten(after(board, int(env.oracle()[8]) - 1), oracle)

    assert not can_be_beaten(EMPTY, "X")
    assert not can_be_beaten(EMPTY, "O")


def test_the_oracle_wins_at_once_where_it_can() -> None:
    env = TicTacToeEnv(opening=0)
    env.reset(seed=0)
    env.set_state(("XX_OO____",))
    assert env.oracle() == answer(2)
    assert value_of(EMPTY) == 0


@pytest.mark.parametrize(
    ("arguments", "says"), [({"opening": 5}, "opening"), ({"max_steps": 8}, "max_steps")]
)
def test_arguments_that_make_no_game_are_refused(arguments: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TicTacToeEnv(**arguments)
