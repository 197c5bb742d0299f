"""What the grid worlds share: four moves, how a reply names one, and the symbols of a map."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

from gymnasium.spaces import Text

MOVES = ("Left", "Down", "Right", "Up")
"""In the order of gymnasium's FrozenLake: a move is its index here."""

REPLIES = tuple(f"<answer>{move}</answer>" for move in MOVES)
"""The reply that plays each move."""

ACTION_FORMAT = "Reply with one move: " + ", ".join(REPLIES[:-1]) + f" or {REPLIES[-1]}."

NO_ANSWER = -1
NOT_A_MOVE = -2
NOTES = {
    NO_ANSWER: "Invalid action: no <answer> found.",
    NOT_A_MOVE: "Invalid action: not Left, Down, Right or Up.",
}
"""What the observation says about a reply that names no move."""

_OPEN, _CLOSE = "<answer>", "</answer>"
_INDEX = {move.lower(): index for index, move in enumerate(MOVES)}
_EXACT = {text: i for i in range(4) for text in (REPLIES[i], MOVES[i], MOVES[i].lower())}

_PRINTABLE = frozenset(string.ascii_letters + string.digits + string.punctuation + " \n")
_MAX_REPLY_LENGTH = 256


def parse_move(reply: str) -> int:
    """The move that `reply` names: its index in `MOVES`, or `NO_ANSWER` or `NOT_A_MOVE`.

    The last complete `<answer>` counts, in any case; without one the whole reply must be the
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


def observation_space(max_length: int, symbols: Mapping[str, str]) -> Text:
    return Text(min_length=1, max_length=max_length, charset=_PRINTABLE | set(symbols.values()))


def action_space() -> Text:
    """What `sample()` draws from. `step` takes any string, of any length and script."""
    return Text(min_length=0, max_length=_MAX_REPLY_LENGTH, charset=_PRINTABLE)
