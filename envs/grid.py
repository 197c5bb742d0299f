"""Grid worlds as text: `GridEnv`, the four moves, how a reply names one, and the symbols of a map."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Text

from envsdk.contracts.turn_env import PRINTABLE, InvalidAction, TurnEnv, TurnResult, last_between
from envsdk.envs.arguments import EnvArguments

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

TEXT_PIECES = (
    r" ?\S (?:(?:Up|Down) \d )?(?:Left|Right) \d(?!\d)",
    r" ?\S (?:Up|Down) \d(?!\d)",
    r" ?(?:Left|Down|Right|Up) \S(?!\S)",
    r"\p{Lu}(?!\p{Ll})",
)
"""`text_pieces` of a world on a grid: a bearing, a neighbor and a cell of the map are a token each."""

_OPEN, _CLOSE = "<answer>", "</answer>"
_INDEX = {move.lower(): index for index, move in enumerate(MOVES)}
_EXACT = {text: i for i in range(4) for text in (REPLIES[i], MOVES[i], MOVES[i].lower())}

_INEFFECTIVE = {"action_is_effective": 0.0}


def parse_move(reply: str) -> int:
    """The move that `reply` names: its index in `MOVES`, or `NO_ANSWER` or `NOT_A_MOVE`.

    The last complete `<answer>` counts, in any case; without one the entire reply must be the
    move. Takes time linear in the reply, whatever it holds.
    """
    move = _EXACT.get(reply)
    if move is not None:
        return move
    text = reply.lower()
    answer = last_between(text, _OPEN, _CLOSE)
    if answer is None:
        return _INDEX.get(text.strip(), NO_ANSWER)
    return _INDEX.get(text[answer].strip(), NOT_A_MOVE)


def thinks_first(reply: str) -> bool:
    """Whether a complete `<think>`, in any case, stands before the `<answer>` that counts."""
    text = reply.lower()
    answer = last_between(text, _OPEN, _CLOSE)
    return answer is not None and last_between(text[: answer.start], "<think>", "</think>") is not None


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


def surroundings(view: str, cell: int, width: int) -> str:
    """What is next to `cell`, in the order of `MOVES`: `Left _ Down O Right _ Up #`; `#` beyond the edge."""
    cells = (cell - 1, cell + width + 1, cell + 1, cell - width - 1)
    seen = (view[there] if 0 <= there < len(view) and view[there] != "\n" else "#" for there in cells)
    return " ".join(f"{move} {symbol}" for move, symbol in zip(MOVES, seen, strict=True))


def move_result(
    reward: float, *, success: bool = False, terminated: bool | None = None, is_effective: bool = True
) -> TurnResult:
    """What a move that can be played leads to, whether anything moved among its metrics."""
    metrics = {"action_is_effective": float(is_effective)}
    return TurnResult(reward=reward, success=success, terminated=terminated, metrics=metrics)


class GridArguments(EnvArguments):
    """The keywords that all worlds on a grid share."""

    step_penalty: float = 0.0
    """Taken off the reward of every turn."""
    invalid_penalty: float = 0.0
    """Taken off the reward of a turn whose reply names no move."""
    require_think: bool = False
    """A reply names a move only if `<think>...</think>` stands before its `<answer>`."""
    symbols: Mapping[str, Any] | None = None
    """Other characters for some of the kinds of cells in `SYMBOLS`."""
    legend: bool = True
    """The first observation of an episode opens with a line that explains the symbols."""
    compass: bool = False
    """Lines below the map tell what is next to you and which way the goal lies, or which way each box lies
    from you and its nearest target from it."""
    render_mode: str | None = None
    """None, or `ansi`: `render()` returns the map."""


class GridEnv(TurnEnv[int]):
    """A world on a grid: the observation is a map with one symbol per cell, the action one of four moves.

    This class reads replies and keeps the text of the map. A subclass draws a world in `_generate`, holds it
    as its state, and plays one move, penalties included.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (gymnasium declares it so)

    SYMBOLS: ClassVar[Mapping[str, str]]
    """The character of each kind of cell."""
    LEGEND: ClassVar[Mapping[str, str]]
    """What the legend calls each kind of cell, in its order."""
    LEGEND_SEPARATOR: ClassVar[str] = ", "

    def __init__(
        self, args: GridArguments, *, max_steps: int, max_length: int, symbols: Mapping[str, str] | None
    ) -> None:
        """`max_length` bounds the text of the map and its compass."""
        # `play` takes `step_penalty` off itself: sums of rewards depend on their order in the last bit.
        super().__init__(max_steps=max_steps, invalid_penalty=args.step_penalty + args.invalid_penalty)
        self.render_mode = args.render_mode
        self._step_reward = 0.0 - args.step_penalty
        self._require_think = args.require_think
        self._replies = REPLIES_WITH_THOUGHT if args.require_think else REPLIES
        self._symbols = merge_symbols(self.SYMBOLS, symbols)
        names = (f"{self._symbols[key]}={name}" for key, name in self.LEGEND.items())
        self._legend = self.LEGEND_SEPARATOR.join(names) + "\n" if args.legend else ""
        self._compass = args.compass
        self._max_length = max_length
        self._view = ""
        """The text of the map; empty before the first `reset`."""
        self._stayed = move_result(self._step_reward, is_effective=False)
        self._moved = move_result(self._step_reward)

    @abstractmethod
    def _generate(self, rng: np.random.Generator) -> Any:
        """The state of a new world."""

    @abstractmethod
    def get_state(self) -> Any:
        """The world and who is where in it, picklable."""

    @abstractmethod
    def set_state(self, state: Any) -> None:
        """Take over a state and draw it into `_view`."""

    @abstractmethod
    def _bearings(self) -> str:
        """The compass's lines, each with a newline before it."""

    @cached_property
    def observation_space(self) -> Text:  # type: ignore[override]
        max_length = len(self._legend) + self._max_length + max(map(len, NOTES.values()))
        charset = PRINTABLE | set(self._symbols.values())
        return Text(min_length=1, max_length=max_length, charset=charset)

    def start(self, rng: np.random.Generator, options: dict[str, Any]) -> None:
        self.set_state(self._generate(rng))

    def parse(self, reply: str) -> int:
        move = _EXACT.get(reply)
        if move is None:
            move = parse_move(reply)
        if move >= 0 and self._require_think and not thinks_first(reply):
            move = NO_THOUGHT
        if move < 0:
            raise InvalidAction(NOTES[move], metrics=_INEFFECTIVE)
        return move

    def observe(self) -> str:
        text = self._view + self._bearings() if self._compass else self._view
        return text if self.num_turns else self._legend + text

    def render(self) -> str | None:
        return self._view if self.render_mode == "ansi" else None

    def legal_actions(self) -> Sequence[str]:
        return () if self.is_over else self._replies

    def state_hash(self) -> str:
        """Digest of the map as it looks now. Turns left and the line about an invalid reply do not count."""
        return hashlib.blake2b(self._view.encode(), digest_size=16).hexdigest()
