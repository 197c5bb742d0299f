"""When two texts mean the same attribute or option: thefuzz's `token_set_ratio`, and colors by their name.

Both are upstream's, on Python's own `difflib`, as upstream runs without python-Levenshtein.
"""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from functools import lru_cache

THRESHOLD = 85
"""Two texts match when their ratio is above it."""

_COLORS = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown
    burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac
    copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold granite
    grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon leopard light
    lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural navy
    nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell
    silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
    wheat white wine yellow
"""
COLORS = tuple(_COLORS.split())
"""In alphabetic order: the first one within a text stands for all of it."""

_NOT_A_WORD = re.compile(r"\W")
_HEURISTIC_LENGTH = 200
"""`SequenceMatcher` takes texts of this length or more for long ones, and leaves frequent characters out."""
_LATIN_1 = dict.fromkeys(range(128, 256))


def color_of(text: str) -> str:
    """The first color of `COLORS` that stands in `text`, `text` itself when there is none."""
    for color in COLORS:
        if color in text:
            return color
    return text


def color_of_pair(pair: tuple[str, str]) -> str:
    """The same of an option's name and value: only a name or value that is nothing but a color counts.

    Upstream tests `color in pair`, and then compares the pair's text.
    """
    for color in COLORS:
        if color in pair:
            return color
    return str(pair)


@lru_cache(maxsize=65536)
def is_alike(one: str, other: str) -> bool:
    """Whether the sets of words have a `token_set_ratio` above `THRESHOLD`, at a fraction of its cost."""
    texts = _compared(one, other)
    if texts is None:
        return False
    both, first, second = texts
    if both and max(map(len, texts)) < _HEURISTIC_LENGTH:
        # It is the beginning of the two others, and so the longest block that they share with it.
        if max(_percent(len(both), both, text) for text in (first, second)) > THRESHOLD:
            return True
    elif max(_ratio(both, first), _ratio(both, second)) > THRESHOLD:
        return True
    # Without regard to order no fewer characters match.
    shared = sum((Counter(first) & Counter(second)).values())
    return _percent(shared, first, second) > THRESHOLD and _ratio(first, second) > THRESHOLD


def _compared(one: str, other: str) -> tuple[str, str, str] | None:
    """The words of both texts, and these with the other words of either; None when a text has no word."""
    words, other_words = _words(one), _words(other)
    if not words or not other_words:
        return None
    both = " ".join(sorted(words & other_words))
    first = f"{both} {' '.join(sorted(words - other_words))}".strip()
    second = f"{both} {' '.join(sorted(other_words - words))}".strip()
    return both, first, second


def _words(text: str) -> set[str]:
    return set(_NOT_A_WORD.sub(" ", text.translate(_LATIN_1)).lower().split())


def _ratio(one: str, other: str) -> int:
    if one == other:
        return 100
    if not one or not other:
        return 0
    return round(100 * SequenceMatcher(None, one, other).ratio())


def _percent(num_shared: int, one: str, other: str) -> int:
    """What `SequenceMatcher` makes of this many characters in matching blocks."""
    return round(100 * (2.0 * num_shared / (len(one) + len(other))))
