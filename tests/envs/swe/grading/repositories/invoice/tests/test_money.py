import pytest

from invoice import Money


def assert_money(money, cents, currency="EUR"):
    __tracebackhide__ = True
    assert isinstance(money, Money)
    assert money.cents == cents, f"{money} is not {cents}"
    assert money.currency == currency


def test_parts_add_up(parts):
    shares = Money(1000).split(parts)
    assert len(shares) == parts
    total = Money(0)
    for share in shares:
        total = total + share
    assert_money(total, 1000)
    assert max(shares).cents - min(shares).cents <= 1


def test_the_first_parts_get_the_odd_cents():
    assert Money(1000).split(3) == [Money(334), Money(333), Money(333)]
    assert [share.cents for share in Money(5).split(4)] == [2, 1, 1, 1]


def test_a_split_keeps_the_currency():
    for share in Money(7, "USD").split(2):
        assert_money(share, pytest.approx(3.5, abs=0.6), "USD")


@pytest.mark.parametrize(
    ("cents", "text"),
    [pytest.param(5, "0.05 EUR", id="small"), pytest.param(123456, "1234.56 EUR", id="large")],
)
def test_text(cents, text):
    assert str(Money(cents)) == text


def test_equality_is_of_amount_and_currency():
    assert Money(1) == Money(1)
    assert Money(1) != Money(1, "USD")
    assert Money(1) != 1
    assert {Money(1), Money(1), Money(2)} == {Money(2), Money(1)}


def test_other_currencies_do_not_add_up():
    with pytest.raises(ValueError, match=r"^EUR and USD"):
        Money(1) + Money(1, "USD")
    with pytest.raises(TypeError) as info:
        Money(1.5)
    assert "1.5" in str(info.value)
