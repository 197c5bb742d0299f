"""A scripted shopper, who reads the page as a policy does and knows no goal.

It searches for what the instruction says, opens the product whose title fits best and whose price is
within the limit, chooses each option that the instruction mentions, and buys.

    envsdk evaluate envsdk/WebShop-v1 --policy webshop_shopper
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field

from envsdk.contracts.policy import Policy, Reply, TurnContext
from envsdk.envs.webshop.oracle import plain_query
from envsdk.envs.webshop.replies import ActionFormat, format_reply

_LIMIT = re.compile(r"price lower than (\d+\.\d\d) dollars")
_MARKS = re.compile(r"\s*\[(?:clicked )?button_?\]\s*")
_WORD = re.compile(r"[a-z0-9]+")
_RESULTS = re.compile(r"Page \d+ \(Total results: \d+\)")
_PRICE = re.compile(r"^\$(\d+(?:\.\d+)?)")
_MAX_EPISODES = 4096


@dataclass(slots=True)
class Shopper:
    """Plays one episode: `act(observation)` is the action for a page, in either mode."""

    _chosen: set[str] = field(default_factory=set)

    def act(self, observation: str) -> str:
        cells = _cells(observation)
        instruction = _after(cells, "Instruction:")
        if "Back to Search" not in cells:
            return f"search[{plain_query(instruction)}]"
        if any(_RESULTS.fullmatch(cell) for cell in cells):
            return self._choose_product(cells, instruction)
        if "Buy Now" in cells:
            return self._choose_option(cells, instruction)
        return "click[< prev]"

    def _choose_product(self, cells: list[str], instruction: str) -> str:
        found = _LIMIT.search(instruction)
        limit = float(found.group(1)) if found else float("inf")
        wanted = set(_words(instruction))
        best, best_fit = "", -1.0
        start = cells.index("Next >") + 1
        for asin, title, price in zip(*(cells[start + i :: 3] for i in range(3)), strict=False):
            cost = _PRICE.match(price)
            is_affordable = cost is not None and float(cost.group(1)) <= limit
            fit = len(wanted.intersection(_words(title))) + (0.5 if is_affordable else 0.0)
            if fit > best_fit:
                best, best_fit = asin, fit
        return f"click[{best.lower()}]" if best else "click[back to search]"

    def _choose_option(self, cells: list[str], instruction: str) -> str:
        text = f" {' '.join(_words(instruction))} "
        labels = cells[cells.index("< Prev") + 1 : cells.index("Description")]
        for label in sorted(labels, key=len, reverse=True):
            words = " ".join(_words(label))
            is_asked = bool(words) and f" {words} " in text and label == label.lower()
            is_part = any(f" {words} " in f" {' '.join(_words(chosen))} " for chosen in self._chosen)
            if is_asked and not is_part:
                self._chosen.add(label)
                return f"click[{label}]"
        return "click[buy now]"


class ShopperPolicy(Policy):
    """`Shopper` for every episode, registered as the policy `webshop_shopper`."""

    name = "webshop_shopper"

    def __init__(self, action_format: ActionFormat = "tag") -> None:
        self._action_format: ActionFormat = action_format
        self._shoppers: OrderedDict[str, Shopper] = OrderedDict()

    async def act(self, turn: TurnContext) -> Reply:
        if turn.turn_index == 0 or turn.session_id not in self._shoppers:
            self._shoppers[turn.session_id] = Shopper()
            if len(self._shoppers) > _MAX_EPISODES:
                self._shoppers.popitem(last=False)
        action = self._shoppers[turn.session_id].act(turn.observation)
        return Reply(text=format_reply(action, self._action_format))


def _cells(observation: str) -> list[str]:
    """The strings of a page, without marks."""
    separator = "\n" if " [SEP] " not in observation else " [SEP] "
    return [text for part in observation.split(separator) if (text := _MARKS.sub("", part).strip())]


def _after(cells: list[str], label: str) -> str:
    return cells[cells.index(label) + 1] if label in cells[:-1] else ""


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
