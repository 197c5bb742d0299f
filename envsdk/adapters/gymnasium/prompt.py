"""The system prompt for a Gymnasium environment: its documentation, its drawing and its actions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces

from envsdk.adapters.text import tagged

_LISTED = 24
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
        is_short = len(listed) <= _LISTED
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
