from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.config.ray_models import RolePlacement
from envsdk.contracts.failures import ConfigurationError
from envsdk.managers.placement import Node, check_role, choose_node, has_labels

LABELS = st.dictionaries(st.sampled_from(["zone", "tier"]), st.sampled_from(["a", "b", "c"]))
SELECTORS = st.sampled_from(["a", "!a", "in(a, b)", "!in(a,b)"])
STRATEGIES = st.sampled_from(["spread", "pack"])


def node(number: int, cpus: float = 4, *, draining: bool = False, **labels: str) -> Node:
    return Node(
        node_id=f"n{number}",
        address=f"10.0.0.{number}",
        labels={"ray.io/node-id": f"n{number}"} | labels,
        resources={"CPU": cpus},
        is_draining=draining,
    )


def placed(rule: RolePlacement, nodes: list[Node], count: int, driver: str = "n0") -> Counter[str | None]:
    load: Counter[str | None] = Counter()
    for _ in range(count):
        load[choose_node(rule, nodes, load, driver=driver)] += 1  # type: ignore[arg-type]
    return load


@given(cpus=st.lists(st.integers(1, 64), min_size=1, max_size=6), count=st.integers(1, 60))
def test_spread_gives_each_node_its_share_by_cpus(cpus: list[int], count: int) -> None:
    nodes = [node(number, amount) for number, amount in enumerate(cpus)]
    load = placed(RolePlacement(), nodes, count)
    fullest = max(load[each.node_id] / each.num_cpus for each in nodes)
    for each in nodes:
        assert (
            load[each.node_id] + 1
        ) / each.num_cpus >= fullest  # one more there would not have been better


def test_of_equal_nodes_the_drivers_comes_last() -> None:
    nodes = [node(number) for number in range(3)]
    assert placed(RolePlacement(), nodes, 2, driver="n0") == {"n1": 1, "n2": 1}


def test_pack_fills_one_node_before_the_next() -> None:
    nodes = [node(0, 2), node(1, 4), node(2, 4)]
    assert placed(RolePlacement(strategy="pack", num_cpus=1), nodes, 6) == {"n1": 4, "n2": 2}


def test_what_belongs_beside_the_driver_goes_there_whatever_else_there_is() -> None:
    nodes = [node(0, 0), node(1, 64)]
    assert choose_node(RolePlacement(strategy="driver"), nodes, {}, driver="n0") == "n0"


@given(strategy=STRATEGIES, count=st.integers(1, 20))
def test_a_node_without_cpus_one_that_drains_and_one_to_avoid_are_the_last_resort(
    strategy: str, count: int
) -> None:
    rule = RolePlacement.model_validate({"strategy": strategy})
    bad = [node(0, 0), node(1, draining=True), node(2)]
    for nodes, expected in ((bad, "n2"), (bad[:2], "n0"), (bad[:1], "n0")):
        assert placed(rule, nodes, count) == {expected: count}
    assert choose_node(rule, [node(2), node(3)], {"n3": 9}, driver="n0", avoid=["n2"]) == "n3"
    assert choose_node(rule, [node(2)], {}, driver="n0", avoid=["n2"]) == "n2"


@given(
    strategy=STRATEGIES,
    labels=st.lists(LABELS, max_size=5),
    asked=st.dictionaries(st.just("zone"), SELECTORS),
)
def test_a_process_only_runs_where_the_labels_are(
    strategy: str, labels: list[dict[str, str]], asked: dict[str, str]
) -> None:
    rule = RolePlacement.model_validate({"strategy": strategy, "labels": asked})
    nodes = [node(number, **each) for number, each in enumerate(labels)]
    chosen = choose_node(rule, nodes, {}, driver="n0")
    able = [each.node_id for each in nodes if has_labels(rule, each)]
    assert chosen in able if able else chosen is None


@pytest.mark.parametrize(
    ("selector", "values"),
    [("a", {"a"}), ("!a", {"b", None}), ("in(a, b)", {"a", "b"}), ("!in(a,b)", {"c", None})],
)
def test_selectors_mean_what_they_mean_to_ray(selector: str, values: set[str | None]) -> None:
    rule = RolePlacement(labels={"zone": selector})
    asked: list[str | None] = ["a", "b", "c", None]
    found = {value for value in asked if has_labels(rule, node(0, **({"zone": value} if value else {})))}
    assert found >= values
    assert found - {"c"} <= values | {"c"}


def test_a_selector_without_a_node_is_refused_with_the_nodes_there_are() -> None:
    nodes = [node(0), node(1, zone="b")]
    with pytest.raises(
        ConfigurationError, match=r"ray\.placement\.workers\.labels: no node .* zone=a"
    ) as refused:
        check_role("workers", RolePlacement(labels={"zone": "a"}), nodes)
    for part in ("10.0.0.0 with none", "10.0.0.1 with zone=b", "ray start --labels=zone=a"):
        assert part in str(refused.value)
    with pytest.raises(ConfigurationError, match=r"engines\.resources: .* TPU=1.* 10\.0\.0\.1 with CPU=4"):
        check_role("engines", RolePlacement(resources={"TPU": 1.0}), nodes)
    check_role("workers", RolePlacement(labels={"zone": "!a"}), nodes)


@pytest.mark.parametrize("text", ["", "!", "a b", "in()", "in(a", "not a", "!!a", "-a"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no selector of Ray's labels"):
        RolePlacement(labels={"zone": text})
