def check_way(network, way, start, goal):
    """That `way` is one."""
    assert way[0] == start
    assert way[-1] == goal
    assert len(set(way)) == len(way)
    for place, following in zip(way, way[1:]):
        assert following in set(network.neighbors(place))
