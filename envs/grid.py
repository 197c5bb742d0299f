"""Grid worlds as text: `GridEnv`, the four moves, how a reply names one, and the symbols of a map."""

from __future__ import annotations

import hashlib
import string
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from envsdk.env import Info, TextEnv

MOVES = ("Left", "Down", "Right", "Up")
"""In the order of gymnasium's FrozenLake: a move is its index here."""

REPLIES = tuple(f"<answer>{move}</answer>" for move in MOVES)
"""The reply that plays each move."""

REPLIES_WITH_THOUGHT = tuple(f"<think>Go {move}.</think>{REPLIES[i]}" for i, move in enumerate(MOVES))
"""The same where `require_think` asks for one."""

ACTION_FORMAT = "Reply with one move: " + ", ".join(REPLIES[:-1]) + f" or {REPLIES[-1]}."

NO_ANSWER = -1
NOT_A_MOVE = -2
NO_THOUGHT = -3
NOTES = {
    NO_ANSWER: "Invalid action: no <answer> found.",
    NOT_A_MOVE: "Invalid action: not Left, Down, Right or Up.",
    NO_THOUGHT: "Invalid action: no <think>...</think> before <answer>.",
}
"""The observation's last line after a reply that names no move."""

_OPEN, _CLOSE = "<answer>", "</answer>"
_INDEX = {move.lower(): index for index, move in enumerate(MOVES)}
_EXACT = {text: i for i in range(4) for text in (REPLIES[i], MOVES[i], MOVES[i].lower())}

_PRINTABLE = frozenset(string.ascii_letters + string.digits + string.punctuation + " \n")
_MAX_REPLY_LENGTH = 256


def parse_move(reply: str) -> int:
    """The move that `reply` names: its index in `MOVES`, or `NO_ANSWER` or `NOT_A_MOVE`.

    The last complete `<answer>` counts, in any case; without one the entire reply must be the
    move. Takes time linear in the reply, whatever it holds.
    """
    move = _EXACT.get(reply)
    if move is not None:
        return move
    text = reply.lower()
    start = text.rfind(_OPEN, 0, max(text.rfind(_CLOSE), 0))
    if start < 0:
        return _INDEX.get(text.strip(), NO_ANSWER)
    start += len(_OPEN)
    return _INDEX.get(text[start : text.index(_CLOSE, start)].strip(), NOT_A_MOVE)


def thinks_first(reply: str) -> bool:
    """Whether a complete `<think>`, in any case, stands before the `<answer>` that counts."""
    text = reply.lower()
    answer = text.rfind(_OPEN, 0, max(text.rfind(_CLOSE), 0))
    end = text.rfind("</think>", 0, max(answer, 0))
    return text.find("<think>", 0, max(end, 0)) >= 0


def merge_symbols(defaults: Mapping[str, str], given: Mapping[str, str] | None) -> dict[str, str]:
    """`defaults` with the user's symbols over them; ValueError unless every cell stays readable."""
    symbols = {**defaults, **(given or {})}
    if unknown := symbols.keys() - defaults.keys():
        raise ValueError(f"symbols: unknown {sorted(unknown)}; the cells are {', '.join(defaults)}")
    for name, symbol in symbols.items():
        if not isinstance(symbol, str) or len(symbol) != 1 or symbol.isspace():
            raise ValueError(f"symbols.{name}: must be one visible character, not {symbol!r}")
    if len(set(symbols.values())) < len(symbols):
        raise ValueError(f"symbols: two cells look the same in {symbols}")
    return symbols


def way(start: int, end: int, width: int) -> str:
    """How `end` lies from `start` on a map of `width` columns: `Down 2 Right 1`, or `here`.

    Positions are indices into the map's text, whose rows end with a newline.
    """
    down, right = end // (width + 1) - start // (width + 1), end % (width + 1) - start % (width + 1)
    vertical = f"{'Down' if down > 0 else 'Up'} {abs(down)}" if down else ""
    horizontal = f"{'Right' if right > 0 else 'Left'} {abs(right)}" if right else ""
    return " ".join(filter(None, (vertical, horizontal))) or "here"


def surroundings(view: Sequence[str], cell: int, width: int) -> str:
    """What is next to `cell`, in the order of `MOVES`: `Left _ Down O Right _ Up #`; `#` beyond the edge."""
    cells = (cell - 1, cell + width + 1, cell + 1, cell - width - 1)
    seen = (view[there] if 0 <= there < len(view) and view[there] != "\n" else "#" for there in cells)
    return " ".join(f"{move} {symbol}" for move, symbol in zip(MOVES, seen, strict=True))


