"""Amounts in cents."""

from functools import total_ordering


@total_ordering
class Money:
    """An immutable amount of one currency."""

    def __init__(self, cents, currency="EUR"):
        if not isinstance(cents, int):
            raise TypeError(f"cents must be whole, not {cents!r}")
        self.cents = cents
        self.currency = currency

    def __eq__(self, other):
        if not isinstance(other, Money):
            return NotImplemented
        return (self.cents, self.currency) == (other.cents, other.currency)

    def __lt__(self, other):
        self._check(other)
        return self.cents < other.cents

    def __hash__(self):
        return hash((self.cents, self.currency))

    def __add__(self, other):
        self._check(other)
        return Money(self.cents + other.cents, self.currency)

    def __mul__(self, factor):
        return Money(round(self.cents * factor), self.currency)

    def __repr__(self):
        return f"Money({self.cents}, {self.currency!r})"

    def __str__(self):
        return f"{self.cents // 100}.{self.cents % 100:02d} {self.currency}"

    def split(self, parts):
        """`parts` amounts that add up to this one; the first ones get the odd cents."""
        share, rest = divmod(self.cents, parts)
        return [Money(share + (number < rest), self.currency) for number in range(parts)]

    def _check(self, other):
        if self.currency != other.currency:
            raise ValueError(f"{self.currency} and {other.currency} do not add up")
