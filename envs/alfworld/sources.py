"""Where an environment's games come from: a generator, or ALFWorld's data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from envsdk.envs.alfworld import official
from envsdk.envs.alfworld.games import Game
from envsdk.envs.alfworld.household import generate_game

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
        self._paths = official.find_games(data_dir, split, tuple(sorted(task_types)))[:num_games]
        self.num_games = len(self._paths)

    def game(self, number: int) -> Game:
        if not 0 <= number < len(self._paths):
            raise IndexError(f"there is no game {number}: they are numbered from 0 to {len(self._paths) - 1}")
        return official.load_game(self._paths[number], self._data_dir)
