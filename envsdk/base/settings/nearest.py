"""Hints for an unknown name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_MAX_LISTED = 12


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The most similar candidate, ignoring case; None when none is similar."""
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    matches = get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def suggest(name: str, candidates: Iterable[str], *, known: str) -> str:
    """Half a sentence that helps: `did you mean 'grpo'?`, or `known keys: ...`.

    `known` says what the candidates are, in the plural.
    """
    candidates = list(candidates)
    match = nearest(name, candidates)
    if match is not None:
        return f"did you mean `{match}`?"
    if not candidates:
        return f"there are no {known}"
    listed = ", ".join(sorted(candidates)[:_MAX_LISTED])
    more = ", ..." if len(candidates) > _MAX_LISTED else ""
    return f"{known}: {listed}{more}"


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """A sentence with a space before it, ` Did you mean 'grpo'?`; empty when no candidate is similar."""
    match = nearest(name, candidates)
    return f" Did you mean {match!r}?" if match is not None else ""
