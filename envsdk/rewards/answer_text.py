"""Pure: which part of a response is the answer, or the program."""

from __future__ import annotations

from collections.abc import Iterator

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


PYTHON = frozenset({"python", "python3", "py", "python2", "pypy", "pypy3"})
_BEGINNING_OF_SOLUTION = "<|begin_of_solution|>"


def program_in(response: str, needs: str = "") -> str | None:
    """The last block marked as Python; else the last without a mark; where there are no blocks, the text.

    None: there is no text, or its blocks are all marked as other languages.

    Args:
        needs: A function's name: the last block that defines it goes before later ones that do not.
    """
    response = after_thinking(response.rpartition(_BEGINNING_OF_SOLUTION)[2])
    blocks = list(_blocks(response))
    if not blocks:
        return response.strip() or None
    for languages in (PYTHON, frozenset({""})):
        fitting = [code for language, code in blocks if language in languages and code.strip()]
        defining = [
            code for code in fitting if needs and (f"def {needs}(" in code or f"class {needs}" in code)
        ]
        if fitting:
            return (defining or fitting)[-1]
    return None


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of each fenced block; one that is not closed ends with the text."""
    opened: tuple[str, int, list[str]] | None = None
    for line in text.split("\n"):
        stripped = line.strip()
        ticks = len(stripped) - len(stripped.lstrip("`"))
        if opened is None:
            if ticks >= 3:
                opened = (stripped[ticks:].strip().lower(), ticks, [])
        elif ticks >= opened[1] and stripped == "`" * ticks:
            yield opened[0], "\n".join(opened[2])
            opened = None
        else:
            opened[2].append(line)
    if opened is not None:
        yield opened[0], "\n".join(opened[2])
