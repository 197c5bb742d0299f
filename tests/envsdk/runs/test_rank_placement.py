from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.runs.rank_placement import num_ranks_of, rank_places, rank_resources

MAPPINGS = st.one_of(st.none(), st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True))


@given(cpus=st.integers(1, 64), mappings=st.lists(MAPPINGS, min_size=1, max_size=2))
def test_without_accelerators_all_ranks_of_a_run_fit_whatever_the_machine(
    cpus: int, mappings: list[list[int] | None]
) -> None:
    asked = sum(
        num_ranks_of(mapping)
        * rank_resources(
            {"CPU": cpus}, mapping=mapping, all_mappings=mappings, uses_accelerators=mapping is not None
        )["CPU"]
        for mapping in mappings
    )
    assert asked <= cpus + 1e-9


@given(mappings=st.lists(MAPPINGS.filter(bool), min_size=1, max_size=3))
def test_models_mapped_to_the_same_accelerators_share_them(mappings: list[list[int]]) -> None:
    on_device = dict.fromkeys(range(8), 0.0)
    for mapping in mappings:
        asked = rank_resources(
            {"CPU": 64, "GPU": 8}, mapping=mapping, all_mappings=mappings, uses_accelerators=True
        )
        assert asked["CPU"] == 1
        for device in mapping:
            on_device[device] += asked["GPU"]
    assert max(on_device.values()) <= 1 + 1e-9


def test_a_trainer_that_names_its_own_device_asks_for_no_accelerator() -> None:
    asked = rank_resources({"CPU": 8, "GPU": 8}, mapping=None, all_mappings=[None], uses_accelerators=False)
    assert asked == {"CPU": 1.0}


@given(nodes=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=1), order=st.randoms())
def test_ranks_fill_one_node_after_the_other_and_each_has_an_accelerator_of_its_own(
    nodes: dict[str, int], order: object
) -> None:
    bundles = [node for node, count in nodes.items() for _ in range(count)]
    order.shuffle(bundles)  # type: ignore[attr-defined]
    bundle_nodes = dict(enumerate(bundles))
    sizes = sorted(nodes.values(), reverse=True)
    mapping = [node * 4 + device for node, size in enumerate(sizes) for device in range(size)]
    places = rank_places(bundle_nodes, dict.fromkeys("abcd", 4), mapping, key="actor_train.device_mapping")

    assert sorted(place.bundle for place in places) == sorted(bundle_nodes)
    where = [bundle_nodes[place.bundle] for place in places]
    assert sum(a != b for a, b in pairwise(where)) == len(nodes) - 1
    for rank, place in enumerate(places):
        assert place.devices[place.local_rank] == mapping[rank] % 4
        assert place.local_rank == where[:rank].count(where[rank])
        assert len(place.devices) == nodes[where[rank]]


def test_accelerators_are_used_in_the_order_they_are_named() -> None:
    places = rank_places({0: "a", 1: "a"}, {"a": 4}, [3, 1], key="actor_train.device_mapping")
    assert [(place.local_rank, place.devices) for place in places] == [(0, (3, 1)), (1, (3, 1))]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [([0, 4], "names accelerator 4, and Ray has 4"), ([0, 8], "puts two ranks on accelerator 0")],
)
def test_an_accelerator_that_is_not_there_or_taken_is_refused_by_key(
    mapping: list[int], message: str
) -> None:
    gpus = {"a": 4} if mapping == [0, 4] else {"a": 8, "b": 8}
    with pytest.raises(ConfigurationError, match=rf"reference\.device_mapping.*{message}"):
        rank_places({0: "a", 1: "a"}, gpus, mapping, key="reference.device_mapping")


@given(count=st.integers(1, 8))
def test_on_cpus_no_rank_is_given_an_accelerator(count: int) -> None:
    places = rank_places(dict.fromkeys(range(count), "a"), {}, list(range(count)), key="actor_train")
    assert {place.devices for place in places} == {()}
    assert [place.local_rank for place in places] == list(range(count))
