"""Hypothesis strategies: seeds, replies, scripts, histories and configurations of an environment."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, Literal

from hypothesis import strategies as st

AWKWARD_REPLIES = (
    "",
    " \n\t",
    "\x00",
    "<answer>",
    "</answer>",
    "<answer></answer>",
    "</answer><answer>",
    "<answer><answer></answer>",
    "<ANSWER>\u202eright</ANSWER>",
    "<action></action>",
    "\ud800",
    "İ" * 50,
    "{}",
    "-1",
    "9" * 5000,
    "²",
    "<answer>" * 200,
)
"""Replies that a careless parser falls over; drawn besides arbitrary text."""

seeds = st.integers(min_value=0, max_value=2**31 - 1)
"""Those that training draws."""


def replies() -> st.SearchStrategy[str]:
    """Text of any kind, lone surrogates and control characters included."""
    return st.one_of(st.text(st.characters(), max_size=40), st.sampled_from(AWKWARD_REPLIES))


def scripts(max_size: int = 12) -> st.SearchStrategy[list[int | str]]:
    """Scripts (see `envsdk.testing.courses`): mostly legal actions, some text of any kind."""
    legal = st.integers(min_value=0, max_value=63)
    text = st.text(st.characters(), max_size=40)
    return st.lists(st.one_of(legal, legal, text, st.sampled_from(AWKWARD_REPLIES)), max_size=max_size)


def histories(max_size: int = 3) -> st.SearchStrategy[list[tuple[int, list[int | str]]]]:
    """What one instance has been through: episodes, each a seed and a script, played to any point."""
    return st.lists(st.tuples(seeds, scripts(6)), max_size=max_size)


def configurations(
    constructor: Callable[..., Any], **strategies: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Keyword arguments of an environment's constructor.

    Switches (`bool`) and choices (`Literal`) are drawn from their annotations, every other keyword is left
    at its default unless `strategies` has one for it.
    """
    listed = {name: st.sampled_from(values) for name, values in choices_of(constructor).items()}
    drawn = {**listed, **strategies}
    return st.fixed_dictionaries({}, optional=drawn)


def choices_of(constructor: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """Keywords whose annotation lists their values: `bool` and `Literal`."""
    function: Any = getattr(constructor, "__init__") if isinstance(constructor, type) else constructor  # noqa: B009
    try:
        annotations = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}
    found: dict[str, tuple[Any, ...]] = {}
    for name in inspect.signature(constructor).parameters:
        annotation = annotations.get(name)
        if annotation is bool:
            found[name] = (False, True)
        elif typing.get_origin(annotation) is Literal:
            found[name] = typing.get_args(annotation)
    return found
