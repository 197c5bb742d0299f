"""Gymnasium's spaces in words: observations and renderings, replies as actions, and the system prompt."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.utils.colorize import color2num

from envsdk.adapters.text import tagged

MARKS: Mapping[str, str] = {"highlight": "[{}]", "blue": "({})", "magenta": "<{}>"}
"""What stands for colored text when no `marks` are given: enough for Gymnasium's toy texts."""

_STYLED = re.compile(r"\x1b\[([0-9;]*)m")
_OTHER_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b[@-Z\\-_]")
_COLORS = {number: name for name, number in color2num.items()}
_BACKGROUND = 10
"""The number of a background color less that of the same foreground color."""

STYLES = ("highlight", *color2num)
"""Names that `marks` may have: any background color, and the foreground colors."""


def check_marks(marks: Mapping[str, str]) -> None:
    """ValueError unless every mark belongs to a style."""
    for style, mark in marks.items():
        if style not in STYLES:
            raise ValueError(f"marks: unknown style {style!r}; there are {', '.join(STYLES)}")
        if not isinstance(mark, str):
            raise ValueError(f"marks.{style}: must be text such as '[{{}}]', not {mark!r}")


def without_colors(text: str, marks: Mapping[str, str]) -> str:
    """A rendering for terminals with `marks` in place of its colors.

    A mark is text in which `{}` stands for what was colored: `"[{}]"` puts it in brackets, `"P"` replaces
    it. Colors without a mark are dropped.
    """
    pieces = _STYLED.split(text)
    shown = [pieces[0]]
    for codes, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        mark = marks.get(_style(codes), "{}") if piece else "{}"
        shown.append(mark.replace("{}", piece))
    return _OTHER_SEQUENCE.sub("", "".join(shown))


def _style(codes: str) -> str:
    for code in codes.split(";"):
        number = int(code) if code.isdigit() and len(code) < 4 else 0
        if number - _BACKGROUND in _COLORS and number not in _COLORS:
            return "highlight"
        if number in _COLORS:
            return _COLORS[number]
    return ""


def check_labels(space: Space[Any], labels: Sequence[str]) -> None:
    """ValueError unless there is one label for each value or part of `space`."""
    expected = num_labels(space)
    if expected is None:
        raise ValueError(f"labels: {space} has no parts to name")
    if len(labels) != expected:
        raise ValueError(f"labels: {space} has {expected} values to name, not {len(labels)}")


