"""Accelerators shared out between engines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.runs.rank_placement import device_bundle, engine_places, rank_places


@given(per_engine=st.integers(1, 4), engines_of_node=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_every_engine_has_its_accelerators_on_one_node_and_shares_none(
    per_engine: int, engines_of_node: list[int]
) -> None:
    nodes = [str(number) for number, count in enumerate(engines_of_node) for _ in range(count * per_engine)]
    bundle_nodes = dict(enumerate(nodes))
    per_node = max(engines_of_node) * per_engine
    mapping: list[int] = []
    order = sorted(range(len(engines_of_node)), key=lambda node: (-engines_of_node[node], str(node)))
    for place, node in enumerate(order):
        mapping += [place * per_node + device for device in range(engines_of_node[node] * per_engine)]
    places = rank_places(bundle_nodes, dict.fromkeys(set(nodes), per_node), mapping, key="key")
    engines = engine_places(places, bundle_nodes, per_engine=per_engine)
    assert len(engines) == sum(engines_of_node)
    assert all(bundle_nodes[engine.bundle] == engine.node for engine in engines)
    used = [(engine.node, device) for engine in engines for device in engine.devices]
    assert len(used) == len(set(used)) == len(nodes)


def test_the_order_of_the_mapping_is_that_of_the_engines() -> None:
    nodes = dict.fromkeys(range(4), "a")
    places = rank_places(nodes, {"a": 4}, [3, 1, 0, 2], key="key")
    assert [engine.devices for engine in engine_places(places, nodes, per_engine=2)] == [(3, 1), (0, 2)]


def test_an_engine_across_two_machines_is_refused() -> None:
    nodes = {0: "a", 1: "a", 2: "a", 3: "b"}
    places = rank_places(nodes, {"a": 3, "b": 3}, [0, 1, 2, 3], key="key")
    with pytest.raises(ConfigurationError, match="an engine of 2 accelerators would be on 2 machines"):
        engine_places(places, nodes, per_engine=2)


def test_trainers_mapped_to_the_same_accelerators_leave_a_share() -> None:
    assert device_bundle([0, 1], [None]) == {"GPU": 1.0}
    assert device_bundle([0, 1], [[2, 3], None]) == {"GPU": 1.0}
    assert device_bundle([0, 1], [[1, 2], [1]]) == {"GPU": 0.333}
