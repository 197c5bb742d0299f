"""Finding ways."""

import heapq

from routes.network import NoWay


class Search:
    """A search step by step: `step()` looks at one more place until `done`."""

    def __init__(self, network, start):
        self.network = network
        self.cost = {}
        self.before = {}
        self._queue = [(0, start, None)]

    @property
    def done(self):
        return not self._queue

    def step(self):
        """The place that was looked at, or None where it was known already."""
        cost, place, before = heapq.heappop(self._queue)
        if place in self.cost:
            return None
        self.cost[place] = cost
        self.before[place] = before
        for other in self.network.neighbors(place):
            if other not in self.cost:
                heapq.heappush(self._queue, (cost + self.network.cost([place, other]), other, place))
        return place

    def way(self, goal):
        """The way to a place that was looked at."""
        way = []
        while goal is not None:
            way.append(goal)
            goal = self.before[goal]
        return way[::-1]


def shortest(network, start, goal):
    """A cheapest way and its cost. NoWay where there is none."""
    search = Search(network, start)
    while not search.done:
        search.step()
        if goal in search.cost:
            return search.way(goal), search.cost[goal]
    raise NoWay(f"no way from {start} to {goal}")


def reachable(network, start):
    """The set of places that can be reached, the start among them."""
    found, waiting = {start}, [start]
    while waiting:
        for other in network.neighbors(waiting.pop()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def all_ways(network, start, goal, _path=()):
    """Every way without a place twice, in no order."""
    path = (*_path, start)
    if start == goal:
        yield path
        return
    for other in network.neighbors(start):
        if other not in path:
            yield from all_ways(network, other, goal, path)
