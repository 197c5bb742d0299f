"""The Sokoban environment."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from envsdk.contracts.turn_env import TurnResult
from envsdk.envs.arguments import keywords_of
from envsdk.envs.grid import GridArguments, GridEnv, move_result, surroundings, way
from envsdk.envs.sokoban.room import Room, bits, generate_room
from envsdk.envs.sokoban.solver import solve

PRESETS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")
)
"""Configurations by the name of the tag they are for; `preset: NAME` in `env_config` takes one."""

_FEWEST_STEPS_PER_BOX = 8
_LONGEST_LINE = "\nX Right 99 Down 99 O Right 99 Down 99"


class SokobanArguments(GridArguments):
    """The keywords of `SokobanEnv`."""

    preset: str | None = None
    """A name in `PRESETS`, for what is not given here; `SimpleSokoban` by default."""
    dim: Any = None
    """Width and height, walls included, at least 5 each."""
    num_boxes: int | None = None
    """Boxes, at most one per four cells inside the walls."""
    max_steps: int | None = None
    """Replies before the episode is truncated."""
    min_pushes: int | None = Field(None, ge=1)
    """Difficulty: the fewest pushes that may solve a room; two per box by default. Where the room is too
    small for it, the nearest to it found is taken."""
    box_on_target_reward: float = 0.0
    """For a box pushed onto a target, and taken off for one pushed off it."""
    success_reward: float = 1.0
    """For the last box."""


class SokobanEnv(GridEnv):
    """Push every box onto a target. The observation is the room, one symbol per cell:

        ######
        #_O_##
        #_X_##
        #_P__#
        ##___#
        ######

    An action is a reply such as `<answer>Up</answer>`; walking into a box pushes it, unless a
    wall or another box is behind it. A reply that names no move costs a turn, and a line at the
    end says why.

    The reward is `success_reward` when the last box arrives, plus `box_on_target_reward` for each
    box pushed onto a target (and minus it for each pushed off), less `step_penalty` every turn.
    The values of gym-sokoban are 10, 1 and 0.1.

    Every room can be solved within `max_steps`, and every box starts off the targets, if only
    there is space for that.
    """

    SYMBOLS = {  # noqa: RUF012
        "wall": "#",
        "floor": "_",
        "target": "O",
        "box": "X",
        "box_on_target": "V",
        "player": "P",
        "player_on_target": "S",
    }
    LEGEND = {  # noqa: RUF012
        "player": "you",
        "wall": "wall",
        "floor": "floor",
        "box": "box",
        "target": "target",
        "box_on_target": "box on target",
        "player_on_target": "you on target",
    }

    @keywords_of(SokobanArguments)
    def __init__(self, args: SokobanArguments) -> None:
        preset = args.preset or "SimpleSokoban"
        if preset not in PRESETS:
            raise ValueError(f"preset: must be one of {', '.join(PRESETS)}, not {preset!r}")
        chosen = PRESETS[preset] | args.model_dump(exclude_none=True)
        width, height = _two(chosen["dim"])
        num_boxes, max_steps = chosen["num_boxes"], chosen["max_steps"]
        most, fewest = (width - 2) * (height - 2) // 4, _FEWEST_STEPS_PER_BOX * num_boxes
        if min(width, height) < 5:
            raise ValueError(f"dim: must be at least 5 by 5, walls included, not {width} by {height}")
        if not 1 <= num_boxes <= most:
            raise ValueError(f"num_boxes: must be from 1 to {most} in {width}x{height}, not {num_boxes}")
        if max_steps < fewest:
            raise ValueError(f"max_steps: {num_boxes} boxes take at least {fewest}, not {max_steps}")
        super().__init__(
            args,
            max_steps=max_steps,
            max_length=(width + 1) * height + ((1 + num_boxes) * len(_LONGEST_LINE) if args.compass else 0),
            symbols=chosen.get("symbols"),
        )
        self._room_kwargs = {
            "width": width,
            "height": height,
            "num_boxes": num_boxes,
            "max_moves": max_steps,
            "min_pushes": chosen.get("min_pushes", 2 * num_boxes),
        }
        self._box_on_target_reward = args.box_on_target_reward
        self._success_reward = args.success_reward
        self._room: Room
        self._offsets = (0, 0, 0, 0)
        self._boxes = 0
        self._player = 0
        self._advice: dict[tuple[int, int], int] = {}
        """The oracle's move by (player, boxes): every position on a plan made in this episode."""
        self._is_given_up = False
        """The oracle found no plan; it does not search again in this episode."""

    def _generate(self, rng: np.random.Generator) -> tuple[Room, int, int]:
        room = generate_room(random.Random(int(rng.integers(2**63))), **self._room_kwargs)
        return room, room.player, room.boxes

    def get_state(self) -> tuple[Room, int, int]:
        return self._room, self._player, self._boxes

    def set_state(self, state: tuple[Room, int, int]) -> None:
        room, self._player, self._boxes = state
        if not self._view or room is not self._room:
            self._advice = {}
        self._is_given_up = False
        self._room, self._offsets = room, room.offsets
        self._view = "\n".join([self._symbols["wall"] * room.width] * room.height)
        for cell in bits(room.floor):
            self._draw(cell, "floor", "target")
        for cell in bits(self._boxes):
            self._draw(cell, "box", "box_on_target")
        self._draw(self._player, "player", "player_on_target")

    def play(self, action: int) -> TurnResult:
        room, result = self._room, self._moved
        offset = self._offsets[action]
        here, there = self._player, self._player + offset
        if self._boxes >> there & 1:
            beyond = there + offset
            if not (room.floor & ~self._boxes) >> beyond & 1:
                return self._stayed
            self._boxes ^= 1 << there | 1 << beyond
            arrived = (room.targets >> beyond & 1) - (room.targets >> there & 1)
            if arrived:
                success = self._boxes == room.targets
                reward = self._step_reward + self._box_on_target_reward * arrived
                result = move_result(reward + self._success_reward if success else reward, success=success)
            self._draw(beyond, "box", "box_on_target")
        elif not room.floor >> there & 1:
            return self._stayed
        self._player = there
        self._draw(here, "floor", "target")
        self._draw(there, "player", "player_on_target")
        return result

    def oracle(self) -> str:
        """The next move of a plan: the shortest for one or two boxes, a good one for more.

        After a detour it plans again. In a position without a solution, or where none is found in
        reasonable time, some legal action.
        """
        here = (self._player, self._boxes)
        move = self._advice.get(here)
        if move is None and not self.is_over and not self._is_given_up:
            self._plan()
            move = self._advice.get(here)
        return self._replies[move or 0]

    def _plan(self) -> None:
        room = self._room
        plan: Sequence[int] | None = solve(room, player=self._player, boxes=self._boxes)
        is_at_start = (self._player, self._boxes) == (room.player, room.boxes)
        if is_at_start and (plan is None or len(plan) > len(room.solution)):
            plan = room.solution
        if plan is None:
            self._is_given_up = True
            return
        # Positions keep the advice of the first plan they are on, so plans never lead in a circle.
        player, boxes = self._player, self._boxes
        for move in plan:
            self._advice.setdefault((player, boxes), move)
            player += self._offsets[move]
            if boxes >> player & 1:
                boxes ^= 1 << player | 1 << (player + self._offsets[move])

    def _bearings(self) -> str:
        room, symbols = self._room, self._symbols
        width, here = room.width, self._player
        text = "\n" + surroundings(self._view, here, width)
        for box in bits(self._boxes):
            target = min(bits(room.targets), key=lambda target: _distance(box, target, width))
            text += (
                f"\n{symbols['box']} {way(here, box, width)} {symbols['target']} {way(box, target, width)}"
            )
        return text

    def _draw(self, cell: int, off_target: str, on_target: str) -> None:
        symbol = self._symbols[on_target if self._room.targets >> cell & 1 else off_target]
        self._view = f"{self._view[:cell]}{symbol}{self._view[cell + 1 :]}"


def _distance(start: int, end: int, width: int) -> int:
    """Steps between two positions of a map's text, walls aside."""
    rows, columns = end // (width + 1) - start // (width + 1), end % (width + 1) - start % (width + 1)
    return abs(rows) + abs(columns)


def _two(dim: Sequence[int]) -> tuple[int, int]:
    try:
        width, height = dim
        if isinstance(width, int) and isinstance(height, int):
            return width, height
    except (TypeError, ValueError):
        pass
    raise ValueError(f"dim: must be two whole numbers [width, height], not {dim!r}")
