"""Pure: which part of a response is the answer."""

from __future__ import annotations

_END_OF_THINKING = "</think>"


def after_thinking(text: str) -> str:
    """What follows the last `</think>`, without leading newlines; the whole text where there is none."""
    return text.rpartition(_END_OF_THINKING)[2].lstrip("\n") if _END_OF_THINKING in text else text