def num_labels(space: Space[Any]) -> int | None:
    """How many labels say all of `space`; None where labels say nothing."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.Tuple):
        return len(space.spaces)
    shape = space.shape
    return shape[0] if shape is not None and len(shape) == 1 else None


def in_words(space: Space[Any], value: Any, *, labels: Sequence[str] = (), precision: int = 3) -> str:
    """A value of `space` as text: one line per part, `precision` digits per number."""
    if isinstance(space, spaces.Text):
        return str(value)
    if isinstance(space, spaces.Discrete):
        return labels[int(value) - int(space.start)] if labels else str(int(value))
    if isinstance(space, spaces.Dict):
        parts = {name: (part, value[name]) for name, part in space.spaces.items()}
        return "\n".join(f"{name}: {_part(part, one, precision)}" for name, (part, one) in parts.items())
    if isinstance(space, spaces.Tuple):
        texts = [_part(part, one, precision) for part, one in zip(space.spaces, value, strict=True)]
        return _lines(texts, labels)
    if isinstance(value, np.ndarray):
        if value.ndim <= 1:
            numbers = [_number(number, precision) for number in value.reshape(-1).tolist()]
            return _lines(numbers, labels) if labels else " ".join(numbers)
        return "\n".join(in_words(space, row, precision=precision) for row in value)
    return str(value)


def _part(space: Space[Any], value: Any, precision: int) -> str:
    text = in_words(space, value, precision=precision)
    return f"\n{text}" if "\n" in text else text


def _lines(texts: Sequence[str], labels: Sequence[str]) -> str:
    if not labels:
        return "\n".join(texts)
    return "\n".join(f"{label}: {text}" for label, text in zip(labels, texts, strict=True))


def _number(number: float | bool, precision: int) -> str:
    return f"{number:.{precision}g}" if isinstance(number, float) else str(int(number))


ActionParser = Callable[[str], Any]
"""An action from an answer; ValueError says why there is none."""

_LISTED = 12
"""Names a message lists at most."""
_MAX_DIGITS = 32


def parser_for(space: Space[Any], names: Sequence[str] | None) -> ActionParser:
    """How an answer names an action of `space`. ValueError when that takes a parser of one's own.

    Args:
        names: Of the actions of a discrete space, in their order; their numbers when None.
    """
    if isinstance(space, spaces.Discrete):
        return _names_of(space, names)
    if names is not None:
        raise ValueError(f"actions: only a discrete action space has names, and this one is {space}")
    if isinstance(space, spaces.Text):
        return _text_of(space)
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return _numbers_of(space)
    raise ValueError(
        f"parse: the action space {space} takes a parser of your own: parse: package.module:function, which"
        " takes an answer and returns an action, or raises ValueError that says why not"
    )


def action_names(space: spaces.Discrete[Any], names: Sequence[str] | None) -> list[str]:
    """One name for each action, in their order. ValueError for too few, too many, doubled or empty ones."""
    n, start = int(space.n), int(space.start)
    if names is None:
        return [str(start + index) for index in range(n)]
    if isinstance(names, str) or any(not isinstance(name, str) for name in names):
        raise ValueError(f"actions: must be a list of texts, in quotes where YAML sees no text: {names}")
    if len(names) != n:
        raise ValueError(f"actions: the action space has {n} actions, and {len(names)} names are given")
    listed = [" ".join(name.split()) for name in names]
    if len({name.lower() for name in listed}) < n or not all(listed):
        raise ValueError(f"actions: names must differ and not be empty: {listed}")
    return listed


def _names_of(space: spaces.Discrete[Any], names: Sequence[str] | None) -> ActionParser:
    listed = action_names(space, names)
    by_name = {name.lower(): int(space.start) + index for index, name in enumerate(listed)}
    options = ", ".join(listed) if len(listed) <= _LISTED else f"{', '.join(listed[:_LISTED])} ..."

    def parse(answer: str) -> Any:
        action = by_name.get(" ".join(answer.lower().split()))
        if action is None:
            raise ValueError(f"not one of {options}.")
        return space.dtype.type(action) if space.dtype is not None else action

    return parse


def _text_of(space: spaces.Text) -> ActionParser:
    def parse(answer: str) -> str:
        if not space.min_length <= len(answer) <= space.max_length:
            raise ValueError(f"it must have {space.min_length} to {space.max_length} characters.")
        if answer not in space:
            raise ValueError("it has characters that do not belong there.")
        return answer

    return parse


def _numbers_of(space: spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary) -> ActionParser:
    shape = space.shape
    assert shape is not None
    count = math.prod(shape)
    is_continuous = np.issubdtype(space.dtype, np.floating)
    kind = "numbers" if is_continuous else "whole numbers"

    def parse(answer: str) -> Any:
        words = re.split(r"[\s,]+", answer.strip("[]() \t\r\n")) if len(answer) < 64 * (count + 1) else []
        if len(words) != count or not all(words):
            raise ValueError(f"{kind} expected: {count}.")
        try:
            numbers = [float(word) if is_continuous else _whole(word) for word in words]
            action = np.asarray(numbers, dtype=space.dtype).reshape(shape)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{count} {kind} expected.") from error
        if action not in space:
            raise ValueError("out of bounds.")
        return action

    return parse


def _whole(word: str) -> int:
    if len(word) > _MAX_DIGITS:
        raise ValueError("too long")
    return int(word)


_LISTED_ACTIONS = 24
"""Names of actions listed at most."""

_LEGENDS: Mapping[str, str] = {
    "TaxiEnv": "In the map {highlight} is the taxi, {blue} the place where the passenger waits (none while "
    "in the taxi) and {magenta} the passenger's destination. A : can be crossed, a | is a wall.",
    "FrozenLakeEnv": "In the map {highlight} is the player, S the start, F frozen, H a hole and G the goal.",
    "CliffWalkingEnv": "In the map x is the player, o a free place, C the cliff and T the goal.",
}
"""What Gymnasium's toy texts draw, which their documentation does not say; marks by their styles."""


