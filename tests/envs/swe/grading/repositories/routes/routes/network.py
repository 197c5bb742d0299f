"""The network."""


class NoWay(LookupError):
    """There is no way from one place to the other."""


class Network:
    """Places and what it costs to get from one to another."""

    def __init__(self, legs=()):
        self._legs = {}
        for start, end, cost in legs:
            self.join(start, end, cost)

    def join(self, start, end, cost):
        """A leg in one direction. ValueError where the cost is below 0."""
        if cost < 0:
            raise ValueError(f"{start} to {end}: a cost below 0: {cost}")
        self._legs.setdefault(start, {})[end] = cost
        self._legs.setdefault(end, {})

    def places(self):
        """All places, in no order."""
        return self._legs.keys()

    def neighbors(self, place):
        """Where one gets from a place, one after the other."""
        yield from self._legs.get(place, {})

    def cost(self, way):
        """Of a way through several places; NoWay where a leg is missing."""
        total = 0
        for start, end in zip(way, way[1:]):
            try:
                total += self._legs[start][end]
            except KeyError:
                raise NoWay(f"no leg from {start} to {end}") from None
        return total
