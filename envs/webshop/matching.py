"""When two texts mean the same attribute or option: thefuzz's `token_set_ratio`, and colors by their name.

Both are upstream's, on Python's own `difflib`, as upstream runs without python-Levenshtein.
"""

from __future__ import annotations

import re
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
"""In alphabetic order: the first one within a text stands for the whole text."""

_NOT_A_WORD = re.compile(r"\W")
_LATIN_1 = dict.fromkeys(range(128, 256))


def color_of(text: str) -> str:
    """The first color of `COLORS` that stands in `text`, `text` itself when there is none."""
    for color in COLORS:
        if color in text:
            return color
    return text


def color_of_pair(pair: tuple[str, str]) -> str:
    """The same of an option's name and value: only a name or value that is a color as a whole counts.

    Upstream tests `color in pair`, and then compares the pair's text.
    """
    for color in COLORS:
        if color in pair:
            return color
    return str(pair)


@lru_cache(maxsize=65536)
def token_set_ratio(one: str, other: str) -> int:
    """How alike the sets of words are, 0 to 100; 100 when one contains the other."""
    words, other_words = _words(one), _words(other)
    if not words or not other_words:
        return 0
    both = " ".join(sorted(words & other_words))
    first = f"{both} {' '.join(sorted(words - other_words))}".strip()
    second = f"{both} {' '.join(sorted(other_words - words))}".strip()
    return max(_ratio(both, first), _ratio(both, second), _ratio(first, second))


def _words(text: str) -> set[str]:
    return set(_NOT_A_WORD.sub(" ", text.translate(_LATIN_1)).lower().split())


def _ratio(one: str, other: str) -> int:
    if one == other:
        return 100
    if not one or not other:
        return 0
    return round(100 * SequenceMatcher(None, one, other).ratio())