def describe(
    env: gymnasium.Env[Any, Any],
    *,
    names: Sequence[str] | None,
    marks: Mapping[str, str],
    reads_whole: bool,
    shows_values: bool,
    parse_doc: str | None,
) -> str:
    """The system prompt.

    Args:
        env: The environment inside.
        names: The user's names of its actions.
        marks: What stands for colors in its rendering.
        reads_whole: The entire reply is the action; otherwise the content of the tags.
        shows_values: Observations are values of its space, without labels.
        parse_doc: Documentation of the user's own parser; None when there is none.
    """
    inside = env.unwrapped
    wanted = {"description", "reward", "rewards", "episode end", "episode termination", "episode truncation"}
    if names is None and parse_doc is None:
        wanted |= {"action space"}
    if shows_values:
        wanted |= {"observation space"}
    legend = _LEGENDS.get(type(inside).__name__, "") if env.render_mode == "ansi" else ""
    shown = {style: mark.replace("{}", " ") for style, mark in marks.items()}
    parts = [
        *_sections(type(inside).__doc__ or "", wanted),
        legend.format_map(shown),
        how_to_reply(env.action_space, names, reads_whole=reads_whole, parse_doc=parse_doc),
    ]
    return "\n\n".join(filter(None, parts))


def how_to_reply(
    space: Space[Any], names: Sequence[str] | None, *, reads_whole: bool, parse_doc: str | None = None
) -> str:
    """One line or two, with an action of the environment's own as the example."""
    where = "" if reads_whole else " in tags"
    if parse_doc is not None:
        such = "" if reads_whole else ": <answer>...</answer>"
        return "\n".join(filter(None, (parse_doc, f"Reply with one action{where}{such}.")))

    def such_as(example: str) -> str:
        return f", such as {example if reads_whole else tagged(example)}"

    if isinstance(space, spaces.Discrete):
        first, last = int(space.start), int(space.start + space.n) - 1
        listed = names or [str(number) for number in range(first, last + 1)]
        is_short = len(listed) <= _LISTED_ACTIONS
        all_of_them = ", ".join(listed) if is_short else f"{listed[0]}, {listed[1]} ... {listed[-1]}"
        return f"Reply with one action{where}{such_as(listed[0])}. The actions are: {all_of_them}."
    if isinstance(space, spaces.Text):
        return "Reply with the action and nothing else." if reads_whole else f"Reply with the action{where}."
    example = _middle(space)
    kind = "number" if np.issubdtype(example.dtype, np.floating) else "whole number"
    count = "one " + kind if example.size == 1 else f"{example.size} {kind}s"
    numbers = " ".join(map(str, example.reshape(-1)))
    return f"Reply with {count}{_bounds(space)}{where}{such_as(numbers)}."


def _middle(space: Space[Any]) -> np.ndarray[Any, Any]:
    """An action in the middle of a space of numbers."""
    if isinstance(space, spaces.Box):
        low, high = (np.nan_to_num(bound, posinf=0.0, neginf=0.0) for bound in (space.low, space.high))
        middle: np.ndarray[Any, Any] = np.clip((low + high) / 2, space.low, space.high).astype(space.dtype)
        return middle
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.start)
    assert space.shape is not None
    return np.zeros(space.shape, space.dtype)


def _bounds(space: Space[Any]) -> str:
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    else:
        return ", each 0 or 1,"
    pairs = list(zip(low.reshape(-1).tolist(), high.reshape(-1).tolist(), strict=True))
    if len(set(pairs)) > 1:
        return ", " + ", ".join(f"{low:g} to {high:g}" for low, high in pairs) + ","
    return f" from {pairs[0][0]:g} to {pairs[0][1]:g}"


def _sections(documentation: str, wanted: set[str]) -> list[str]:
    """The introduction and those sections of a docstring in Markdown, in their order, as plain text."""
    introduction, *rest = _HEADING.split(inspect.cleandoc(documentation))
    sections = [introduction]
    for title, text in zip(map(str.strip, rest[::2]), rest[1::2], strict=True):
        if title.lower() in wanted:
            # The description needs no heading: what else would come first?
            heading = "" if title.lower() == "description" else f"{title}:\n"
            sections.append(heading + text.strip())
    return [text for section in sections if (text := _plain(section))]


_HEADING = re.compile(r"^ *#{1,4} +(.+)$", re.MULTILINE)
_MARKUP = (
    (re.compile(r"```.*?(```|\Z)", re.DOTALL), ""),
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), ""),
    (re.compile(r" ?\[<a [^>]*>\d+</a>\]"), ""),
    (re.compile(r"</?a\b[^>]*>"), ""),
    (re.compile(r"\[([^\]]+)\]\([^)\s]+\)"), r"\1"),
    (re.compile(r"\n{3,}"), "\n\n"),
)


def _plain(text: str) -> str:
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return inspect.cleandoc(text)
