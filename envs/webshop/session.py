"""One shopping trip: what is clickable, what a click or a search does, what the page shows.

    index -- search --> results -- asin --> item -- description, features ... --> sub
      ^                 |  ^ \\ next, prev    |  ^                                 |
      |                 |  +--- < prev ------+  +------------ < prev ------------+
      +- back to search, from everywhere     +-- buy now --> done

A `Session` is all state of a trip and knows the pages; it has no clock, no files and no randomness
of its own. Actions, pages and their text are those of upstream's text environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from envsdk.envs.webshop.goals import Goal
from envsdk.envs.webshop.reward import Score, score_purchase
from envsdk.envs.webshop.store import MAX_RESULTS, Store

PAGE_SIZE = 10

SUB_PAGES = {
    "description": "Description",
    "features": "Features",
    "reviews": "Reviews",
    "attributes": "Attributes",
}

_ACTION = re.compile(r"(.+)\[(.+)\]")


class Page(StrEnum):
    INDEX = "index"
    RESULTS = "results"
    ITEM = "item"
    SUB = "sub"
    DONE = "done"


Draw = Callable[[int, int], Sequence[int]]
"""`draw(population, k)`: k distinct numbers below `population`."""


class Target(NamedTuple):
    """What a click hits."""

    kind: str
    """`button`, `asin` or `option`."""
    product: int = -1
    """Number of the product that an asin opens."""
    option: str = ""
    """Name of an option."""


_BUTTON = Target("button")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action did."""

    is_valid: bool
    score: Score | None = None
    """Score of a purchase."""


_DONE_NOTHING = Outcome(is_valid=False)
_DONE = Outcome(is_valid=True)


@dataclass(slots=True, kw_only=True)
class Session:
    """The state of a trip.

    session = Session(catalogue=store, goal=goal)
    session.act("search[red sandals]")
    session.clickables()        # {"back to search": ..., "next >": ..., "b07xyz...": ...}
    session.act("click[b07xyz1234]")
    """

    catalogue: Store
    goal: Goal
    show_attributes: bool = False
    strict_options: bool = False
    special_queries: bool = True
    """`<r>`, `<c> CATEGORY` and `<q> QUERY` as the first word of a search list products, as upstream."""
    page_size: int = PAGE_SIZE
    draw: Draw | None = None
    """Randomness for `<r>`; without it `<r>` finds nothing."""

    page: Page = Page.INDEX
    keywords: tuple[str, ...] = ()
    number: int = 0
    """Number of the results page, from 1."""
    results: Sequence[int] = ()
    product: int = -1
    """Number of the product on the item, sub or done page."""
    options: dict[str, str] = field(default_factory=dict)
    """Chosen values by name, in the order in which the names were first chosen."""
    visited: frozenset[str] = frozenset()
    """Asins opened since the last index page."""
    sub: str = ""
    """Which sub-page, a value of `SUB_PAGES`."""
    reward: float = 0.0
    """Reward of the last purchase."""

    def act(self, action: str) -> Outcome:
        """Carry out `search[words]` or `click[label]`; anything else changes nothing."""
        parsed = parse_action(action)
        if parsed is None:
            return _DONE_NOTHING
        name, argument = parsed
        if name == "search":
            self._search(tuple(argument.split(" ")), 1)
            return _DONE
        target = None if argument == "search" else self.clickables().get(argument)
        return _DONE_NOTHING if target is None else self._click(argument, target)

    def clickables(self) -> dict[str, Target]:
        """What can be clicked here, by label, in upstream's order.

        Where an option has the label of a button, the label keeps the button's place. `search` on the
        index page is listed, as upstream lists it, but a click on it does nothing.
        """
        if self.page is Page.INDEX:
            return {"search": _BUTTON}
        if self.page is Page.DONE:
            return {}
        labels = {"back to search": _BUTTON}
        if self.page is Page.RESULTS:
            if self.number > 1:
                labels["< prev"] = _BUTTON
            labels["next >"] = _BUTTON
            card = self.catalogue.card
            for index in self.shown():
                labels[card(index)[0].lower()] = Target("asin", product=index)
            return labels
        labels["< prev"] = _BUTTON
        if self.page is Page.ITEM:
            for label in item_buttons(self.show_attributes):
                labels[label.lower()] = _BUTTON
            for name, values in self.catalogue.product(self.product).options.items():
                target = Target("option", option=name)
                for value in values:
                    labels[value] = target
        return labels

    def shown(self) -> Sequence[int]:
        """The products on this results page."""
        size = self.page_size
        return self.results[(self.number - 1) * size : self.number * size]

    def go_home(self) -> None:
        """To the index page, everything chosen and visited forgotten."""
        self.page, self.keywords, self.number, self.results = Page.INDEX, (), 0, ()
        self.product, self.options, self.visited = -1, {}, frozenset()

    def _search(self, keywords: tuple[str, ...], number: int) -> None:
        if keywords != self.keywords or keywords[0] == "<r>":
            self.results = self._find(keywords)
        self.page, self.keywords, self.number = Page.RESULTS, keywords, number
        self.product, self.options = -1, {}

    def _find(self, keywords: tuple[str, ...]) -> Sequence[int]:
        if self.special_queries:
            first, rest = keywords[0], keywords[1:]
            if first == "<r>":
                population = self.catalogue.num_products
                return self.draw(population, min(MAX_RESULTS, population)) if self.draw else ()
            if first == "<c>":
                return self.catalogue.by_category(rest[0].strip()) if rest else ()
            if first == "<q>":
                return self.catalogue.by_query(" ".join(rest).strip())
            if first == "<a>":
                return ()
        return self.catalogue.search(" ".join(keywords))

    def _click(self, label: str, target: Target) -> Outcome:
        # By label first: an option that has the label of a button acts as the button.
        if label == "buy now":
            return self._buy()
        if label == "back to search":
            self.go_home()
        elif label == "next >" and self.page is Page.RESULTS:
            self._search(self.keywords, self.number + 1)
        elif label == "< prev" and self.page is Page.RESULTS:
            self._search(self.keywords, self.number - 1)
        elif label == "< prev" and self.page is Page.SUB:
            self.page = Page.ITEM
        elif label == "< prev" and self.page is Page.ITEM:
            self._search(self.keywords, self.number)
        elif label in SUB_PAGES:
            self.page, self.sub = Page.SUB, SUB_PAGES[label]
        else:
            if target.kind == "asin":
                self.product = target.product
                self.visited |= {label.upper()}
            elif target.kind == "option":
                self.options[target.option] = label
            self.page = Page.ITEM
        return _DONE

    def _buy(self) -> Outcome:
        score = score_purchase(
            self.catalogue.product(self.product),
            self.goal,
            price=self.catalogue.price(self.product),
            options=self.options,
            strict_options=self.strict_options,
        )
        self.page, self.reward = Page.DONE, score.reward
        return Outcome(is_valid=True, score=score)


TRIP = ("page", "keywords", "number", "results", "product", "options", "visited", "sub", "reward")
"""Fields of a session that change on a trip."""


def parse_action(action: str) -> tuple[str, str] | None:
    """`("search", words)` or `("click", label)`, the argument in lower case; None for anything else.

    As upstream matches it: from the first character, up to the last bracket of the line, whatever follows.
    """
    match = _ACTION.match(action)
    if match is None:
        return None
    name, argument = match.groups()
    return (name, argument.lower()) if name in ("search", "click") else None


def item_buttons(show_attributes: bool) -> tuple[str, ...]:
    """Below a product, in order."""
    attributes = ("Attributes",) if show_attributes else ()
    return ("Description", "Features", "Reviews", *attributes, "Buy Now")
