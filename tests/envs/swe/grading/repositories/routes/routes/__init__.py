"""Ways through a network."""

from routes.network import Network, NoWay
from routes.search import Search, all_ways, reachable, shortest

__all__ = ["Network", "NoWay", "Search", "all_ways", "reachable", "shortest"]
