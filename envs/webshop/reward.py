"""What a purchase is worth.

    reward = (attributes matched + options matched + price within the limit)
             / (attributes + options + 1) * r_type

`r_type` says whether it is the kind of thing that was asked for. The formula and its oddities are
upstream's; `strict_options` replaces the lenient comparison of options by equality.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

from envsdk.envs.webshop.goals import Goal
from envsdk.envs.webshop.products import Product


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeMatch:
    """Whether a product is the kind of thing that a goal asks for."""

    r_type: float
    """0, 0.1, 0.5 or 1."""
    query_match: bool
    category_match: bool
    title_score: float
    """Share of the nouns of the goal's title that the product's title has too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A purchase's reward and what it is made of."""

    reward: float
    type_match: TypeMatch
    num_attributes: int
    """Attributes that match."""
    num_options: int
    """Options that match."""
    is_within_price: bool
    num_asked_attributes: int
    num_asked_options: int

    def components(self) -> dict[str, float | bool]:
        """Upstream's names: shares `r_*` and weights `w_*`; no `*_option` when no option was asked for."""
        parts = self.num_asked_attributes + self.num_asked_options + 1
        info: dict[str, float | bool] = {
            "r_type": self.type_match.r_type,
            "r_att": self.num_attributes / self.num_asked_attributes if self.num_asked_attributes else 1.0,
            "w_att": self.num_asked_attributes / parts,
            "query_match": self.type_match.query_match,
            "category_match": self.type_match.category_match,
            "title_score": self.type_match.title_score,
        }
        if self.num_asked_options:
            info["r_option"] = self.num_options / self.num_asked_options
            info["w_option"] = self.num_asked_options / parts
        info["r_price"] = self.is_within_price
        info["w_price"] = 1 / parts
        return info


def score_purchase(
    product: Product, goal: Goal, *, price: float, options: Mapping[str, str], strict_options: bool = False
) -> Score:
    """The worth of buying `product` at `price` dollars with the chosen `options`, by name."""
    type_match = match_type(product, goal)
    num_attributes = count_attributes(product, goal.attributes)
    num_options = sum(options_met(goal, options, strict_options=strict_options))
    is_within_price = price <= goal.price_upper
    parts = len(goal.attributes) + len(goal.options) + 1
    return Score(
        reward=(num_attributes + num_options + is_within_price) / parts * type_match.r_type,
        type_match=type_match,
        num_attributes=num_attributes,
        num_options=num_options,
        is_within_price=is_within_price,
        num_asked_attributes=len(goal.attributes),
        num_asked_options=len(goal.options),
    )


def match_type(product: Product, goal: Goal) -> TypeMatch:
    wanted = goal.wanted
    query_match = product.query == wanted.query
    category_match = len(_path(product.product_category) & _path(wanted.product_category)) >= 2
    nouns = set(product.nouns) & set(wanted.nouns)
    # Nouns that the goal's title repeats count each time below the line and once above it.
    title_score = len(nouns) / len(wanted.nouns) if wanted.nouns else 0.2
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        r_type = 0.1
    if title_score == 0.0:
        r_type = 0.0
    return TypeMatch(
        r_type=r_type, query_match=query_match, category_match=category_match, title_score=title_score
    )


def count_attributes(product: Product, attributes: Sequence[str]) -> int:
    """How many of `attributes` the product has: among its own, or word for word in one of its texts."""
    texts = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
    return sum(
        any(is_alike(own, attribute) for own in product.attributes)
        or any(attribute in text for text in texts)
        for attribute in attributes
    )


def options_met(goal: Goal, options: Mapping[str, str], *, strict_options: bool = False) -> list[bool]:
    """For each option of the goal whether one of the chosen values meets it; names do not count.

    With `strict_options` a value must be the one asked for, under its name if the goal gives one.
    """
    if strict_options:
        if isinstance(goal.options, dict):
            return [options.get(name) == value for name, value in goal.options.items()]
        chosen = set(options.values())
        return [value in chosen for value in goal.options]
    if isinstance(goal.options, dict):
        asked = [color_of_pair(pair) for pair in goal.options.items()]
    else:
        asked = [color_of(value) for value in goal.options]
    bought = [color_of(value) for value in options.values()]
    return [any(is_alike(value, wish) for value in bought) for wish in asked]


def _path(product_category: str) -> set[str]:
    return {part.strip() for part in product_category.split("›")}


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
    """Whether the sets of words have a `token_set_ratio` above `THRESHOLD`, at a fraction of its cost.

    Both are upstream's, on Python's own `difflib`, as upstream runs without python-Levenshtein.
    """
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
