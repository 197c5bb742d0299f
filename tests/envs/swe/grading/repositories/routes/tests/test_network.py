import pytest

from routes import Network


def test_places():
    assert set(Network([("a", "b", 1)]).places()) == {"a", "b"}
    assert len(Network().places()) == 0


def test_a_cost_below_zero():
    with pytest.raises(ValueError, match="below 0"):
        Network([("a", "b", -1)])


def test_the_cost_of_a_way():
    network = Network([("a", "b", 1), ("b", "c", 0.5)])
    assert network.cost("abc") == pytest.approx(1.5)
    assert network.cost(["a"]) == 0
