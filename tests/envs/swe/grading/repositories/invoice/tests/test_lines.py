from dataclasses import FrozenInstanceError, asdict

import pytest

from invoice import Invoice, Line, Money, UnknownRate


class TestSums:
    @pytest.fixture(autouse=True)
    def _keep(self, invoice):
        self.invoice = invoice

    def test_net(self):
        assert self.invoice.net() == Money(597 + 1250 + 850)

    def test_net_by_rate(self):
        assert self.invoice.net_by_rate() == {"none": Money(850), "reduced": Money(1250), "full": Money(597)}

    def test_taxes(self):
        taxes = {rate: tax.cents for rate, tax in self.invoice.tax_by_rate().items()}
        assert taxes == {"full": 113, "reduced": 88, "none": 0}
        assert self.invoice.gross().cents == 2898

    def test_average_rate(self):
        assert self.invoice.average_rate() == pytest.approx(201 / 2697)


def test_nothing_costs_nothing():
    empty = Invoice()
    assert not empty.lines
    assert empty.average_rate() == 0.0
    assert empty.net_by_rate() == {}


def test_the_same_article_is_one_line(invoice, lines):
    invoice.add(Line("pen", Money(199), 2))
    invoice.add(Line("pen", Money(199), 2, "reduced"))
    assert [line.quantity for line in invoice.lines] == [5, 1, 10, 2]
    assert lines[0].quantity == 3
    assert invoice.net_by_rate()["reduced"] == Money(1250 + 398)


def test_lines_cannot_be_changed(lines):
    with pytest.raises(FrozenInstanceError):
        lines[0].quantity = 4
    assert asdict(lines[1])["article"] == "book"
    assert lines[1] == Line("book", Money(1250), 1, "reduced", notes=["gift"])


def test_an_unknown_rate_is_named(invoice):
    with pytest.raises(UnknownRate, match="pen: no rate 'luxury', only full, none, reduced"):
        invoice.add(Line("pen", Money(1), rate="luxury"))
    assert len(invoice.lines) == 3