class GridEnv(TextEnv):
    """A world on a grid: the observation is a map with one symbol per cell, the action one of four moves.

        reset -> playing -> step ... -> ended -> reset -> ...

    This class reads replies, counts turns, adds penalties and keeps the text of the map. A subclass draws a
    world in `_generate`, holds it, and plays one move in `_move`. After the end a step changes nothing.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (gymnasium declares it so)

    SYMBOLS: ClassVar[Mapping[str, str]]
    """The character of each kind of cell."""
    LEGEND: ClassVar[Mapping[str, str]]
    """What the legend calls each kind of cell, in its order."""
    LEGEND_SEPARATOR: ClassVar[str] = ", "

    def __init__(
        self,
        *,
        max_steps: int,
        step_penalty: float,
        invalid_penalty: float,
        require_think: bool,
        symbols: Mapping[str, str] | None,
        legend: bool,
        compass: bool,
        render_mode: str | None,
        max_length: int,
    ) -> None:
        """Args as in the subclasses; `max_length` bounds the text of the map and its compass."""
        self.max_steps = max_steps
        self.render_mode = render_mode
        self._step_reward = 0.0 - step_penalty
        self._invalid_penalty = invalid_penalty
        self._require_think = require_think
        self._replies = REPLIES_WITH_THOUGHT if require_think else REPLIES
        self._symbols = merge_symbols(self.SYMBOLS, symbols)
        names = (f"{self._symbols[key]}={name}" for key, name in self.LEGEND.items())
        self._legend = self.LEGEND_SEPARATOR.join(names) + "\n" if legend else ""
        self._compass = compass
        self._max_length = max_length
        self._view: list[str] = []
        """The text of the map, one entry per character; empty before the first `reset`."""
        self._turn = 0
        self._note = ""
        """The line about an invalid reply, with the newline before it."""
        self._ended = True
        self._terminated = self._success = False
        """How the episode ended, once `_ended`."""

    @abstractmethod
    def _generate(self) -> Any:
        """The state of a new world, drawn with `self.np_random`."""

    @abstractmethod
    def _state(self) -> Any:
        """The world and who is where in it, picklable."""

    @abstractmethod
    def _place(self, state: Any) -> None:
        """Take over a state and draw it into `_view`."""

    @abstractmethod
    def _move(self, move: int) -> tuple[float, bool, bool, bool]:
        """Play a move: reward (from `_step_reward` on), terminated, success, and whether anything moved."""

    @abstractmethod
    def _bearings(self) -> str:
        """The compass's lines, each with a newline before it."""

    @cached_property
    def observation_space(self) -> Text:  # type: ignore[override]
        max_length = len(self._legend) + self._max_length + max(map(len, NOTES.values()))
        charset = _PRINTABLE | set(self._symbols.values())
        return Text(min_length=1, max_length=max_length, charset=charset)

    @cached_property
    def action_space(self) -> Text:  # type: ignore[override]
        """What `sample()` draws from. `step` takes any string, of any length and script."""
        return Text(min_length=0, max_length=_MAX_REPLY_LENGTH, charset=_PRINTABLE)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        self._place(self._generate())
        self._turn, self._note = 0, ""
        self._ended = self._terminated = self._success = False
        return self._observation(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._ended:
            return self._step_after_the_end()
        self._turn += 1
        move = parse_move(action)
        if move >= 0 and self._require_think and not thinks_first(action):
            move = NO_THOUGHT
        if move >= 0:
            self._note = ""
            reward, terminated, success, is_effective = self._move(move)
        else:
            self._note = "\n" + NOTES[move]
            reward = self._step_reward - self._invalid_penalty
            terminated = success = is_effective = False
        truncated = not terminated and self._turn >= self.max_steps
        if terminated or truncated:
            self._ended, self._terminated, self._success = True, terminated, success
        metrics = {"action_is_valid": float(move >= 0), "action_is_effective": float(is_effective)}
        return self._text(), reward, terminated, truncated, {"success": success, "metrics": metrics}

    def render(self) -> str | None:
        return "".join(self._view) if self.render_mode == "ansi" else None

    def snapshot(self) -> Any:
        course = self._turn, self._note, self._ended, self._terminated, self._success
        return self._state(), course, self.np_random.bit_generator.state

    def restore(self, snapshot: Any) -> str:
        state, course, self.np_random.bit_generator.state = snapshot
        self._place(state)
        self._turn, self._note, self._ended, self._terminated, self._success = course
        return self._observation()

    def legal_actions(self) -> Sequence[str]:
        return () if self._ended else self._replies

    def state_hash(self) -> str:
        """Of the map as it looks now. Turns left and the line about an invalid reply do not count."""
        return hashlib.blake2b("".join(self._view).encode(), digest_size=16).hexdigest()

    def _observation(self) -> str:
        return (self._legend if self._turn == 0 else "") + self._text()

    def _text(self) -> str:
        return "".join(self._view) + (self._bearings() if self._compass else "") + self._note

    def _step_after_the_end(self) -> tuple[str, float, bool, bool, Info]:
        if not self._view:
            raise ResetNeeded(f"{type(self).__name__.removesuffix('Env')}: call reset() before step()")
        info = {"success": self._success, "metrics": {}}
        return self._observation(), 0.0, self._terminated, not self._terminated, info
