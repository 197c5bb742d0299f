import random

import pytest

from routes import Network, NoWay, Search, all_ways, reachable, shortest
from tests.helpers import check_way

LEGS = [("a", "b", 4), ("a", "c", 1), ("c", "b", 2), ("b", "d", 5), ("c", "d", 9), ("x", "a", 1)]


@pytest.fixture
def network():
    return Network(LEGS)


def test_the_cheapest_way(network):
    way, cost = shortest(network, "a", "d")
    assert list(way) == ["a", "c", "b", "d"]
    assert cost == 8


def test_every_way_is_one(network):
    for way in all_ways(network, "a", "d"):
        check_way(network, way, "a", "d")
    assert {tuple(way) for way in all_ways(network, "a", "d")} == {
        ("a", "b", "d"),
        ("a", "c", "d"),
        ("a", "c", "b", "d"),
    }
    assert not list(all_ways(network, "d", "a"))


def test_what_can_be_reached(network):
    assert reachable(network, "c") == {"b", "c", "d"}
    assert sorted(network.places() - reachable(network, "a")) == ["x"]


def test_step_by_step(network):
    search = Search(network, "a")
    costs = []
    while not search.done:
        place = search.step()
        if place is not None:
            costs.append(search.cost[place])
    assert costs == sorted(costs)
    assert search.cost == {"a": 0, "b": 3, "c": 1, "d": 8}


def test_no_way(network):
    with pytest.raises(NoWay, match="from b to x"):
        shortest(network, "b", "x")
    with pytest.raises(NoWay):
        network.cost(["a", "b", "c"])


@pytest.mark.parametrize("seed", range(4))
def test_random_networks(seed):
    chance = random.Random(seed)
    legs = [(chance.randrange(9), chance.randrange(9), chance.randrange(1, 9)) for _ in range(20)]
    network = Network(legs)
    for goal in reachable(network, 0) - {0}:
        way, cost = shortest(network, 0, goal)
        check_way(network, way, 0, goal)
        assert cost == network.cost(way)
        assert all(cost <= network.cost(other) for other in all_ways(network, 0, goal))
        assert any(cost == network.cost(other) for other in all_ways(network, 0, goal))
