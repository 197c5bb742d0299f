"""The FrozenLake environment: gymnasium's rules, text in and text out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from envsdk.env import Info, TextEnv
from envsdk.envs.frozen_lake.lake import Lake, best_moves, generate_lake, neighbors, slip
from envsdk.envs.grid import (
    NOTES,
    REPLIES,
    action_space,
    merge_symbols,
    observation_space,
    parse_move,
    surroundings,
    way,
)

SYMBOLS = {"player": "P", "frozen": "_", "hole": "O", "goal": "G", "fallen": "X", "arrived": "V"}


class FrozenLakeEnv(TextEnv):
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

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (gymnasium declares it so)

    def __init__(
        self,
        *,
        size: int = 4,
        p: float = 0.8,
        is_slippery: bool = False,
        success_rate: float = 1.0 / 3.0,
        max_steps: int = 20,
        random_start: bool = False,
        random_goal: bool = False,
        min_distance: int = 2,
        step_penalty: float = 0.0,
        invalid_penalty: float = 0.0,
        symbols: Mapping[str, str] | None = None,
        legend: bool = True,
        compass: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """
        Args:
            size: Rows and columns of the map, at least 2.
            p: Probability that a cell is ice rather than a hole.
            is_slippery: One goes where one meant to only with probability `success_rate`, else
                to either side.
            success_rate: See `is_slippery`.
            max_steps: Replies before the episode is truncated, at least `2 * (size - 1)`.
            random_start: Start on any cell rather than in the top left corner.
            random_goal: Put the goal on any cell rather than in the bottom right corner.
            min_distance: Steps from start to goal, at least; at most `size`, one less if that is odd.
            step_penalty: Taken off the reward of every turn.
            invalid_penalty: Taken off the reward of a turn whose reply names no move.
            symbols: Other characters for some of `player frozen hole goal fallen arrived`.
            legend: The first observation of an episode opens with a line that explains the symbols.
            compass: A line below the map tells what is next to you and which way the goal lies.
            render_mode: None, or `ansi`: `render()` returns the map.
        """
        if size < 2:
            raise ValueError(f"size: must be at least 2, not {size}")
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p: must be a probability, not {p}")
        if not 0.0 <= success_rate <= 1.0:
            raise ValueError(f"success_rate: must be a probability, not {success_rate}")
        if max_steps < 2 * (size - 1):
            raise ValueError(f"max_steps: crossing takes at least {2 * (size - 1)} steps, not {max_steps}")
        if not 1 <= min_distance <= size - size % 2:
            raise ValueError(f"min_distance: must be from 1 to {size - size % 2}, not {min_distance}")
        self.max_steps = max_steps
        self.render_mode = render_mode
        self._map_kwargs: dict[str, Any] = {
            "size": size,
            "p": p,
            "min_distance": min_distance,
            "max_distance": max_steps,
            "random_start": random_start,
            "random_goal": random_goal,
        }
        self._success_rate = success_rate if is_slippery else 1.0
        self._is_slippery = is_slippery
        self._step_reward = 0.0 - step_penalty
        self._invalid_penalty = invalid_penalty
        self._symbols = merge_symbols(SYMBOLS, symbols)
        self._legend = ""
        if legend:
            names = {"player": "you", "frozen": "ice", "hole": "hole", "goal": "goal"}
            self._legend = " ".join(f"{self._symbols[key]}={name}" for key, name in names.items()) + "\n"
        self._compass = compass
        self._neighbors = neighbors(size)

        self._lake: Lake | None = None
        self._cell = 0
        self._turn = 0
        self._note = ""
        self._ended = True
        self._view: list[str] = []
        """The text of the map, one entry per character."""
        self._advice: dict[int, int] = {}
        """Best move by cell; filled when the oracle is first asked."""

    @cached_property
    def observation_space(self) -> Text:  # type: ignore[override]
        size = self._map_kwargs["size"]
        longest_note = max(map(len, NOTES.values()))
        longest_line = len("\nLeft # Down # Right # Up #\nG Right 99 Down 99") if self._compass else 0
        longest = len(self._legend) + size * (size + 1) + longest_line + longest_note
        return observation_space(longest, self._symbols)

    @cached_property
    def action_space(self) -> Text:  # type: ignore[override]
        return action_space()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        lake = generate_lake(self.np_random, **self._map_kwargs)
        self._place(lake, cell=lake.start, turn=0, note="", ended=False)
        return self._observation(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._ended:
            return self._step_after_the_end()
        self._turn += 1
        reward = self._step_reward
        terminated = success = is_effective = False
        move = parse_move(action)
        if move < 0:
            self._note = "\n" + NOTES[move]
            reward -= self._invalid_penalty
        else:
            self._note = ""
            if self._is_slippery:
                move = slip(move, self.np_random.random(), self._success_rate)
            here = self._cell
            there = self._neighbors[here][move]
            if there != here:
                is_effective = True
                lake, view, symbols = self._lake, self._view, self._symbols
                assert lake is not None
                self._cell = there
                view[here] = symbols["frozen"]
                if there == lake.goal:
                    terminated = success = True
                    reward += 1.0
                    view[there] = symbols["arrived"]
                elif lake.ice >> there & 1:
                    view[there] = symbols["player"]
                else:
                    terminated = True
                    view[there] = symbols["fallen"]
        truncated = not terminated and self._turn >= self.max_steps
        self._ended = terminated or truncated
        metrics = {"action_is_valid": float(move >= 0), "action_is_effective": float(is_effective)}
        info = {"success": success, "metrics": metrics}
        return self._text(), reward, terminated, truncated, info

    def render(self) -> str | None:
        return "".join(self._view) if self.render_mode == "ansi" else None

    def snapshot(self) -> Any:
        state = self.np_random.bit_generator.state
        return self._lake, self._cell, self._turn, self._note, self._ended, state

    def restore(self, snapshot: Any) -> str:
        lake, cell, turn, note, ended, state = snapshot
        self.np_random.bit_generator.state = state
        self._place(lake, cell=cell, turn=turn, note=note, ended=ended)
        return self._observation()

    def oracle(self) -> str:
        """A move along a shortest way; on slippery ice, the move most likely to arrive in the end."""
        if not self._advice and self._lake is not None:
            self._advice = best_moves(self._lake, self._success_rate)
        return REPLIES[self._advice.get(self._cell, 0)]

    def legal_actions(self) -> Sequence[str]:
        return () if self._ended else REPLIES

    def state_hash(self) -> str:
        """Of the map as it looks now. Turns left and the line about an invalid reply do not count."""
        return hashlib.blake2b("".join(self._view).encode(), digest_size=16).hexdigest()

    def _observation(self) -> str:
        return (self._legend if self._turn == 0 else "") + self._text()

    def _text(self) -> str:
        return "".join(self._view) + (self._bearings() if self._compass else "") + self._note

    def _bearings(self) -> str:
        """The compass's lines."""
        lake = self._lake
        assert lake is not None
        beside = surroundings(self._view, self._cell, lake.size)
        return f"\n{beside}\n{self._symbols['goal']} {way(self._cell, lake.goal, lake.size)}"

    def _place(self, lake: Lake, *, cell: int, turn: int, note: str, ended: bool) -> None:
        if lake is not self._lake:
            self._advice = {}
        self._lake, self._cell, self._turn, self._note, self._ended = lake, cell, turn, note, ended
        symbols, size = self._symbols, lake.size
        frozen, hole = symbols["frozen"], symbols["hole"]
        view = [frozen if lake.ice >> index & 1 else hole for index in range(size * (size + 1) - 1)]
        view[size :: size + 1] = "\n" * (size - 1)
        view[lake.goal] = symbols["goal"]
        if cell == lake.goal:
            view[cell] = symbols["arrived"]
        else:
            view[cell] = symbols["player"] if lake.ice >> cell & 1 else symbols["fallen"]
        self._view = view

    def _step_after_the_end(self) -> tuple[str, float, bool, bool, Info]:
        """What gymnasium's lake does in a hole or at the goal: nothing, for no reward."""
        lake = self._lake
        if lake is None:
            raise ResetNeeded("FrozenLake: call reset() before step()")
        success = self._cell == lake.goal
        terminated = success or not lake.ice >> self._cell & 1
        return self._observation(), 0.0, terminated, not terminated, {"success": success, "metrics": {}}
