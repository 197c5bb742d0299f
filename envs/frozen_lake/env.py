"""The FrozenLake environment: gymnasium's rules, text in and text out."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from envsdk.contracts.turn_env import TurnResult
from envsdk.envs.arguments import keywords_of
from envsdk.envs.frozen_lake.lake import Lake, best_moves, cells, generate_lake, neighbors, slip
from envsdk.envs.grid import GridArguments, GridEnv, move_result, surroundings, way

_LONGEST_COMPASS = "\nLeft # Down # Right # Up #\nG Right 99 Down 99"


class FrozenLakeArguments(GridArguments):
    """The keywords of `FrozenLakeEnv`."""

    size: int = Field(4, ge=2)
    """Rows and columns of the map."""
    p: float = 0.8
    """Probability that a cell is ice rather than a hole."""
    is_slippery: bool = False
    """One goes where one meant to only with probability `success_rate`, else to either side."""
    success_rate: float = 1.0 / 3.0
    """See `is_slippery`."""
    max_steps: int = 20
    """Replies before the episode is truncated, at least `2 * (size - 1)`."""
    random_start: bool = False
    """Start on any cell rather than in the top left corner."""
    random_goal: bool = False
    """Put the goal on any cell rather than in the bottom right corner."""
    min_distance: int = 2
    """Steps from start to goal, at least; at most `size`, one less if that is odd."""
    detours: float = 0.0
    """Share of the maps whose holes have to make the shortest way longer, if any such map can be drawn."""


class FrozenLakeEnv(GridEnv):
    """Cross a frozen lake. The observation is the map, one symbol per cell:

        P_O_
        ____
        O__O
        ___G

    An action is a reply such as `<answer>Right</answer>`; stepping off the edge leaves one in
    place. A reply that names no move costs a turn, and a line at the end says why.

    The reward is 1 for reaching the goal, less the penalties asked for. A hole ends the episode
    without success; after `max_steps` replies it is truncated.

    Every map can be crossed within `max_steps`. With the same seed and corners as start and
    goal, it is the map of gymnasium's `generate_random_map(size, p, seed)` if that one can.
    """

    SYMBOLS = {"player": "P", "frozen": "_", "hole": "O", "goal": "G", "fallen": "X", "arrived": "V"}  # noqa: RUF012
    LEGEND = {"player": "you", "frozen": "ice", "hole": "hole", "goal": "goal"}  # noqa: RUF012
    LEGEND_SEPARATOR = " "

    @keywords_of(FrozenLakeArguments)
    def __init__(self, args: FrozenLakeArguments) -> None:
        size, max_steps = args.size, args.max_steps
        for name, value in {"p": args.p, "success_rate": args.success_rate, "detours": args.detours}.items():
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name}: must be a probability, not {value}")
        if max_steps < 2 * (size - 1):
            raise ValueError(f"max_steps: crossing takes at least {2 * (size - 1)} steps, not {max_steps}")
        if not 1 <= args.min_distance <= size - size % 2:
            raise ValueError(f"min_distance: must be from 1 to {size - size % 2}, not {args.min_distance}")
        max_length = size * (size + 1) + (len(_LONGEST_COMPASS) if args.compass else 0)
        super().__init__(args, max_steps=max_steps, max_length=max_length, symbols=args.symbols)
        self._args = args
        self._arrived = move_result(self._step_reward + 1.0, success=True)
        self._fell = move_result(self._step_reward, terminated=True)
        self._neighbors = neighbors(size)
        self._lake: Lake
        self._cell = 0
        """Where the player is."""

    def oracle(self) -> str:
        """A move along a shortest way; on slippery ice, the move most likely to arrive in the end."""
        success_rate = self._args.success_rate if self._args.is_slippery else 1.0
        advice = best_moves(self._lake, success_rate) if self._view else {}
        return self._replies[advice.get(self._cell, 0)]

    def _generate(self, rng: np.random.Generator) -> tuple[Lake, int]:
        args = self._args
        lake = generate_lake(
            rng,
            size=args.size,
            p=args.p,
            min_distance=args.min_distance,
            max_distance=args.max_steps,
            random_start=args.random_start,
            random_goal=args.random_goal,
            detours=args.detours,
        )
        return lake, lake.start

    def get_state(self) -> tuple[Lake, int]:
        return self._lake, self._cell

    def set_state(self, state: tuple[Lake, int]) -> None:
        self._lake, self._cell = lake, _ = state
        view = ["\n"] * (lake.size * (lake.size + 1) - 1)
        for cell in cells(lake.size):
            view[cell] = self._symbols["frozen" if cell in lake.ice else "hole"]
        view[lake.goal] = self._symbols["goal"]
        self._view = "".join(view)
        self._draw_player()

    def play(self, action: int) -> TurnResult:
        move = action
        if self._args.is_slippery:
            move = slip(move, self.np_random.random(), self._args.success_rate)
        here, there = self._cell, self._neighbors[self._cell][move]
        if there == here:
            return self._stayed
        view = self._view
        self._view = f"{view[:here]}{self._symbols['frozen']}{view[here + 1 :]}"
        self._cell = there
        self._draw_player()
        if there == self._lake.goal:
            return self._arrived
        return self._moved if there in self._lake.ice else self._fell

    def _draw_player(self) -> None:
        cell, lake = self._cell, self._lake
        looks = "arrived" if cell == lake.goal else "player" if cell in lake.ice else "fallen"
        self._view = f"{self._view[:cell]}{self._symbols[looks]}{self._view[cell + 1 :]}"

    def _bearings(self) -> str:
        goal, size = self._lake.goal, self._lake.size
        around = surroundings(self._view, self._cell, size)
        return f"\n{around}\n{self._symbols['goal']} {way(self._cell, goal, size)}"
