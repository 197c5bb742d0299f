import pytest

from invoice import Invoice, Line, Money


@pytest.fixture
def lines():
    return [
        Line("pen", Money(199), 3),
        Line("book", Money(1250), 1, "reduced"),
        Line("stamp", Money(85), 10, "none"),
    ]


@pytest.fixture
def invoice(lines):
    return Invoice(lines)


@pytest.fixture(params=[1, 2, 3, 7], ids=lambda parts: f"in {parts}")
def parts(request):
    return request.param
