from __future__ import annotations

from typing import Any

import pytest

from envsdk.config.ray_models import RolePlacement
from envsdk.managers import ray_nodes
from envsdk.managers.placement import Node
from envsdk.managers.ray_nodes import NODE_LABEL, Placer

DRIVER = "0" * 56


def placer(monkeypatch: pytest.MonkeyPatch, rule: RolePlacement) -> Placer:
    monkeypatch.setattr(ray_nodes, "this_node", lambda: DRIVER)
    nodes = [
        Node(
            node_id=f"n{number}" if number else DRIVER, address="", labels={"zone": "a"}, resources={"CPU": 2}
        )
        for number in range(3)
    ]
    return Placer(rule, lambda: nodes)


def chosen(options: dict[str, Any]) -> str:
    return str(options["label_selector"][NODE_LABEL])


def test_a_process_that_was_lost_is_started_on_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = placer(monkeypatch, RolePlacement())
    assert chosen(workers.options("w0")) == "n1"
    assert chosen(workers.options("w1")) == "n2"
    workers.landed("w1", DRIVER)
    assert chosen(workers.options("w0")) == "n2"


def test_where_its_node_is_gone_a_process_goes_where_its_labels_are(monkeypatch: pytest.MonkeyPatch) -> None:
    options = placer(monkeypatch, RolePlacement(labels={"zone": "a"}, num_cpus=0.5)).options("w0")
    assert options["label_selector"] == {"zone": "a", NODE_LABEL: "n1"}
    assert options["fallback_strategy"] == [{"label_selector": {"zone": "a"}}]
    assert options["num_cpus"] == 0.5


def test_labels_that_no_node_has_now_are_left_to_ray_which_waits_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = placer(monkeypatch, RolePlacement(labels={"zone": "b"})).options("w0")
    assert options["label_selector"] == {"zone": "b"}


def test_a_process_that_left_for_good_makes_room_on_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = placer(monkeypatch, RolePlacement())
    nodes = [chosen(workers.options(name)) for name in ("w0", "w1", "w2")]
    assert sorted(nodes) == [DRIVER, "n1", "n2"]
    workers.left("w1")
    assert chosen(workers.options("w3")) == nodes[1]


def test_what_is_tied_to_a_node_goes_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (
        placer(monkeypatch, RolePlacement(strategy="driver")).options("w0"),
        placer(monkeypatch, RolePlacement()).options("w0", DRIVER),
    ):
        assert options["scheduling_strategy"].node_id == DRIVER
        assert not options["scheduling_strategy"].soft
