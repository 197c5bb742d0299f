"""A player that knows the goal's product: what it buys, and how it gets there from any page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from envsdk.envs.webshop.goals import Goal
from envsdk.envs.webshop.products import Product
from envsdk.envs.webshop.reward import options_met
from envsdk.envs.webshop.session import Page, Session, parse_action

_NO_QUERY = re.compile(r"[\[\]\s]+")
_BUTTONS = frozenset(
    ("search", "back to search", "< prev", "buy now", "description", "features", "reviews", "attributes")
)
_PRICE = re.compile(r", and price lower than \d+\.\d\d dollars$")


def next_action(session: Session, options: Mapping[str, str], query: str) -> str:
    """A step towards buying the goal's product with `options`, which `query` finds."""
    goal, page = session.goal, session.page
    if page in (Page.ITEM, Page.SUB) and session.product == goal.product:
        if page is Page.SUB:
            return "click[< prev]"
        for name, value in options.items():
            if session.options.get(name) != value:
                return f"click[{value}]"
        return "click[buy now]"
    if page is Page.RESULTS and goal.product in session.results:
        wanted = session.results.index(goal.product) // session.page_size + 1
        if wanted == session.number:
            return f"click[{goal.wanted.asin.lower()}]"
        return "click[next >]" if wanted > session.number else "click[< prev]"
    return f"search[{query}]"


def best_options(goal: Goal, *, strict_options: bool = False) -> dict[str, str]:
    """The fewest clicks that meet as many of the goal's options as can be."""
    best: dict[frozenset[int], dict[str, str]] = {frozenset(): {}}
    for name, values in clickable_options(goal.wanted).items():
        for met, chosen in list(best.items()):
            for value in values:
                options = {name: value}
                meets = options_met(goal, options, strict_options=strict_options)
                union = met | {number for number, is_met in enumerate(meets) if is_met}
                known = best.get(union)
                if known is None or len(known) > len(chosen) + 1:
                    best[union] = {**chosen, **options}
    return max(best.items(), key=lambda item: (len(item[0]), -len(item[1])))[1]


def clickable_options(product: Product) -> dict[str, list[str]]:
    """The values that a click can choose, by name, as far as an action can name them.

    A value of two groups chooses in the last, one that is a button chooses nothing, and one with a bracket
    cannot be named in an action.
    """
    groups: dict[str, str] = {}
    for name, values in product.options.items():
        groups.update(dict.fromkeys(values, name))
    options: dict[str, list[str]] = {name: [] for name in product.options}
    for value, name in groups.items():
        if value not in _BUTTONS and parse_action(f"click[{value}]") == ("click", value):
            options[name].append(value)
    return options


def find_query(session: Session) -> str:
    """Words that find the goal's product, on the first page if any do."""
    catalogue, goal = session.catalogue, session.goal
    best_place, best_query = len(session.results) + 10**6, ""
    for query in _queries(goal):
        if not query:
            continue
        results = catalogue.search(query)
        if goal.product in results:
            place = results.index(goal.product)
            if place < session.page_size:
                return query
            if place < best_place:
                best_place, best_query = place, query
    return best_query or f"<q> {goal.wanted.query}"


def plain_query(instruction: str) -> str:
    """What somebody would search for who knows no more than the instruction."""
    return _clean(_PRICE.sub("", instruction)) or "anything"


def _queries(goal: Goal) -> Iterator[str]:
    attributes, product = " ".join(goal.attributes), goal.wanted
    yield _clean(product.query)
    yield _clean(f"{attributes} {product.query}")
    yield plain_query(goal.text)
    yield _clean(product.title)
    yield _clean(f"{product.title} {product.description}")
    yield _clean(
        f"{product.title} {' '.join(value for values in product.options.values() for value in values)}"
    )


def _clean(query: str) -> str:
    return _NO_QUERY.sub(" ", query).strip().lower()
