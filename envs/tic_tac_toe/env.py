"""Tic-tac-toe: two roles, a board from a seed, and an exact oracle."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from envsdk.contracts.env import Info
from envsdk.contracts.turn_env import InvalidAction, TurnEnv, TurnResult

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
"""Squares, from 0, that are three in a row."""
ROLES = ("X", "O")
EMPTY = "_" * 9


class TicTacToeEnv(TurnEnv[int]):
    """Tic-tac-toe between X, who begins, and O. The observation is the board:

        X 2 3
        4 O 6
        7 8 9

    Free squares show their number, and an action is one of these: `<answer>9</answer>`. The winner is paid 1
    and the loser -1; a full board without three in a row is a draw, which pays 0 to both.
    """

    roles = ROLES
    STATE = ("board",)

    def __init__(self, *, opening: int = 2, max_steps: int = 18, invalid_penalty: float = 0.25) -> None:
        """
        Args:
            opening: Moves at random before the players begin, 0 to 4: so many make seeds differ.
            max_steps: Replies of both before the game is truncated, at least 9.
            invalid_penalty: Taken off the reward of a turn whose reply is no free square. With 9 turns to
                spare, it makes delaying a lost game dearer than losing it.
        """
        if opening not in range(5):  # no game is decided by so few moves
            raise ValueError(f"opening: must be from 0 to 4 moves, not {opening!r}")
        if isinstance(max_steps, int) and max_steps < 9:
            raise ValueError(f"max_steps: a game takes up to 9 moves, not {max_steps}")
        super().__init__(max_steps=max_steps, invalid_penalty=invalid_penalty)
        self._opening = opening
        self.board = EMPTY

    @property
    def role(self) -> str:
        return to_move(self.board)

    def start(self, rng: np.random.Generator, options: dict[str, Any]) -> Info | None:
        self.board = EMPTY
        for square in rng.permutation(9)[: self._opening].tolist():
            self.board = after(self.board, square)
        return None

    def parse(self, reply: str) -> int:
        answer = self.answer_in(reply)
        if len(answer) != 1 or answer not in "123456789":
            raise InvalidAction("Invalid action: not a number from 1 to 9.")
        return int(answer) - 1

    def play(self, action: int) -> TurnResult:
        if self.board[action] != "_":
            raise InvalidAction(f"Invalid action: square {action + 1} is taken.")
        self.board = after(self.board, action)
        winner = winner_of(self.board)
        rewards = {role: 1.0 if role == winner else -1.0 for role in ROLES} if winner else {}
        return TurnResult(rewards=rewards, terminated=bool(winner) or "_" not in self.board)

    def observe(self) -> str:
        shown = [str(square + 1) if mark == "_" else mark for square, mark in enumerate(self.board)]
        return "\n".join(" ".join(shown[row : row + 3]) for row in (0, 3, 6))

    def legal_actions(self) -> list[str]:
        return [f"<answer>{square + 1}</answer>" for square in free(self.board)]

    def oracle(self) -> str:
        """The first of the best moves against best replies; a quick win is better than a late one."""
        best = max(free(self.board) or [0], key=lambda square: -value_of(after(self.board, square)))
        return f"<answer>{best + 1}</answer>"


def to_move(board: str) -> str:
    """The role whose turn it is."""
    return ROLES[(9 - board.count("_")) % 2]


def free(board: str) -> list[int]:
    """Squares that are not taken."""
    return [square for square, mark in enumerate(board) if mark == "_"]


def after(board: str, square: int) -> str:
    """The board when the role whose turn it is takes a square."""
    return f"{board[:square]}{to_move(board)}{board[square + 1 :]}"


def winner_of(board: str) -> str:
    """The role with three in a row; empty without one."""
    return next((board[a] for a, b, c in LINES if "_" != board[a] == board[b] == board[c]), "")


@cache
def value_of(board: str) -> float:
    """What best play of both is worth to the role whose turn it is: above 0 a win, more the sooner."""
    if winner_of(board):
        return -1.0 - 0.1 * board.count("_")
    return max((-value_of(after(board, square)) for square in free(board)), default=0.0)
