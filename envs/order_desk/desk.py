"""Pure: one task of the order desk, and what has become of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from envsdk.adapters.tools import ToolError

NAMES = ("Ann", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana")
Item = Literal["bag", "book", "cup", "lamp", "pen"]
ITEMS: tuple[str, ...] = get_args(Item)
Warehouse = Literal["north", "south", "east"]
WAREHOUSES: tuple[str, ...] = get_args(Warehouse)
MOST_WANTED = 4
"""Pieces of one item that a task asks for, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing a customer wants."""

    item: str
    quantity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskTask:
    """Who wants what, and what there is."""

    customer: str
    lines: tuple[Line, ...]
    """Lines of different items."""
    accounts: Mapping[str, int]
    """Account number by customer, two digits, each different."""
    stock: Mapping[str, Mapping[str, int]]
    """Pieces by item and warehouse. One warehouse at least has all that is wanted, and one has not."""

    def text(self) -> str:
        wanted = ", ".join(f"{line.quantity} {line.item}" for line in self.lines)
        return f"Order for {self.customer}: {wanted}"


def draw_task(rng: np.random.Generator, *, num_lines: int) -> DeskTask:
    """A task that can be solved."""
    numbers = rng.choice(np.arange(10, 100), size=len(NAMES), replace=False)
    stock = {
        item: dict(zip(WAREHOUSES, rng.integers(0, MOST_WANTED + 1, len(WAREHOUSES)).tolist(), strict=True))
        for item in ITEMS
    }
    lines = []
    for item in rng.choice(ITEMS, size=num_lines, replace=False).tolist():
        quantity = int(rng.integers(1, MOST_WANTED + 1))
        full, short = rng.choice(WAREHOUSES, size=2, replace=False).tolist()
        stock[item][full] = int(rng.integers(quantity, MOST_WANTED + 1))
        stock[item][short] = int(rng.integers(0, quantity))
        lines.append(Line(item=item, quantity=quantity))
    return DeskTask(
        customer=str(rng.choice(NAMES)),
        lines=tuple(lines),
        accounts=dict(zip(NAMES, numbers.tolist(), strict=True)),
        stock=stock,
    )


@dataclass(slots=True)
class Desk:
    """The course of one task.

    open -> (look up, order)* -> solved, when every line is ordered, or lost, with the first wrong order

    What cannot be done raises ToolError, and changes nothing.
    """

    task: DeskTask
    ordered: list[str] = field(default_factory=list)
    """Items of the lines that were ordered."""
    known_customers: set[str] = field(default_factory=set)
    known_items: set[str] = field(default_factory=set)
    is_lost: bool = False

    @property
    def is_solved(self) -> bool:
        return not self.is_lost and len(self.ordered) == len(self.task.lines)

    @property
    def is_over(self) -> bool:
        return self.is_lost or self.is_solved

    def open_lines(self) -> list[Line]:
        return [line for line in self.task.lines if line.item not in self.ordered]

    def find_customer(self, name: str) -> int:
        """The customer's account number."""
        self._must_be_open()
        if name not in self.task.accounts:
            raise ToolError(f"there is no customer {name!r}")
        self.known_customers.add(name)
        return self.task.accounts[name]

    def find_stock(self, item: str) -> Mapping[str, int]:
        """Pieces by warehouse."""
        self._must_be_open()
        if item not in self.task.stock:
            raise ToolError(f"there is no item {item!r}")
        self.known_items.add(item)
        return self.task.stock[item]

    def order(self, *, account: int, item: str, quantity: int, warehouse: str) -> None:
        """Send it off, for good, to whomever the account belongs to."""
        self._must_be_open()
        if account not in self.task.accounts.values():
            raise ToolError(f"there is no account {account}")
        left = self.task.stock.get(item, {}).get(warehouse)
        if left is None:
            raise ToolError(f"there is no {item!r} in a warehouse {warehouse!r}")
        if left < quantity:
            raise ToolError(f"{warehouse} has {left} {item}")
        is_asked_for = Line(item=item, quantity=quantity) in self.open_lines()
        if account == self.task.accounts[self.task.customer] and is_asked_for:
            self.ordered.append(item)
        else:
            self.is_lost = True

    def key(self) -> str:
        """Equal for equal states: what was asked for, ordered and found out."""
        return repr(
            (self.task, self.ordered, sorted(self.known_customers), sorted(self.known_items), self.is_lost)
        )

    def _must_be_open(self) -> None:
        if self.is_over:
            raise ToolError("the desk is closed")
