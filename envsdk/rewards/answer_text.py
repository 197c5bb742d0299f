"""Pure: which part of a response is the answer."""

from __future__ import annotations

_END_OF_THINKING = "</think>"

NO_SPACES = "぀-ヿ㐀-鿿가-힣"
"""A class of characters: the letters of Japanese, Chinese and Korean, with no space around."""


def after_thinking(text: str) -> str:
    """What follows the last `</think>`, without leading newlines; the whole text where there is none.

    Nothing where a `<think>` is not closed.
    """
    if is_thinking(text):
        return ""
    return text.rpartition(_END_OF_THINKING)[2].lstrip("\n") if _END_OF_THINKING in text else text


def is_thinking(text: str) -> bool:
    """Whether the text ends inside a `<think>` that is not closed, so that it holds no answer."""
    return "<think>" in text.rpartition(_END_OF_THINKING)[2]
