"""Where an environment's games come from: a generator, or ALFWorld's data."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from envsdk.envs.alfworld.games import TASK_TYPES, Game, GameDataError, Goal
from envsdk.envs.alfworld.household import generate_game

DATA_FOLDER = "json_2.1.1"
GAME_FILE = "game.tw-pddl"
TRIAL_FILE = "traj_data.json"
HOW_TO_GET = (
    "Get the data with `alfworld-download` (it comes with the package alfworld; ALFWORLD_DATA says where to)"
    " and give that folder as `data_dir` or in ALFWORLD_DATA, or leave both out for generated games."
)

_LEFT_OUT = ("movable", "Sliced")
"""Trials whose path holds one of these need actions that ALFWorld's text games do not have."""
_REQUIRED = ("pddl_domain", "grammar", "pddl_problem")
_NOT_SOLVABLE = re.compile(rb'"solvable"\s*:\s*false')
_TASK = re.compile(r"Your task is to: (.*?)\.?\"")


@lru_cache(maxsize=16)
def find_games(data_dir: Path, split: str, task_types: tuple[str, ...]) -> tuple[Path, ...]:
    """The game files of a split, sorted by path: those solvable and of these types.

    Raises GameDataError when the folder is missing or has none, or a file is cut off or lacks a part.

    DATA_DIR/json_2.1.1/valid_unseen/pick_and_place_simple-Cup-None-Desk-308/trial_T2019.../game.tw-pddl
                                                                                           traj_data.json
    """
    folder = data_dir / DATA_FOLDER / split
    if not folder.is_dir():
        raise GameDataError(f"there is no folder {folder} with ALFWorld's data. {HOW_TO_GET}")
    wanted = tuple(f"{task_type}-" for task_type in task_types)
    found = []
    for path in sorted(folder.glob(f"*/*/{GAME_FILE}")):
        trial = path.parent.relative_to(folder).as_posix()
        if trial.startswith(wanted) and not any(part in trial for part in _LEFT_OUT) and _is_solvable(path):
            found.append(path)
    if not found:
        raise GameDataError(
            f"{folder} has no {GAME_FILE} of the types {', '.join(task_types)} that is marked solvable. "
            f"{HOW_TO_GET}"
        )
    return tuple(found)


@lru_cache(maxsize=256)
def load_game(path: Path, data_dir: Path) -> Game:
    """GameDataError names the file, and the field that is missing or wrong."""
    data = _read_json(path)
    for name in _REQUIRED:
        _text(path, data, name)
    trial = path.with_name(TRIAL_FILE)
    goal = _goal(trial, _read_json(trial))
    described = _TASK.search(data["grammar"])
    return Game(
        id=os.path.relpath(path.parent, data_dir / DATA_FOLDER),
        goal=goal,
        description=described[1] if described else "",
        problem=data["pddl_problem"],
        domain=data["pddl_domain"],
        grammar=data["grammar"],
    )


def _is_solvable(path: Path) -> bool:
    """Without reading the file as JSON: a split has thousands."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise GameDataError(f"{path}: cannot be read: {error.strerror}") from error
    if not content.rstrip().endswith(b"}"):
        raise GameDataError(f"{path}: is cut off after {len(content)} bytes; download it again")
    for name in _REQUIRED:
        if b'"%s"' % name.encode() not in content:
            raise GameDataError(f"{path}: is no TextWorld game: it has no `{name}`")
    return not _NOT_SOLVABLE.search(content)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GameDataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise GameDataError(f"{path}: is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise GameDataError(f"{path}: must hold a JSON object, not a {type(data).__name__}")
    return data


def _goal(path: Path, trial: Mapping[str, Any]) -> Goal:
    task_type = _text(path, trial, "task_type")
    if task_type not in TASK_TYPES:
        known: Sequence[str] = TASK_TYPES
        raise GameDataError(f"{path}: unknown task_type {task_type!r}; known: {', '.join(known)}")
    parameters = trial.get("pddl_params")
    if not isinstance(parameters, dict):
        raise GameDataError(f"{path}: `pddl_params` is missing or no object")
    return Goal(
        task_type=task_type,
        object_type=_text(path, parameters, "object_target"),
        receptacle_type=_text(path, parameters, "parent_target"),
        lamp_type=_text(path, parameters, "toggle_target"),
    )


def _text(path: Path, fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise GameDataError(f"{path}: `{name}` is missing or no text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise GameDataError(f"{path}: `{name}` is no Unicode text: {error}") from None
    return value


_MOST_SEEDS = 2**62


class GameSource(ABC):
    """Games by number; the same number is the same game in every process."""

    num_games: int | None
    """None: as many as there are numbers."""

    @abstractmethod
    def game(self, number: int) -> Game:
        """IndexError when there is no such game; GameDataError when it is damaged."""

    @property
    def num_numbers(self) -> int:
        return self.num_games or _MOST_SEEDS


class GeneratedGames(GameSource):
    """Households made on demand. Types take turns, so each is equally frequent."""

    def __init__(self, *, split: str, task_types: Sequence[str], size: str, num_games: int | None) -> None:
        self.num_games = num_games
        self._split = split
        self._task_types = tuple(task_types)
        self._size = size

    def game(self, number: int) -> Game:
        if not 0 <= number < self.num_numbers:
            raise IndexError(f"there is no game {number}: they are numbered from 0 to {self.num_numbers - 1}")
        task_type = self._task_types[number % len(self._task_types)]
        return _generate(number // len(self._task_types), task_type, self._size, self._split)


@lru_cache(maxsize=64)
def _generate(seed: int, task_type: str, size: str, split: str) -> Game:
    return generate_game(seed, task_type, size=size, split=split)


class OfficialGames(GameSource):
    """The solvable games of one split, sorted by path."""

    def __init__(
        self, data_dir: Path, *, split: str, task_types: Sequence[str], num_games: int | None
    ) -> None:
        self._data_dir = data_dir
        # By type first, so that the order does not depend on that of `task_types`.
        self._paths = find_games(data_dir, split, tuple(sorted(task_types)))[:num_games]
        self.num_games = len(self._paths)

    def game(self, number: int) -> Game:
        if not 0 <= number < len(self._paths):
            raise IndexError(f"there is no game {number}: they are numbered from 0 to {len(self._paths) - 1}")
        return load_game(self._paths[number], self._data_dir)
