"""Lines of an invoice and what they come to."""

from dataclasses import dataclass, field, replace

from invoice.money import Money

RATES = {"full": 0.19, "reduced": 0.07, "none": 0.0}


class UnknownRate(LookupError):
    """A line has a rate that nobody defined."""


@dataclass(frozen=True)
class Line:
    """Some pieces of one article."""

    article: str
    price: Money
    quantity: int = 1
    rate: str = "full"
    notes: list = field(default_factory=list, compare=False)

    @property
    def net(self):
        return self.price * self.quantity


class Invoice:
    """Lines in the order in which they came; the same article at the same price is one line."""

    def __init__(self, lines=()):
        self.lines = []
        for line in lines:
            self.add(line)

    def add(self, line):
        """UnknownRate where the line's rate is none of RATES."""
        if line.rate not in RATES:
            raise UnknownRate(f"{line.article}: no rate {line.rate!r}, only {', '.join(sorted(RATES))}")
        for number, other in enumerate(self.lines):
            if (other.article, other.price, other.rate) == (line.article, line.price, line.rate):
                self.lines[number] = replace(other, quantity=other.quantity + line.quantity)
                return
        self.lines.append(line)

    def net(self):
        total = Money(0)
        for line in self.lines:
            total = total + line.net
        return total

    def net_by_rate(self):
        """Net amounts by rate, only of rates that occur."""
        found = {}
        for line in self.lines:
            found[line.rate] = found.get(line.rate, Money(0)) + line.net
        return found

    def tax_by_rate(self):
        """Taxes by rate: of the sum, not the sum of the lines'."""
        return {rate: net * RATES[rate] for rate, net in self.net_by_rate().items()}

    def gross(self):
        total = self.net()
        for tax in self.tax_by_rate().values():
            total = total + tax
        return total

    def average_rate(self):
        """Taxes over net, 0.0 for nothing."""
        net = self.net().cents
        return sum(tax.cents for tax in self.tax_by_rate().values()) / net if net else 0.0
