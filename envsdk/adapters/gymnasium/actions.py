"""Replies as actions of Gymnasium's spaces."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

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
            raise ValueError(
                f"{count} {'numbers' if is_continuous else 'whole numbers'} expected."
            ) from error
        if action not in space:
            raise ValueError("out of bounds.")
        return action

    return parse


def _whole(word: str) -> int:
    if len(word) > _MAX_DIGITS:
        raise ValueError("too long")
    return int(word)
